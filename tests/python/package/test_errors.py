# SPDX-License-Identifier: BSD-2-Clause
import asyncio
import errno
import os
import pickle
import traceback

import pytest

import sluice


def error_of(use, *arguments):
    with pytest.raises(sluice.Error) as caught:
        use(*arguments)
    return caught.value


def test_missing_file_is_a_file_not_found_error(folder):
    path = str(folder / "none")
    for use in (sluice.open, sluice.stat, sluice.prefetch, sluice.load_safetensors):
        arguments = (path, "cpu", "np") if use is sluice.load_safetensors else (path,)
        error = error_of(use, *arguments)
        assert isinstance(error, FileNotFoundError), use
        assert (error.errno, error.filename, error.strerror) == (errno.ENOENT, path, os.strerror(errno.ENOENT)), use
        assert str(error).count(path) == 1, use
        assert str(error).count("open") <= 1, use


def test_message_is_one_sentence(folder):
    path = str(folder / "none")
    error = error_of(sluice.open, path)
    assert str(error) == f"[Errno 2] open {path}: No such file or directory"
    assert traceback.format_exception_only(error) == [f"sluice.Error: {error}\n"]


def test_errors_have_the_classes_of_python(path, folder):
    for use, arguments, kind in (
            (sluice.open, (folder / "none" / "file",), FileNotFoundError),
            (sluice.open, (path / "below",), NotADirectoryError),
            (sluice.open, (path, "x"), FileExistsError),
            (sluice.open, (folder, "r+"), IsADirectoryError)):
        with pytest.raises(kind) as caught:
            use(*arguments)
        assert isinstance(caught.value, sluice.Error)
        assert caught.value.filename == str(arguments[0])


def test_permission_error():
    error = sluice.Error(errno.EACCES, "open /a: Permission denied", "/a")
    assert isinstance(error, PermissionError)
    assert type(sluice.Error(errno.ENOSPC, "write /a: No space left on device", "/a")) is sluice.Error


def test_other_errors_keep_their_next_step(path):
    with sluice.open(path) as file:
        error = error_of(file.write_from, b"abc")
    assert (error.errno, error.filename) == (errno.EBADF, str(path))
    assert str(error) == f"[Errno {errno.EBADF}] write {path}: {error.strerror}"
    assert "open it for that" in error.strerror


def test_async_errors_name_the_file(path):
    async def write(file):
        await file.write_from_async(b"abc")

    with sluice.open(path) as file, pytest.raises(sluice.Error) as caught:
        asyncio.run(write(file))
    assert caught.value.filename == str(path)


def test_errors_can_be_pickled():
    """A worker of a DataLoader sends its errors to another process."""
    for error in (sluice.Error(errno.ENOENT, "open /a b: No such file or directory", "/a b"),
                  sluice.Error(errno.EIO, "something")):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert (str(copy), copy.errno, copy.strerror, copy.filename) == (str(error), error.errno, error.strerror, error.filename)
