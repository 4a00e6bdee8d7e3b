# SPDX-License-Identifier: BSD-2-Clause
"""Writes to a file that go on while their thread does something else.

On a mount, the kernel does one pwrite() to a file at a time. An asynchronous write holds up others only while it starts.
Neither Python nor libc has functions for that, so the numbers of the system calls are here.
"""
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


class Write:
    """A write that a Writer has started."""

    def __init__(self, data: memoryview, offset: int) -> None:
        self.data, self.offset = data, offset  # what is not yet known to be in the file
        self.flags = 0  # of the file when it was started
        self.done: int | OSError = 0  # when it is not under way: how many bytes, or why none


class Writer:
    """Writes to an open file, up to `most` at a time, for one thread. Where there are no asynchronous writes (another machine,
    a container that forbids them, too many in the system), each is done when it is started.

    Some filesystems refuse writes with O_DIRECT, but not the open: it is then turned off for the file, also for others.
    """

    def __init__(self, descriptor: int, most: int) -> None:
        self._descriptor = descriptor
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._calls = _CALLS.get(platform.machine())
        self._context = ctypes.c_ulong()
        if self._calls and self._call(self._calls.setup, ctypes.c_long(most), ctypes.byref(self._context)) < 0:
            self._calls = None
        self._under_way: dict[int, Write] = {}

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        while self._under_way:
            self._wait()
        if self._calls:
            # The kernel takes tens of milliseconds, for which nobody should wait.
            arguments = self._calls.destroy, self._context
            try:
                threading.Thread(target=self._call, args=arguments, name="sluice-save-end").start()
            except RuntimeError:  # there can be no more threads, or the interpreter ends
                self._call(*arguments)

    def start(self, data: memoryview, offset: int) -> Write:
        """Starts a write. The memory must not change until it is finished. It must be writable: ctypes requires it."""
        write = Write(data, offset)
        self._submit(write)
        return write

    def finish(self, write: Write) -> None:
        """Returns when all bytes of the write are in the file."""
        while len(write.data) > 0:
            while id(write) in self._under_way:
                self._wait()
            if isinstance(write.done, OSError):
                if write.done.errno not in (errno.EINVAL, errno.EFAULT) or not write.flags & os.O_DIRECT:
                    raise write.done
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, write.flags & ~os.O_DIRECT)
                write.done = 0
            write.data, write.offset = write.data[write.done:], write.offset + write.done
            if len(write.data) > 0:
                self._submit(write)

    def _submit(self, write: Write) -> None:
        write.flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)  # before: another thread may end O_DIRECT meanwhile
        if self._calls:
            request = _Request(data=id(write), opcode=_PWRITE, descriptor=self._descriptor, offset=write.offset,
                               length=len(write.data), address=ctypes.addressof(ctypes.c_ubyte.from_buffer(write.data)))
            requests = (ctypes.c_void_p * 1)(ctypes.addressof(request))
            if self._call(self._calls.submit, self._context, ctypes.c_long(1), requests) == 1:
                self._under_way[id(write)] = write
                return
            if ctypes.get_errno() != errno.EAGAIN:  # which means that the kernel is short of something that only these need
                write.done = self._error(ctypes.get_errno())
                return
        try:
            write.done = os.pwrite(self._descriptor, write.data, write.offset)
        except OSError as error:
            write.done = error

    def _wait(self) -> None:
        """Waits for any write. A signal ends the wait, but not the write, which needs the memory until its end."""
        event = _Event()
        arguments = self._context, ctypes.c_long(1), ctypes.c_long(1), ctypes.byref(event), None
        if self._calls and self._call(self._calls.events, *arguments) == 1:
            self._under_way.pop(event.data).done = int(event.result) if event.result >= 0 else self._error(-event.result)
        elif ctypes.get_errno() != errno.EINTR:
            raise self._error(ctypes.get_errno())

    def _call(self, number: int, *arguments: object) -> int:
        return int(self._libc.syscall(ctypes.c_long(number), *arguments))

    @staticmethod
    def _error(code: int) -> OSError:
        return OSError(code, os.strerror(code))
