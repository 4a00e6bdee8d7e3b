# SPDX-License-Identifier: BSD-2-Clause
"""The Python module `hf3fs_fuse.io` of 3FS, for files on a Sluice mount and any other file.

vLLM, SGLang and LMCache import it for their 3FS connectors. install() makes it importable under that name, behind a real
3FS: if one is installed, Python finds that first. SLUICE_HF3FS=1 in the environment does the same in every process.
docs/rings.md describes how this differs from 3FS.
"""
import ctypes
import datetime
import functools
import importlib.abc
import importlib.machinery
import itertools
import os
import sys
import threading
import time
import types
import uuid
from collections.abc import Sequence
from ctypes import POINTER, c_bool, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

from .._library import Error, beside, declare

__all__ = ["deregister_fd", "extract_mount_point", "ioring", "iovec", "make_ioring", "make_iovec", "register_fd"]
_PATIENCE_S = 0.2  # how long a wait goes on before Python can handle signals


class _IovStruct(ctypes.Structure):
    _fields_ = [("base", c_void_p), ("iovh", c_void_p), ("id", c_char * 16), ("mount_point", c_char * 256),
                ("size", c_size_t), ("block_size", c_size_t), ("numa", c_int)]


class _IorStruct(ctypes.Structure):
    _fields_ = [("iov", _IovStruct), ("iorh", c_void_p), ("mount_point", c_char * 256), ("for_read", c_bool),
                ("io_depth", c_int), ("priority", c_int), ("timeout", c_int), ("flags", c_uint64)]


class _CqeStruct(ctypes.Structure):
    _fields_ = [("index", c_int32), ("reserved", c_int32), ("result", c_int64), ("userdata", c_void_p)]


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", c_int64), ("nanoseconds", c_int64)]


_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "hf3fs_error": (c_char_p, []),
    "hf3fs_extract_mount_point": (c_int, [c_char_p, c_int, c_char_p]),
    "hf3fs_iovwrap": (c_int, [POINTER(_IovStruct), c_void_p, c_char_p, c_char_p, c_size_t, c_size_t, c_int]),
    "hf3fs_iovdestroy": (None, [POINTER(_IovStruct)]),
    "hf3fs_ior_size": (c_size_t, [c_int]),
    "hf3fs_iorcreate4": (c_int, [POINTER(_IorStruct), c_char_p, c_int, c_bool, c_int, c_int, c_int, c_uint64]),
    "hf3fs_iordestroy": (None, [POINTER(_IorStruct)]),
    "hf3fs_reg_fd": (c_int, [c_int, c_uint64]),
    "hf3fs_dereg_fd": (None, [c_int]),
    "hf3fs_prep_io": (c_int, [POINTER(_IorStruct), POINTER(_IovStruct), c_bool, c_void_p, c_int, c_size_t, c_uint64, c_void_p]),
    "hf3fs_submit_ios": (c_int, [POINTER(_IorStruct)]),
    "hf3fs_wait_for_ios": (c_int, [POINTER(_IorStruct), POINTER(_CqeStruct), c_int, c_int, POINTER(_Timespec)]),
}


@functools.cache
def _lib() -> ctypes.CDLL:
    return declare(beside("libsluice_hf3fs.so.1"), _FUNCTIONS)


def check(code: int) -> int:
    if code < 0:
        raise Error(-code, os.fsdecode(_lib().hf3fs_error()))
    return code


def _encoded(mount_point: str | None) -> bytes:
    if mount_point is None:  # as extract_mount_point() returned it
        raise ValueError("hf3fs_mount_point is None: the path that it was looked up for is not on a Sluice mount")
    return os.fsencode(mount_point)


class _Memory:
    """The memory of an iovec and of its slices; it ends with the last of them."""

    def __init__(self, view: Any, mount_point: str | None, block_size: int, numa: int) -> None:
        # The array holds the buffer, so shm.close() raises BufferError while requests could still use the memory.
        self._array = (c_char * len(view)).from_buffer(view)
        self.address, self.size = ctypes.addressof(self._array), len(view)
        self.struct = _IovStruct()
        self._process = os.getpid()
        check(_lib().hf3fs_iovwrap(ctypes.byref(self.struct), self.address, uuid.uuid4().bytes, _encoded(mount_point),
                                   self.size, block_size, numa))

    def __del__(self) -> None:
        if self.struct.iovh and self._process == os.getpid():
            _lib().hf3fs_iovdestroy(ctypes.byref(self.struct))


class iovec:
    """Shared memory, or a slice of it: iov[offset:offset + length]. `result` is the number of bytes of its last request, or
    a negative errno."""

    def __init__(self, memory: _Memory, start: int, size: int) -> None:
        self._memory, self.base_off, self.size = memory, start, size
        self.result = 0
        self.userdata: Any = None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> "iovec":
        start, stop, step = part.indices(self.size)
        if step != 1:
            raise ValueError(f"a slice of an iovec must have step 1, not {step}")
        return iovec(self._memory, self.base_off + start, max(stop - start, 0))


class ioring:
    """A queue of requests: prepare() them, submit(), wait(). One thread may prepare and submit while another one waits."""

    def __init__(self, mount_point: str | None, entries: int, for_read: bool, io_depth: int, timeout: int, numa: int,
                 flags: int) -> None:
        self._struct = _IorStruct()
        self._process = os.getpid()
        # Requests in progress keep their memory and what the caller passed with them. By a number that is used once: an
        # index belongs to the next request as soon as the library has returned the last one.
        self._waiting: dict[int, tuple[iovec, Any]] = {}
        self._numbers = itertools.count(1)
        self._cqes = (_CqeStruct * 0)()
        self._done: list[iovec] = []  # and not yet returned
        self._lock = threading.Lock()
        check(_lib().hf3fs_iorcreate4(ctypes.byref(self._struct), _encoded(mount_point), entries, for_read, io_depth,
                                      timeout, numa, flags))
        self.entries = entries

    def __del__(self) -> None:
        if self._struct.iorh and self._process == os.getpid():
            _lib().hf3fs_iordestroy(ctypes.byref(self._struct))  # waits for requests in progress

    @staticmethod
    def size_for_entries(entries: int) -> int:
        return int(_lib().hf3fs_ior_size(entries))

    def prepare(self, iov: iovec, read: bool, fd: int, off: int, userdata: Any = None) -> "ioring":
        """Queues a request for all bytes of `iov`, at offset `off` of a registered descriptor."""
        memory = iov._memory
        with self._lock:
            number = next(self._numbers)
            check(_lib().hf3fs_prep_io(ctypes.byref(self._struct), ctypes.byref(memory.struct), read,
                                       memory.address + iov.base_off, fd, off, iov.size, number))
            self._waiting[number] = iov, userdata
        return self

    def submit(self) -> "ioring":
        check(_lib().hf3fs_submit_ios(ctypes.byref(self._struct)))
        return self

    def wait(self, *, max_results: int = 0, min_results: int = 0,
             timeout: datetime.timedelta | float | None = None) -> list[iovec]:
        """Returns the slices whose requests are done: at least `min_results`, or fewer if `timeout` has passed."""
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
        deadline = None if seconds is None else time.time() + seconds
        most = max(max_results, min_results, 1)
        self._take()
        self._cqes = (_CqeStruct * most)()
        while True:
            now = time.time()
            limit = now + _PATIENCE_S if deadline is None else min(deadline, now + _PATIENCE_S)
            left = max(most - len(self._done), 0)
            count = _lib().hf3fs_wait_for_ios(ctypes.byref(self._struct), self._cqes, left,
                                              max(min(min_results - len(self._done), left), 0),
                                              ctypes.byref(_Timespec(int(limit), int(limit % 1 * 1e9)))) if left else 0
            if count < 0 and not self._done:
                check(count)
            self._take()
            # An error after some results is raised by the next call.
            if count < 0 or len(self._done) >= min_results or (deadline is not None and time.time() >= deadline):
                done, self._done = self._done[:most], self._done[most:]
                return done

    def _take(self) -> None:
        """Takes over what the library has returned. An exception of a signal handler may have ended a wait before that; the
        next one then has the results."""
        with self._lock:
            for cqe in self._cqes:
                if not cqe.userdata:
                    break  # nothing was ever put here
                found = self._waiting.pop(cqe.userdata, None)
                if found is not None:  # not taken over before
                    iov, userdata = found
                    iov.result, iov.userdata = cqe.result, userdata
                    self._done.append(iov)


def extract_mount_point(path: str | os.PathLike[str]) -> str | None:
    """Returns the mount point of the Sluice mount that contains `path`; None if none does."""
    point = ctypes.create_string_buffer(4096)
    length = _lib().hf3fs_extract_mount_point(point, len(point), os.fsencode(path))
    return os.fsdecode(point.value) if 0 < length <= len(point) else None


def register_fd(fd: int, flags: int = 0) -> None:
    """Makes a descriptor usable in prepare(). Call deregister_fd() before it is closed."""
    check(min(-_lib().hf3fs_reg_fd(fd, flags), 0))


def deregister_fd(fd: int) -> None:
    _lib().hf3fs_dereg_fd(fd)


def make_iovec(shm: Any, hf3fs_mount_point: str | None, block_size: int = 0, numa: int = -1) -> iovec:
    """Makes the memory of a multiprocessing.shared_memory.SharedMemory usable in prepare()."""
    memory = _Memory(shm.buf, hf3fs_mount_point, block_size, numa)
    return iovec(memory, 0, memory.size)


def make_ioring(hf3fs_mount_point: str | None, entries: int, for_read: bool = True, io_depth: int = 0, priority: int | None = None,
                timeout: int | None = None, numa: int = -1, flags: int = 0) -> ioring:
    """Makes a ring for at most `entries` requests at once. `io_depth`, `priority`, `timeout` and `numa` are ignored."""
    return ioring(hf3fs_mount_point, entries, for_read, io_depth, timeout or 0, numa, flags)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Provides `hf3fs_fuse` and `hf3fs_fuse.io`. It is the last finder, so a real 3FS comes first."""

    def find_spec(self, fullname: str, path: Sequence[str] | None,
                  target: types.ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        parent = sys.modules.get("hf3fs_fuse")
        if fullname == "hf3fs_fuse" or (fullname == "hf3fs_fuse.io" and parent is not None and parent.__loader__ is self):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=fullname == "hf3fs_fuse")
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "hf3fs_fuse.io":
            module.__dict__.update({name: globals()[name] for name in __all__}, __doc__=__doc__)


_FINDER = _Finder()


def install() -> None:
    """Makes `import hf3fs_fuse.io` give this module, unless a 3FS is installed."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)
