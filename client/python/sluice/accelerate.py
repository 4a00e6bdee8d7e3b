# SPDX-License-Identifier: BSD-2-Clause
"""Runs a program with sluice.accelerate():

    python -m sluice.accelerate program.py [ARGUMENT...]
    python -m sluice.accelerate -m MODULE [ARGUMENT...]

SLUICE_ACCELERATE=verbose in the environment prints at the end what was loaded, and how. docs/integrations.md is the guide.
"""
import os
import runpy
import sys

import sluice


def _main() -> None:
    arguments = sys.argv[1:]
    is_module = arguments[:1] == ["-m"]
    if is_module:
        del arguments[0]
    if not arguments or arguments[0].startswith("-"):
        print((__doc__ or "").rstrip(), file=sys.stderr)
        sys.exit(2 if arguments[:1] not in (["-h"], ["--help"]) else 0)
    # For the processes that the program starts: the installed package looks for it in each.
    if os.environ.get("SLUICE_ACCELERATE", "0") in ("", "0"):
        os.environ["SLUICE_ACCELERATE"] = "1"
    sluice.accelerate()
    sys.argv = arguments
    if is_module:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))  # as Python does
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    _main()
else:
    # `import sluice.accelerate` must not hide the function sluice.accelerate.
    sys.modules[__name__] = sluice.accelerate  # type: ignore[assignment]
