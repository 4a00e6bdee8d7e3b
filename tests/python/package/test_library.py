# SPDX-License-Identifier: BSD-2-Clause
import os
import subprocess
import sys

import sluice


def run(program, **variables):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **variables})


def test_the_versions_agree():
    assert sluice.library_version() == sluice.__version__


def test_importing_needs_no_library_and_no_framework():
    done = run("import sys, sluice; print(sorted({'numpy', 'torch', 'cupy'} & set(sys.modules)))",
               SLUICE_LIBRARY="/none/libsluice.so.1")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_error_names_the_missing_library():
    done = run("import sluice; sluice.open('/dev/null')", SLUICE_LIBRARY="/none/libsluice.so.1")
    assert "/none/libsluice.so.1" in done.stderr
    assert "set SLUICE_LIBRARY to the path of the library" in done.stderr


def test_all_names_are_there():
    for name in sluice.__all__:
        assert getattr(sluice, name).__doc__, name
