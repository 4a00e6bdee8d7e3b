# SPDX-License-Identifier: BSD-2-Clause
"""Files, and the buffers they are read into and written from."""
import asyncio
import atexit
import contextlib
import ctypes
import dataclasses
import errno
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ._library import CALLBACK, Error, Handle, QueryStruct, ResultStruct, SegmentStruct, check, last_error, library
from ._memory import Memory, memory_of

_LARGEST = 2**63 - 1
_PREFETCH_WARM, _PREFETCH_PROMOTE, _PREFETCH_HBM = 1, 2, 4
_MODES = {"r": os.O_RDONLY, "r+": os.O_RDWR, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
          "w+": os.O_RDWR | os.O_CREAT | os.O_TRUNC, "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
          "x+": os.O_RDWR | os.O_CREAT | os.O_EXCL}


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a request. `bytes` is less than requested only at the end of the file."""
    bytes: int
    route: str  # how the bytes travelled: "staged", "mapped", "host", ...
    why: str  # the reason for that route
    in_process: bool  # True: by this process; False: by the daemon of the mount


@dataclasses.dataclass(frozen=True)
class Route:
    """The route that a large read would take."""
    route: str
    why: str
    reason: str  # a sentence, including why not a faster route
    tier: str | None  # the file's tier; None if it is not on a Sluice mount
    alignment: int  # of the disk; requests need none


def _whole(value: Any, name: str) -> int:
    try:
        number = value.__index__()
    except AttributeError:
        raise TypeError(f"{name} must be a whole number of bytes, not {type(value).__name__}") from None
    if not 0 <= number <= _LARGEST:
        raise ValueError(f"{name} must be between 0 and 2**63 - 1, not {number}")
    return int(number)


def _result(done: int, struct: ResultStruct) -> Result:
    lib = library()
    return Result(done, lib.sluice_route_name(struct.route).decode(), lib.sluice_why_text(struct.why).decode(),
                  struct.in_process != 0)


class Buffer:
    """Registered memory, returned by register(). It can be used wherever a tensor or an array can."""

    def __init__(self, memory: Memory, target: Any = None) -> None:
        raw = ctypes.c_void_p()
        if memory.length > 0:
            check(library().sluice_buffer_register(memory.address, memory.length, ctypes.byref(raw)))
            if memory.wait:  # each request calls it, for the right stream and only for the work queued before
                library().sluice_buffer_unordered(raw)
        # The handle keeps the memory until the last request is done, even after close().
        self._handle = Handle(raw.value or 0, _unregister, "the buffer", keep=memory)
        self._target = target
        self._place = memory.address, memory.length

    def __len__(self) -> int:
        """In bytes."""
        return self._place[1]

    def __enter__(self) -> "Buffer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def checksum(self, offset: int = 0, length: int | None = None) -> int:
        """Returns the checksum of the bytes in the buffer; see sluice.checksum()."""
        return checksum(self, offset, length)

    def close(self) -> None:
        """Releases the memory. Requests in progress keep it until they are done."""
        self._target = None
        self._handle.close()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._handle.close()

    def _again(self) -> Memory:
        """Returns the memory for one request, which must wait for the GPU work queued on it so far."""
        if self._target is None:
            return Memory(*self._place, owner=None)
        memory = memory_of(self._target, writable=True)
        if (memory.address, memory.length) != self._place:
            raise ValueError("the registered tensor has moved to other memory; register() it again")
        return memory


def _unregister(raw: int) -> None:
    if raw:
        library().sluice_buffer_unregister(raw)


def register(target: Any) -> Buffer:
    """Registers a tensor or an array once, for many requests:

        with sluice.register(tensor) as buffer:
            for offset in offsets:
                file.read_into(buffer, offset)

    Otherwise each request registers its memory, which takes between microseconds and a millisecond. The buffer keeps the
    tensor until it is closed.
    """
    return Buffer(memory_of(target, writable=True), target)


class File:
    """An open file; see open(). Several threads may use it at once."""

    def __init__(self, path: str | os.PathLike[str], mode: str = "r") -> None:
        flags = _MODES.get(mode.replace("b", ""))
        if flags is None:
            raise ValueError(f"mode must be one of {', '.join(_MODES)}, not {mode!r}; "
                             "to append, write at offset file.size of a file open as r+")
        self.path = os.fspath(path)
        raw = ctypes.c_void_p()
        check(library().sluice_open(os.fsencode(self.path), flags, 0o666, ctypes.byref(raw)), self.path)
        self._handle = Handle(raw.value or 0, library().sluice_close, f"the file {self.path!r}")

    @staticmethod
    def of_descriptor(descriptor: int) -> "File":
        """Uses an open file, which must stay open until the File is closed, and which the caller closes then."""
        file, raw = File.__new__(File), ctypes.c_void_p()
        file.path = _path_of(descriptor)
        check(library().sluice_open_fd(descriptor, ctypes.byref(raw)), file.path)
        file._handle = Handle(raw.value or 0, library().sluice_close, f"the file {file.path!r}")
        return file

    def __repr__(self) -> str:
        return f"<sluice.File {self.path!r}{' (closed)' if self.closed else ''}>"

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._handle.close()

    @property
    def closed(self) -> bool:
        return self._handle.closed

    def close(self) -> None:
        """Closes the file. Requests in progress are finished."""
        self._handle.close()

    @property
    def size(self) -> int:
        """The current size in bytes."""
        with self._handle as file:
            return check(library().sluice_size(file), self.path)

    def read_into(self, target: Any, offset: int = 0, length: int | None = None, *, target_offset: int = 0) -> Result:
        """Fills `target` with the file's bytes, starting at `offset`.

        `target` is a torch, cupy or numpy array, a bytearray, a memoryview or a registered Buffer. It must be contiguous.
        All of it is filled, or `length` bytes starting at its byte `target_offset`. Waits until the GPU has finished the
        work in the current stream.
        """
        return self._transfer(library().sluice_read, target, offset, length, target_offset, writable=True)

    def write_from(self, source: Any, offset: int = 0, length: int | None = None, *, source_offset: int = 0) -> Result:
        """Writes the bytes of `source`, or `length` bytes starting at its byte `source_offset`, to the file at `offset`.
        Raises an Error unless all are written."""
        return self._transfer(library().sluice_write, source, offset, length, source_offset, writable=False)

    async def read_into_async(self, target: Any, offset: int = 0, length: int | None = None, *,
                              target_offset: int = 0) -> Result:
        """Like read_into(), without blocking the event loop.

        A cancelled read has no result, but its bytes may still arrive. The memory is kept until then; do not use it for
        anything else before."""
        return await self._transfer_async(library().sluice_read_async, target, offset, length, target_offset, writable=True)

    async def write_from_async(self, source: Any, offset: int = 0, length: int | None = None, *,
                               source_offset: int = 0) -> Result:
        """Like write_from(), without blocking the event loop. A cancelled write may still be done."""
        return await self._transfer_async(library().sluice_write_async, source, offset, length, source_offset,
                                          writable=False)

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """Returns the bytes, for headers and other small parts."""
        offset = _whole(offset, "offset")
        left = max(self.size - offset, 0)
        data = bytearray(left if length is None else min(_whole(length, "length"), left))
        return bytes(memoryview(data)[:self.read_into(data, offset).bytes])

    def readv(self, target: Any, segments: Iterable[tuple[int, int, int]]) -> Result:
        """Reads many ranges at once. A segment is (file_offset, target_offset, length). A segment that reaches the end of
        the file is short; the others are still read."""
        ranges = [tuple(_whole(number, "a number of a segment") for number in each) for each in segments]
        if any(len(each) != 3 for each in ranges):
            raise ValueError("a segment is (file_offset, target_offset, length)")
        array = (SegmentStruct * len(ranges))(*(SegmentStruct(to, source, length) for source, to, length in ranges))
        struct = ResultStruct()
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(self._handle)
            memory, buffer = _enter(stack, target, writable=True)
            for _, to, length in ranges:
                _check_range(memory, to, length)
            if memory.length == 0 or not ranges:
                return _result(0, struct)
            if memory.wait:
                memory.wait()
            done = check(library().sluice_readv(file, buffer, array, len(ranges), ctypes.byref(struct)), self.path)
        return _result(done, struct)

    def gather(self, index: Any, dim: int | Sequence[int] | None = None, dtype: Any = None, offset: int = 0,
               device: Any = None, out: Any = None) -> Any:
        """Like sluice.gather(): reads rows of this file by number."""
        from ._gather import gather_rows
        return gather_rows(self, index, dim, dtype, offset, device, out)

    def scatter(self, index: Any, values: Any, offset: int = 0) -> Result:
        """Like sluice.scatter(): writes rows of this file by number."""
        from ._gather import scatter_rows
        return scatter_rows(self, index, values, offset)

    def prefetch(self, offset: int = 0, length: int | None = None, promote: bool = False,
                 hbm: bool = False) -> None:
        """Reads the range, or everything from `offset` on, into the page cache in the background. With `promote`, moves the
        file to the fastest tier of its mount instead; with `hbm`, copies it into the memory of the first GPU, if the mount
        has the option `hbm`. Both are done in the background, too."""
        offset = _whole(offset, "offset")
        length = None if length is None else _whole(length, "length")
        if length == 0:
            return
        with self._handle as file:
            how = (_PREFETCH_PROMOTE if promote else 0) | (_PREFETCH_HBM if hbm else 0) or _PREFETCH_WARM
            check(library().sluice_prefetch(file, offset, length or 0, how), self.path)

    def checksum(self, offset: int = 0, length: int | None = None) -> int:
        """Returns the checksum of the range, or of everything from `offset` on; see sluice.checksum(). The CPU computes it."""
        offset = _whole(offset, "offset")
        length = _LARGEST if length is None else _whole(length, "length")
        value = ctypes.c_uint64()
        with self._handle as file:
            check(library().sluice_checksum_file(file, offset, length, ctypes.byref(value)), self.path)
        return value.value

    def route(self, target: Any = None) -> Route:
        """Returns the route that a large read into `target` would take, and why. None stands for GPU memory."""
        query = QueryStruct()
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(self._handle)
            buffer = None if target is None else _enter(stack, target, writable=False)[1]
            if buffer == 0:
                raise ValueError("the target is empty")
            check(library().sluice_query_file(file, buffer, ctypes.byref(query)), self.path)
        lib = library()
        return Route(lib.sluice_route_name(query.route).decode(), lib.sluice_why_text(query.why).decode(),
                     query.reason.decode(errors="replace"), query.tier.decode(errors="replace") or None, query.alignment)

    def _transfer(self, function: Callable[..., int], target: Any, offset: int, length: int | None, target_offset: int,
                  writable: bool) -> Result:
        struct = ResultStruct()
        with contextlib.ExitStack() as stack:
            arguments, memory = self._arguments(stack, target, offset, length, target_offset, writable)
            if memory.length == 0:
                return _result(0, struct)
            if memory.wait:
                memory.wait()
            result = _result(check(function(*arguments, ctypes.byref(struct)), self.path), struct)
        rest = self._rest(result, arguments, writable)
        return result if rest is None else _sum(result, self._transfer(function, target, *rest, writable))

    async def _transfer_async(self, function: Callable[..., int], target: Any, offset: int, length: int | None,
                              target_offset: int, writable: bool) -> Result:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        with contextlib.ExitStack() as stack:
            arguments, memory = self._arguments(stack, target, offset, length, target_offset, writable)
            if memory.length == 0:
                return _result(0, ResultStruct())
            if memory.wait:
                await loop.run_in_executor(None, memory.wait)
            _begin(function, arguments, (stack.pop_all(), loop, future, self.path))
        result = await future
        rest = self._rest(result, arguments, writable)
        return result if rest is None else _sum(result, await self._transfer_async(function, target, *rest, writable))

    def _rest(self, result: Result, arguments: list[int], is_read: bool) -> tuple[int, int, int] | None:
        """Writes the rest of a write that an error ended early. The next attempt raises the error."""
        _, _, start, length, offset = arguments
        if is_read or result.bytes == length:
            return None
        if result.bytes == 0:
            raise Error(errno.EIO, f"write {self.path}: no bytes of {length} were written", self.path)
        return offset + result.bytes, length - result.bytes, start + result.bytes

    def _arguments(self, stack: contextlib.ExitStack, target: Any, offset: int, length: int | None, target_offset: int,
                   writable: bool) -> tuple[list[int], Memory]:
        """The first five arguments of a transfer. They are valid until `stack` is closed."""
        offset, target_offset = _whole(offset, "offset"), _whole(target_offset, "the offset in the memory")
        file = stack.enter_context(self._handle)
        memory, buffer = _enter(stack, target, writable)
        if length is None:
            length = max(memory.length - target_offset, 0)
        length = _whole(length, "length")
        _check_range(memory, target_offset, length)
        return [file, buffer, target_offset, length, offset], memory


def _path_of(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return f"descriptor {descriptor}"


def _sum(first: Result, rest: Result) -> Result:
    return dataclasses.replace(rest, bytes=first.bytes + rest.bytes)


def _check_range(memory: Memory, offset: int, length: int) -> None:
    if offset + length > memory.length:
        raise ValueError(f"{length} bytes at byte {offset} of the memory exceed its {memory.length} bytes")


def _enter(stack: contextlib.ExitStack, target: Any, writable: bool) -> tuple[Memory, int]:
    """The memory of `target` and its handle, which is valid until `stack` is closed; 0 for empty memory."""
    if isinstance(target, Buffer):
        raw = stack.enter_context(target._handle)
        return target._again(), raw
    memory = memory_of(target, writable)
    buffer = stack.enter_context(Buffer(memory))
    return memory, stack.enter_context(buffer._handle)


_Request = tuple[contextlib.ExitStack, asyncio.AbstractEventLoop, "asyncio.Future[Result]", str]


class _Pending:
    """The asynchronous requests in progress, by number. Keeps the objects that each uses until its callback."""

    def __init__(self) -> None:
        self._forget()
        self._numbers = itertools.count(1)
        atexit.register(self._wait)
        os.register_at_fork(after_in_child=self._forget)

    def add(self, request: _Request) -> int:
        number = next(self._numbers)
        self._requests[number] = request
        return number

    def take(self, number: int) -> _Request:
        with self._changed:
            request = self._requests.pop(number)
            self._changed.notify_all()
        return request

    def _forget(self) -> None:
        # Also replaces the requests in a child after fork(): callbacks of the parent's requests run
        # in the parent.
        self._requests: dict[int, _Request] = {}
        self.threads: set[int] = set()  # threads that callbacks run in
        self._changed = threading.Condition()

    def _wait(self) -> None:
        """Runs before the interpreter ends: a callback after that would crash the process."""
        with self._changed:
            self._changed.wait_for(lambda: not self._requests)
        while not self.threads.isdisjoint(sys._current_frames()):
            time.sleep(0.001)


_pending = _Pending()


def _begin(function: Callable[..., int], arguments: list[int], request: _Request) -> None:
    number = _pending.add(request)
    code = function(*arguments, _callback, number)
    if code < 0:
        stack, _, _, path = _pending.take(number)
        error = last_error(code, path)
        stack.close()
        raise error


@CALLBACK  # type: ignore[untyped-decorator,unused-ignore]
def _callback(number: int, done: int, struct: Any) -> None:
    """Runs in a thread of libsluice."""
    _pending.threads.add(threading.get_ident())
    stack, loop, future, path = _pending.take(number)
    outcome: Result | Error = last_error(done, path) if done < 0 else _result(done, struct.contents)
    stack.close()
    del stack  # before the result is visible: the caller may then resize a bytearray
    try:
        loop.call_soon_threadsafe(_set_outcome, future, outcome)
    except RuntimeError:
        pass  # the loop is closed, so no one waits


def _set_outcome(future: asyncio.Future[Result], outcome: Result | Error) -> None:
    if future.done():  # cancelled
        return
    if isinstance(outcome, Error):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def open(path: str | os.PathLike[str], mode: str = "r") -> File:
    """Opens a file: "r" to read, "r+" to write too, "w" or "w+" truncates it first, "x" or "x+" creates it."""
    return File(path, mode)


def checksum(target: Any, offset: int = 0, length: int | None = None) -> int:
    """Returns a checksum of the bytes of a tensor, an array or a file (by its path), from `offset` on:

        assert sluice.checksum(tensor) == sluice.checksum("/mnt/pool/model.bin")

    The GPU computes it for memory of a GPU, at the speed of that memory; the CPU for everything else. The same bytes have
    the same checksum everywhere. It is made of XXH3-64, to find damaged bytes; it is no protection against forgery.
    docs/gpu.md has the definition.
    """
    if isinstance(target, str | os.PathLike):
        with File(target) as file:
            return file.checksum(offset, length)
    offset = _whole(offset, "offset")
    value = ctypes.c_uint64()
    with contextlib.ExitStack() as stack:
        memory, buffer = _enter(stack, target, writable=False)
        length = max(memory.length - offset, 0) if length is None else _whole(length, "length")
        _check_range(memory, offset, length)
        if memory.length == 0:
            memory, buffer = _enter(stack, bytearray(1), writable=False)
        if memory.wait:
            memory.wait()
        check(library().sluice_checksum(buffer, offset, length, ctypes.byref(value)))
    return value.value
