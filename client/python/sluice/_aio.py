# SPDX-License-Identifier: BSD-2-Clause
"""Writes to a file that go on while their thread does something else.

On a mount, the kernel does one pwrite() to a file at a time. An asynchronous write holds up others only while it starts.
Neither Python nor libc has functions for that, so the numbers of the system calls are here.
"""
import contextlib
import ctypes
import errno
import fcntl
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
    """Writes to an open file, one at a time, for one thread. Where there are no asynchronous writes (another machine, a
    container that forbids them, too many in the system), each is done when it is started.

    Some filesystems refuse writes with O_DIRECT, though not the open: it is ended for the file then, also for others.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._calls = _CALLS.get(platform.machine())
        self._context = ctypes.c_ulong()
        if self._calls and self._call(self._calls.setup, ctypes.c_long(1), ctypes.byref(self._context)) < 0:
            self._calls = None
        self._data = memoryview(b"")  # of the write that was started
        self._offset = self._flags = 0
        self._is_under_way = False
        self._done: int | OSError = 0  # of a write that is not under way: how many bytes, or why none

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self._wait()
        if self._calls:
            # The kernel takes tens of milliseconds, for which nobody should wait. No thread can be started when the
            # interpreter ends, and the kernel does it then.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._call, args=(self._calls.destroy, self._context), name="sluice-save-end").start()

    def start(self, data: memoryview, offset: int) -> None:
        """Starts a write after the last one is finished. The memory must not change until then. It must be writable, which
        ctypes wants."""
        self._data, self._offset = data, offset
        self._flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)  # before: another thread may end O_DIRECT meanwhile
        if self._calls:
            request = _Request(opcode=_PWRITE, descriptor=self._descriptor, offset=offset, length=len(data),
                               address=ctypes.addressof(ctypes.c_ubyte.from_buffer(data)))
            requests = (ctypes.c_void_p * 1)(ctypes.addressof(request))
            self._is_under_way = self._call(self._calls.submit, self._context, ctypes.c_long(1), requests) == 1
            if self._is_under_way:
                return
            if ctypes.get_errno() != errno.EAGAIN:  # which means that the kernel is short of something that only these need
                self._done = self._error(ctypes.get_errno())
                return
        try:
            self._done = os.pwrite(self._descriptor, data, offset)
        except OSError as error:
            self._done = error

    def finish(self) -> None:
        """Returns when all bytes of the write are in the file."""
        while len(self._data) > 0:
            self._wait()
            if isinstance(self._done, OSError):
                if self._done.errno not in (errno.EINVAL, errno.EFAULT) or not self._flags & os.O_DIRECT:
                    raise self._done
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, self._flags & ~os.O_DIRECT)
                self._done = 0
            self._data = self._data[self._done:]
            if len(self._data) > 0:
                self.start(self._data, self._offset + self._done)

    def _wait(self) -> None:
        event = _Event()
        # A signal ends the call, but not the write, which needs the memory until its end.
        while self._is_under_way:
            arguments = self._context, ctypes.c_long(1), ctypes.c_long(1), ctypes.byref(event), None
            if self._calls and self._call(self._calls.events, *arguments) == 1:
                self._is_under_way = False
                self._done = int(event.result) if event.result >= 0 else self._error(-event.result)
            elif ctypes.get_errno() != errno.EINTR:
                raise self._error(ctypes.get_errno())

    def _call(self, number: int, *arguments: object) -> int:
        return int(self._libc.syscall(ctypes.c_long(number), *arguments))

    @staticmethod
    def _error(code: int) -> OSError:
        return OSError(code, os.strerror(code))
