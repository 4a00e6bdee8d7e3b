# SPDX-License-Identifier: BSD-2-Clause
"""The ways to start sluice.accelerate. Runs without torch and safetensors."""
import os
import pathlib
import py_compile
import subprocess
import sys
import zipfile

import sluice

PACKAGE = pathlib.Path(sluice.__file__).parents[1]


def python(*arguments, folder, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "SLUICE_ACCELERATE"}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True,
                          env={**environment, "PYTHONPATH": str(PACKAGE), **variables})
    return done.returncode, done.stdout, done.stderr


def test_programs_and_modules_run_as_by_python(tmp_path):
    (tmp_path / "program.py").write_text(
        "import os, sys\n"
        "print(__name__, sys.argv[1:], sys.path[0], os.environ['SLUICE_ACCELERATE'])\n"
        "print([type(finder).__name__ for finder in sys.meta_path][0])\n"
        "sys.exit(7)\n")
    program, module = python("-m", "sluice.accelerate", "program.py", "a", "-b", folder=tmp_path), \
        python("-m", "sluice.accelerate", "-m", "program", "a", "-b", folder=tmp_path)
    assert program == module == (7, f"__main__ ['a', '-b'] {tmp_path} 1\n_Finder\n", "")
    assert python("-m", "sluice.accelerate", folder=tmp_path)[0] == 2
    assert "program.py" in python("-m", "sluice.accelerate", "--help", folder=tmp_path)[2]


def as_by_python(*arguments, folder, before=(), **variables):
    """Runs a program with and without sluice.accelerate. Both must print the same lines, and end without an error."""
    plain = python(*before, *arguments, folder=folder, **variables)
    accelerated = python(*before, "-m", "sluice.accelerate", *arguments, folder=folder, **variables)
    assert (plain[0], plain[2]) == (accelerated[0], accelerated[2]) == (0, "")
    lines = sorted(plain[1].splitlines())
    assert sorted(accelerated[1].splitlines()) == lines
    return lines


LATE = """
import atexit, pickle, sys, threading, time

def double(number):
    return 2 * number

class Thing:
    pass

if __name__ == "__main__":
    print(__file__, __spec__ and __spec__.name, __package__, __cached__, type(__loader__), type(__builtins__), __doc__)
    print(sys.argv, sys.path[0], sys.modules["__main__"].double is double)
    atexit.register(lambda: print(pickle.loads(pickle.dumps(Thing())), sys.argv))
    Thing.__repr__ = lambda self: "a thing"
    def late():
        while threading.main_thread().is_alive():
            time.sleep(0.001)
        sys.stdout.write(f"{pickle.loads(pickle.dumps(double))(4)}\\n")
    threading.Thread(target=late).start()
"""
LATE_POOL = LATE + """
    import concurrent.futures, multiprocessing
    for method in "fork", "spawn":
        pool = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context(method))
        for number in range(3):
            pool.submit(double, number).add_done_callback(lambda future: sys.stdout.write(f"{method} {future.result()}\\n"))
        if method == "fork":
            pool.shutdown()
"""


def test_main_is_there_until_python_ends(tmp_path):
    """Exit handlers, threads and process pools that work after the last line of the program."""
    (tmp_path / "program.py").write_text(LATE_POOL)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(LATE)
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", LATE)
    for program in ["program.py"], ["-m", "program"]:
        lines = as_by_python(*program, "a", "-b", folder=tmp_path)
        assert {f"{method} {number}" for method in ("fork", "spawn") for number in (0, 2, 4)} < set(lines)
    for program in ["./package"], ["-m", "package"], ["archive.zip"], ["package/../archive.zip"]:
        assert "8" in as_by_python(*program, "a", "-b", folder=tmp_path)


def test_the_search_path_is_that_of_python(tmp_path):
    """With -P, -I or PYTHONSAFEPATH, Python does not put the folder of a program before PYTHONPATH."""
    for folder in "first", "package":
        (tmp_path / folder).mkdir()
    for program in "program.py", "first/module.py", "package/__main__.py":
        (tmp_path / program).write_text("import sys; print(sys.path)")
    path = f"{tmp_path / 'first'}{os.pathsep}{PACKAGE}"
    for options, variables in ([], {}), (["-P"], {}), ([], {"PYTHONSAFEPATH": "1"}):
        for program in ["program.py"], ["-m", "module"], ["package"]:
            (line,) = as_by_python(*program, before=options, folder=tmp_path, PYTHONPATH=path, **variables)
            assert str(tmp_path / "first") in line


def test_compiled_programs_and_pipes_run(tmp_path):
    (tmp_path / "program.py").write_text("print(type(__loader__), __name__)")
    py_compile.compile(tmp_path / "program.py", tmp_path / "program.pyc")
    as_by_python("program.pyc", folder=tmp_path)
    command = f"{sys.executable} -m sluice.accelerate <(echo 'print(__name__)')"
    assert subprocess.run(["bash", "-c", command], env={**os.environ, "PYTHONPATH": str(PACKAGE)}, capture_output=True,
                          text=True).stdout == "__main__\n"


def test_the_module_does_not_hide_the_function(tmp_path):
    code = ("import sluice, sys; function = sluice.accelerate; import sluice.accelerate\n"
            "from sluice import accelerate; assert accelerate is sluice.accelerate is function\n"
            "accelerate(); accelerate(); print([type(f).__module__ for f in sys.meta_path].count('_sluice_accelerate'))")
    assert python("-c", code, folder=tmp_path) == (0, "1\n", "")


def test_the_hook_imports_nothing_large(tmp_path):
    """sluice-accelerate.pth, as site.py runs it."""
    hook = (PACKAGE / "sluice-accelerate.pth").read_text()
    show = "\nimport sys; print([name for name in sys.modules if 'sluice' in name], 'typing' in sys.modules)"
    for value, expected in ({}, []), ({"SLUICE_ACCELERATE": "0"}, []), ({"SLUICE_ACCELERATE": ""}, []), \
            ({"SLUICE_ACCELERATE": "1"}, ["_sluice_accelerate"]), ({"SLUICE_ACCELERATE": "verbose"}, ["_sluice_accelerate"]):
        assert python("-S", "-c", hook + show, folder=tmp_path, **value) == (0, f"{expected} False\n", ""), value


def test_a_module_that_is_not_as_expected_stays_as_it_is(tmp_path):
    """A package of the right name without the functions: it works, and the log tells why it is not accelerated."""
    (tmp_path / "safetensors").mkdir()
    (tmp_path / "safetensors" / "__init__.py").write_text("answer = 42\n")
    code = ("import sluice, logging; logging.basicConfig(); sluice.accelerate()\n"
            "import safetensors; print(safetensors.answer, type(safetensors.__loader__).__name__)")
    status, output, log = python("-c", code, folder=tmp_path)
    assert (status, output) == (0, "42 SourceFileLoader\n")
    assert "safetensors is not accelerated: AttributeError" in log


def test_the_report_works_after_a_fork(tmp_path):
    """Another thread may have held the lock when the process was copied."""
    code = ("import os, signal\n"
            "from sluice.integrations._report import report\n"
            "with report._lock:\n"
            "    child = os.fork()\n"
            "    if child == 0:\n"
            "        signal.alarm(10)\n"
            "        report.text()\n"
            "        os._exit(0)\n"
            "print(os.waitpid(child, 0)[1], report.text())")
    assert python("-c", code, folder=tmp_path) == (0, "0 sluice.accelerate: 0 files read\n", "")
