# SPDX-License-Identifier: BSD-2-Clause
"""libsluice.so.1 through ctypes: finding it, its functions, its errors, and handles freed after their last use."""
import ctypes
import functools
import os
import pathlib
import sys
import threading
from collections.abc import Callable
from ctypes import POINTER, c_char, c_char_p, c_int, c_int64, c_size_t, c_ssize_t, c_uint, c_uint32, c_uint64, c_void_p

NAME = "libsluice.so.1"


class Error(OSError):
    """An error of libsluice, with `errno`, `filename` (if it is about a file) and `strerror`.

    It is also an instance of the class that Python has for its errno: FileNotFoundError, PermissionError and so on. Its
    text says what failed, where, why and what to do; `strerror` is the part of it that follows the path.
    """

    def __new__(cls, code: int, sentence: str, path: str | None = None) -> "Error":
        reason = sentence.partition(f" {path}: ")[2] if path is not None else ""
        error = OSError.__new__(_class_for(code), code, reason or sentence, path)
        error._sentence = sentence
        return error

    _sentence: str

    def __str__(self) -> str:
        return f"[Errno {self.errno}] {self._sentence}"

    def __reduce__(self) -> tuple[type["Error"], tuple[int | None, str, str | None]]:
        return Error, (self.errno, self._sentence, self.filename)


Error.__module__ = "sluice"  # the name that users know


@functools.cache
def _class_for(code: int) -> type[Error]:
    known = type(OSError(code, ""))
    return Error if known is OSError else type("Error", (Error, known), {"__doc__": Error.__doc__, "__module__": "sluice"})


class ResultStruct(ctypes.Structure):
    _fields_ = [("bytes", c_uint64), ("route", c_uint32), ("why", c_uint32), ("in_process", c_uint32),
                ("reserved", c_uint32)]


class QueryStruct(ctypes.Structure):
    _fields_ = [("abi_version", c_uint32), ("kind", c_uint32), ("gpu_uuid", c_char * 16), ("file_size", c_uint64),
                ("route", c_uint32), ("why", c_uint32), ("alignment", c_uint32), ("max_segments", c_uint32),
                ("gpus", c_uint32), ("epoch", c_uint32), ("tier", c_char * 32), ("reason", c_char * 192)]


class SegmentStruct(ctypes.Structure):
    _fields_ = [("buffer_offset", c_uint64), ("file_offset", c_uint64), ("length", c_uint64)]


class TensorStruct(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_char_p), ("shape", POINTER(c_uint64)), ("dimensions", c_uint32),
                ("reserved", c_uint32), ("bytes", c_uint64), ("rows", c_uint64), ("row_bytes", c_uint64), ("file", c_void_p),
                ("file_offset", c_uint64), ("arena_offset", c_uint64)]


class RangeStruct(ctypes.Structure):
    _fields_ = [("path", c_char_p), ("name", c_char_p), ("offset", c_uint64), ("row_bytes", c_uint64), ("rows", c_uint64)]


# The callback's user pointer is a number by which Python finds the request.
CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_ssize_t, POINTER(ResultStruct))
PROGRESS = ctypes.CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64)

_TRANSFER = [c_void_p, c_void_p, c_size_t, c_size_t, c_uint64]
_RECORDS = [c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_size_t, c_uint64, POINTER(ResultStruct)]
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "sluice_open": (c_int, [c_char_p, c_int, c_uint, POINTER(c_void_p)]),
    "sluice_open_fd": (c_int, [c_int, POINTER(c_void_p)]),
    "sluice_close": (None, [c_void_p]),
    "sluice_size": (c_int64, [c_void_p]),
    "sluice_buffer_register": (c_int, [c_void_p, c_size_t, POINTER(c_void_p)]),
    "sluice_buffer_unregister": (None, [c_void_p]),
    "sluice_buffer_unordered": (None, [c_void_p]),
    "sluice_read": (c_ssize_t, [*_TRANSFER, POINTER(ResultStruct)]),
    "sluice_write": (c_ssize_t, [*_TRANSFER, POINTER(ResultStruct)]),
    "sluice_readv": (c_ssize_t, [c_void_p, c_void_p, POINTER(SegmentStruct), c_size_t, POINTER(ResultStruct)]),
    "sluice_gather": (c_ssize_t, _RECORDS),
    "sluice_scatter": (c_ssize_t, _RECORDS),
    "sluice_read_async": (c_int, [*_TRANSFER, CALLBACK, c_void_p]),
    "sluice_write_async": (c_int, [*_TRANSFER, CALLBACK, c_void_p]),
    "sluice_checksum": (c_int, [c_void_p, c_size_t, c_size_t, POINTER(c_uint64)]),
    "sluice_checksum_file": (c_int, [c_void_p, c_uint64, c_uint64, POINTER(c_uint64)]),
    "sluice_prefetch": (c_int, [c_void_p, c_uint64, c_uint64, c_uint32]),
    "sluice_query_file": (c_int, [c_void_p, c_void_p, POINTER(QueryStruct)]),
    "sluice_model_open": (c_int, [c_char_p, POINTER(c_void_p)]),
    "sluice_model_open_ranges": (c_int, [POINTER(RangeStruct), c_size_t, POINTER(c_void_p)]),
    "sluice_model_select": (c_int, [c_void_p, POINTER(c_char_p), c_size_t, POINTER(c_void_p)]),
    "sluice_model_close": (None, [c_void_p]),
    "sluice_model_count": (c_size_t, [c_void_p]),
    "sluice_model_tensor": (POINTER(TensorStruct), [c_void_p, c_size_t]),
    "sluice_model_arena": (c_uint64, [c_void_p]),
    "sluice_model_load": (c_ssize_t, [c_void_p, c_void_p, c_size_t, PROGRESS, c_void_p, POINTER(ResultStruct)]),
    "sluice_map": (c_int, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "sluice_map_begin": (c_int, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "sluice_map_wait": (c_int, [c_void_p]),
    "sluice_mapping_address": (c_void_p, [c_void_p]),
    "sluice_mapping_size": (c_uint64, [c_void_p]),
    "sluice_unmap": (None, [c_void_p]),
    "sluice_route_name": (c_char_p, [c_uint32]),
    "sluice_why_text": (c_char_p, [c_uint32]),
    "sluice_error": (c_char_p, []),
    "sluice_version": (c_char_p, []),
}


def _candidates() -> list[str]:
    given = os.environ.get("SLUICE_LIBRARY")
    if given:
        return [given]  # nothing else is tried
    package = pathlib.Path(__file__).parent
    folders = [package, package / "lib", pathlib.Path(sys.prefix) / "lib", pathlib.Path("/usr/local/lib")]
    return [str(folder / NAME) for folder in folders if (folder / NAME).exists()] + [NAME]


def declare(lib: ctypes.CDLL, functions: dict[str, tuple[object, list[object]]]) -> ctypes.CDLL:
    """Tells ctypes the types of functions: result, and arguments."""
    for name, (result, arguments) in functions.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


@functools.cache
def library() -> ctypes.CDLL:
    """Returns libsluice, which is loaded when first needed."""
    failures = []
    for path in _candidates():
        try:
            lib = ctypes.CDLL(path)
        except OSError as error:
            failures.append(str(error))
            continue
        return declare(lib, _FUNCTIONS)
    raise ImportError(f"{NAME} can't be loaded ({'; '.join(failures)}); "
                      "install Sluice, or set SLUICE_LIBRARY to the path of the library")


def beside(name: str) -> ctypes.CDLL:
    """Another library of Sluice, from where libsluice is."""
    return ctypes.CDLL(os.path.join(os.path.dirname(library()._name), name))


def library_version() -> str:
    """The version of the libsluice that is used, such as "0.1.0"."""
    return str(library().sluice_version().decode())


def last_error(code: int, path: str | None = None) -> Error:
    """The error of the call that just returned the negative `code` in this thread. `path` is the file that it was about."""
    return Error(-code, os.fsdecode(library().sluice_error()), path)


def check(code: int, path: str | None = None) -> int:
    if code < 0:
        raise last_error(code, path)
    return code


class Handle:
    """A handle of libsluice. Any thread may use it (`with handle as raw`), and any thread may close it. It is freed when
    its last use ends, and `keep` is released then."""

    def __init__(self, raw: int, free: Callable[[int], None], what: str, keep: object = None) -> None:
        self._raw, self._free, self._what, self._keep = raw, free, what, keep
        self._lock = threading.Lock()
        self._uses = 0
        self._closed = False
        self._process = os.getpid()

    def __enter__(self) -> int:
        if self._process != os.getpid():
            raise ValueError(f"{self._what} belongs to the process that created it; create it again after a fork")
        with self._lock:
            if self._closed:
                raise ValueError(f"{self._what} is closed")
            self._uses += 1
        return self._raw

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._uses -= 1
            is_last = self._closed and self._uses == 0
        if is_last:
            self._end()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        if self._process != os.getpid():
            return  # it is the parent's, and locks may be held
        with self._lock:
            is_last = not self._closed and self._uses == 0
            self._closed = True
        if is_last:
            self._end()

    def _end(self) -> None:
        self._free(self._raw)
        self._keep = None
