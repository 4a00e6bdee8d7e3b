# SPDX-License-Identifier: BSD-2-Clause
"""Tests that take `folder` run in a plain folder, and again on the Sluice mount $SLUICE_TEST_MOUNT if that is set."""
import os
import pathlib
import random
import shutil
import tempfile

import pytest

MOUNT = os.environ.get("SLUICE_TEST_MOUNT")


@pytest.fixture(params=["plain", "mount"] if MOUNT else ["plain"])
def folder(request, tmp_path):
    if request.param == "plain":
        yield tmp_path
    else:
        path = tempfile.mkdtemp(prefix="python-", dir=MOUNT)
        yield pathlib.Path(path)
        shutil.rmtree(path)


@pytest.fixture
def mount():
    if not MOUNT:
        pytest.skip("SLUICE_TEST_MOUNT is not given")
    path = tempfile.mkdtemp(prefix="python-", dir=MOUNT)
    yield pathlib.Path(path)
    shutil.rmtree(path)


@pytest.fixture
def content():
    """More than one chunk of the engine, and not a round number."""
    return random.Random(1).randbytes(9_000_001)


@pytest.fixture
def path(folder, content):
    path = folder / "file"
    path.write_bytes(content)
    return path


@pytest.fixture
def originals():
    """Runs the test with the functions that sluice.accelerate() replaces, and gives the original ones."""
    from accelerated import accelerated
    from sluice.integrations._report import report
    report._reasons.clear()
    with accelerated() as found:
        yield found


@pytest.fixture
def gpu(originals):
    from accelerated import a_gpu
    with a_gpu() as found:
        yield found
