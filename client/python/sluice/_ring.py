# SPDX-License-Identifier: BSD-2-Clause
"""Rings: many small requests in progress at once, without a system call for each. docs/rings.md is the guide."""
import ctypes
import errno
import functools
import os
import struct
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_int, c_long, c_size_t, c_uint, c_uint64, c_void_p
from typing import NamedTuple

from ._file import Buffer, File, _whole
from ._library import Error, Handle, check, declare, library
from ._memory import Memory

_IN_PROCESS = 1
_PATIENCE_S = 0.2  # how long a wait goes on before Python can handle signals


_COMPLETION = struct.Struct("=QqIIQ")  # user_data, result, route, why, flags


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", c_long), ("nanoseconds", c_long)]


_REQUEST: list[object] = [c_void_p, c_int, c_int, c_uint64, c_uint64, c_uint64, c_uint64]
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "sluice_ring_create": (c_int, [c_uint, POINTER(c_void_p)]),
    "sluice_ring_create_in_process": (c_int, [c_uint, POINTER(c_void_p)]),
    "sluice_ring_destroy": (None, [c_void_p]),
    "sluice_ring_add_file": (c_int, [c_void_p, c_void_p]),
    "sluice_ring_drop_file": (c_int, [c_void_p, c_int]),
    "sluice_ring_add_buffer": (c_int, [c_void_p, c_void_p]),
    "sluice_ring_drop_buffer": (c_int, [c_void_p, c_int]),
    "sluice_ring_read": (c_int, _REQUEST),
    "sluice_ring_write": (c_int, _REQUEST),
    "sluice_ring_submit": (c_int, [c_void_p]),
    "sluice_ring_wait": (c_int, [c_void_p, c_void_p, c_uint, c_uint, POINTER(_Timespec)]),
    "sluice_ring_eventfd": (c_int, [c_void_p]),
    "sluice_buffer_create": (c_int, [c_size_t, POINTER(c_void_p)]),
    "sluice_buffer_memory": (c_void_p, [c_void_p]),
}


@functools.cache
def _lib() -> ctypes.CDLL:
    return declare(library(), _FUNCTIONS)


class Completion(NamedTuple):
    user_data: int
    result: int  # bytes, fewer than requested only at the end of the file; or a negative errno
    route: int  # enum sluice_route
    in_process: bool  # True: by this process; False: by the daemon of the mount


class SharedBuffer(Buffer):
    """Host memory that the daemon of a mount can use too: the daemon does the requests of a ring for it. `memory` is its
    bytes. They are freed with the buffer and the last view of them."""

    def __init__(self, length: int) -> None:
        raw = c_void_p()
        check(_lib().sluice_buffer_create(_whole(length, "length"), ctypes.byref(raw)))
        address = int(_lib().sluice_buffer_memory(raw))
        array = (ctypes.c_ubyte * length).from_address(address)
        # What has a view of the array has the memory.
        weakref.finalize(array, _free, raw.value or 0, os.getpid()).atexit = False
        self.memory = memoryview(array).cast("B")
        self._handle = Handle(raw.value or 0, lambda _: None, "the buffer", keep=Memory(address, length, array))
        self._target = None
        self._place = address, length

    def close(self) -> None:
        self.memory = memoryview(b"")
        super().close()


def _free(raw: int, process: int) -> None:
    if process == os.getpid():
        _lib().sluice_buffer_unregister(raw)


def _destroy(files: dict[int, File], buffers: dict[int, Buffer], raw: int) -> None:
    _lib().sluice_ring_destroy(raw)
    handles = [file._handle for file in files.values()] + [buffer._handle for buffer in buffers.values()]
    for handle in handles:
        handle.__exit__()


class Ring:
    """A ring for at most `entries` requests at once.

        ring = Ring(128)
        file, buffer = ring.add_file(sluice.open(path)), ring.add_buffer(SharedBuffer(1 << 20))
        for i in range(128):
            ring.read(file, buffer, i * 4096, 4096, offsets[i], user_data=i)
        ring.submit()
        for done in ring.wait(128):
            print(done.user_data, done.result)

    The ring keeps files and buffers until they are dropped or it is closed. Requests may be done in any order. Any thread
    may call any method, but one ring per thread is faster. A ring belongs to the process that made it. With `in_process` it
    does all requests itself, and the ring keeps no file open that was dropped.
    """

    def __init__(self, entries: int = 128, in_process: bool = False) -> None:
        raw = c_void_p()
        create = _lib().sluice_ring_create_in_process if in_process else _lib().sluice_ring_create
        check(create(_whole(entries, "entries"), ctypes.byref(raw)))
        self._files: dict[int, File] = {}
        self._buffers: dict[int, Buffer] = {}
        self._queued: set[int] = set()  # buffers of requests that were not submitted yet
        self._lock = threading.Lock()
        # Not a method, which would keep the ring itself.
        self._handle = Handle(raw.value or 0, functools.partial(_destroy, self._files, self._buffers), "the ring")

    def __enter__(self) -> "Ring":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._handle.close()

    def close(self) -> None:
        """Waits for requests in progress. Requests that have not started are dropped."""
        self._handle.close()

    def add_file(self, file: File) -> int:
        """Returns the number of the file in this ring. The file may be closed; the ring uses it until drop_file()."""
        with self._handle as ring, self._lock:
            raw = file._handle.__enter__()
            number = int(_lib().sluice_ring_add_file(ring, raw))
            if number < 0:
                file._handle.__exit__()
            self._files[check(number, file.path)] = file
            return number

    def add_buffer(self, buffer: Buffer) -> int:
        """Returns the number of the buffer in this ring. Add a file of the mount first: the daemon does requests only for
        buffers that were added after it."""
        if len(buffer) == 0:
            raise ValueError("the buffer is empty")
        with self._handle as ring, self._lock:
            raw = buffer._handle.__enter__()
            number = int(_lib().sluice_ring_add_buffer(ring, raw))
            if number < 0:
                buffer._handle.__exit__()
            self._buffers[check(number)] = buffer
            return number

    def drop_file(self, number: int) -> None:
        """Ends the use of a file. None of its requests may be in progress."""
        with self._handle as ring, self._lock:
            check(_lib().sluice_ring_drop_file(ring, number))
            self._files.pop(number)._handle.__exit__()

    def drop_buffer(self, number: int) -> None:
        """Ends the use of a buffer. None of its requests may be in progress."""
        with self._handle as ring, self._lock:
            check(_lib().sluice_ring_drop_buffer(ring, number))
            self._queued.discard(number)
            self._buffers.pop(number)._handle.__exit__()

    def read(self, file: int, buffer: int, buffer_offset: int, length: int, file_offset: int, user_data: int = 0) -> None:
        """Queues a request, which starts with submit(). BlockingIOError: `entries` requests are in progress; wait() first."""
        self._put(_lib().sluice_ring_read, file, buffer, buffer_offset, length, file_offset, user_data)

    def write(self, file: int, buffer: int, buffer_offset: int, length: int, file_offset: int, user_data: int = 0) -> None:
        """Like read(), from the buffer to the file."""
        self._put(_lib().sluice_ring_write, file, buffer, buffer_offset, length, file_offset, user_data)

    def read_many(self, file: int, buffer: int, segments: Sequence[tuple[int, int, int]], user_data: int = 0) -> int:
        """Queues reads of (buffer_offset, length, file_offset), with user_data, user_data + 1 and so on. Returns the number
        of those that had room in the ring."""
        read = _lib().sluice_ring_read
        with self._handle as ring, self._lock:
            self._queued.add(buffer)
            for count, (buffer_offset, length, file_offset) in enumerate(segments):
                code = read(ring, file, buffer, buffer_offset, length, file_offset, user_data + count)
                if code == -errno.EAGAIN:
                    return count
                check(code)
        return len(segments)

    def _put(self, function: Callable[..., int], file: int, buffer: int, *numbers: int) -> None:
        with self._handle as ring, self._lock:
            check(function(ring, file, buffer, *numbers))
            self._queued.add(buffer)

    def submit(self) -> int:
        """Starts the queued requests, after the GPU work queued so far on the buffers they use. Returns their number."""
        with self._handle as ring:
            # With the lock: what another thread queues meanwhile must not start before its GPU work.
            with self._lock:
                queued, self._queued = self._queued, set()
                for memory in [self._buffers[number]._again() for number in queued if number in self._buffers]:
                    if memory.wait:
                        memory.wait()
                return check(_lib().sluice_ring_submit(ring))

    def wait(self, least: int = 1, most: int | None = None, timeout: float | None = None) -> list[Completion]:
        """Returns at least `least` completions, and at most `most`. With `least` 0 it does not wait. TimeoutError: none
        arrived in `timeout` seconds; if only some arrived, they are returned."""
        most = max(least, 64) if most is None else most
        view = memoryview(bytearray(most * _COMPLETION.size))
        array = ctypes.c_ubyte.from_buffer(view)
        deadline = None if timeout is None else time.monotonic() + timeout
        found: list[Completion] = []
        with self._handle as ring:
            while True:
                left = _PATIENCE_S if deadline is None else min(max(deadline - time.monotonic(), 0), _PATIENCE_S)
                limit = _Timespec(0, int(left * 1e9))
                try:
                    count = check(_lib().sluice_ring_wait(ring, ctypes.byref(array), most - len(found),
                                                          max(least - len(found), 0), ctypes.byref(limit)))
                except TimeoutError:
                    count = 0
                    if deadline is not None and time.monotonic() >= deadline and not found:
                        raise
                except Error:
                    if found:  # the next call raises it
                        return found
                    raise
                for user_data, result, route, _, flags in _COMPLETION.iter_unpack(view[:count * _COMPLETION.size]):
                    found.append(Completion(user_data, result, route, flags & _IN_PROCESS != 0))
                if len(found) >= least or (deadline is not None and time.monotonic() >= deadline):
                    return found

    def eventfd(self) -> int:
        """Returns a descriptor that becomes readable when completions have arrived since it was last read. The ring closes
        it."""
        with self._handle as ring:
            return check(_lib().sluice_ring_eventfd(ring))
