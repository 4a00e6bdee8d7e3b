# SPDX-License-Identifier: BSD-2-Clause
"""Writes of several threads to one file that do not wait for each other.

On a mount, the kernel does one pwrite() to a file at a time. An asynchronous write holds up others only while it starts.
Neither Python nor libc has functions for that, so the numbers of the system calls are here.
"""
import contextlib
import ctypes
import errno
import os
import platform
import threading
from typing import NamedTuple


class _Calls(NamedTuple):
    setup: int
    destroy: int
    events: int
    submit: int


_CALLS = {"x86_64": _Calls(206, 207, 208, 209), "aarch64": _Calls(0, 1, 4, 2)}
_PWRITE = 1


class _Request(ctypes.Structure):  # struct iocb
    _fields_ = [("data", ctypes.c_uint64), ("key", ctypes.c_uint32), ("rw_flags", ctypes.c_uint32),
                ("opcode", ctypes.c_uint16), ("priority", ctypes.c_int16), ("descriptor", ctypes.c_uint32),
                ("address", ctypes.c_uint64), ("length", ctypes.c_uint64), ("offset", ctypes.c_int64),
                ("reserved", ctypes.c_uint64), ("flags", ctypes.c_uint32), ("event_descriptor", ctypes.c_uint32)]


class _Event(ctypes.Structure):  # struct io_event
    _fields_ = [("data", ctypes.c_uint64), ("request", ctypes.c_uint64), ("result", ctypes.c_int64),
                ("result2", ctypes.c_int64)]


class Writer:
    """For one thread. Where there are no such writes (another machine, a container that forbids them, too many in the
    system), it does what pwrite() does."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._calls = _CALLS.get(platform.machine())
        self._context = ctypes.c_ulong()
        if self._calls and self._call(self._calls.setup, ctypes.c_long(1), ctypes.byref(self._context)) < 0:
            self._calls = None

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        if self._calls:
            # The kernel takes tens of milliseconds, for which nobody should wait. No thread can be started when the
            # interpreter ends, and the kernel does it then.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._call, args=(self._calls.destroy, self._context), name="sluice-save-end").start()

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        """Like os.pwrite(). The memory must be writable, which ctypes wants."""
        if not self._calls:
            return os.pwrite(descriptor, data, offset)
        request = _Request(opcode=_PWRITE, descriptor=descriptor, offset=offset, length=len(data),
                           address=ctypes.addressof(ctypes.c_ubyte.from_buffer(data)))
        requests = (ctypes.c_void_p * 1)(ctypes.addressof(request))
        if self._call(self._calls.submit, self._context, ctypes.c_long(1), requests) != 1:
            if ctypes.get_errno() == errno.EAGAIN:  # the kernel is short of something that only these need
                return os.pwrite(descriptor, data, offset)
            raise self._error(ctypes.get_errno())
        event = _Event()
        # A signal ends the call, but not the write, which needs the memory until its end.
        while self._call(self._calls.events, self._context, ctypes.c_long(1), ctypes.c_long(1), ctypes.byref(event), None) != 1:
            if ctypes.get_errno() != errno.EINTR:
                raise self._error(ctypes.get_errno())
        if event.result < 0:
            raise self._error(-event.result)
        return int(event.result)

    def _call(self, number: int, *arguments: object) -> int:
        return int(self._libc.syscall(ctypes.c_long(number), *arguments))

    @staticmethod
    def _error(code: int) -> OSError:
        return OSError(code, os.strerror(code))
