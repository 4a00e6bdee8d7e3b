# SPDX-License-Identifier: BSD-2-Clause
"""Runs a program with sluice.accelerate():

    python -m sluice.accelerate program.py [ARGUMENT...]
    python -m sluice.accelerate -m MODULE [ARGUMENT...]

SLUICE_ACCELERATE=verbose in the environment prints at the end what was loaded, and how. docs/integrations.md is the guide.
"""
import builtins
import importlib.machinery
import io
import os
import pkgutil
import runpy
import sys
import types
from typing import Any

import sluice


def _new_main() -> types.ModuleType:
    """A module for the program, which stays __main__ until Python ends. runpy.run_path() and run_module() put the old one
    back when the last line is done, but threads, exit handlers and process pools of the program may still need its own."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    return module


def _run_module(name: str, is_name_of_user: bool) -> None:
    """`python -m name`. For a folder or zip, Python runs the module __main__ and leaves sys.argv[0] alone."""
    _new_main()
    run: Any = runpy  # the function that Python itself calls
    run._run_module_as_main(name, is_name_of_user)


def _run_file(path: str) -> None:
    """`python path`. Python also sets __spec__ to None; then "spawn" of multiprocessing finds the program by __file__."""
    with io.open_code(path) as file:
        content = file.read()  # a pipe can be read once
    code = pkgutil.read_code(io.BytesIO(content))
    machinery = importlib.machinery
    loader = machinery.SourceFileLoader if code is None else machinery.SourcelessFileLoader
    module = _new_main()
    module.__dict__.update(__file__=path, __cached__=None, __loader__=loader("__main__", path))
    exec(code or compile(content, path, "exec", dont_inherit=True), module.__dict__)


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
        _run_module(arguments[0], True)
        return
    path = arguments[0]
    if not os.path.isabs(path):
        path = os.path.join(os.getcwd(), path)  # not abspath(): "link/.." is another folder
    if pkgutil.get_importer(path) is not None:  # a folder or a zip file
        sys.path[:0 if sys.flags.safe_path else 1] = [path]
        _run_module("__main__", False)
    else:
        if not sys.flags.safe_path:  # otherwise sys.path[0] is an entry of the user, and Python adds nothing
            sys.path[0] = os.path.dirname(os.path.realpath(path))
        _run_file(path)


if __name__ == "__main__":
    _main()
else:
    # `import sluice.accelerate` must not hide the function sluice.accelerate.
    sys.modules[__name__] = sluice.accelerate  # type: ignore[assignment]
