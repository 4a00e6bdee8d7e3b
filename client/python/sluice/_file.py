# SPDX-License-Identifier: BSD-2-Clause
"""Files and the memory that their bytes go to."""
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
_PREFETCH_WARM, _PREFETCH_PROMOTE = 1, 2
_MODES = {"r": os.O_RDONLY, "r+": os.O_RDWR, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
          "w+": os.O_RDWR | os.O_CREAT | os.O_TRUNC, "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
          "x+": os.O_RDWR | os.O_CREAT | os.O_EXCL}


@dataclasses.dataclass(frozen=True)
class Result:
    """What a request did. `bytes` is less than asked for only at the end of the file."""
    bytes: int
    route: str  # how they travelled: "staged", "mapped", "host", ...
    why: str  # why by that route, in words
    in_process: bool  # by this process; else by the daemon of the mount


@dataclasses.dataclass(frozen=True)
class Route:
    """How a large read would travel."""
    route: str
    why: str
    reason: str  # a sentence: also why not by a faster route
    tier: str | None  # where the file is; None if it is not on a Sluice mount
    alignment: int  # multiples of this need no more than is asked for from the disk


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
    """Memory that libsluice knows, made by register(). It may be given wherever a tensor or an array may."""

    def __init__(self, memory: Memory, target: Any = None) -> None:
        raw = ctypes.c_void_p()
        if memory.length > 0:
            check(library().sluice_buffer_register(memory.address, memory.length, ctypes.byref(raw)))
        # Until the last request is done, also after close(), the handle holds the memory.
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

    def close(self) -> None:
        """Gives the memory back. Requests that are under way keep it until they are done."""
        self._target = None
        self._handle.close()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._handle.close()

    def _again(self) -> Memory:
        """The memory for one more request, which has to wait for what the GPU has to do with it by now."""
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
    """Makes a tensor or an array known once, for many requests:

        with sluice.register(tensor) as buffer:
            for offset in offsets:
                file.read_into(buffer, offset)

    Without it each request registers its memory by itself, which costs from microseconds to a millisecond. The buffer
    holds the tensor until it is closed.
    """
    return Buffer(memory_of(target, writable=True), target)


class File:
    """An open file; see open(). Threads: any, at once."""

    def __init__(self, path: str | os.PathLike[str], mode: str = "r") -> None:
        flags = _MODES.get(mode.replace("b", ""))
        if flags is None:
            raise ValueError(f"mode must be one of {', '.join(_MODES)}, not {mode!r}; "
                             "to append, write at offset file.size of a file open as r+")
        self.path = os.fspath(path)
        raw = ctypes.c_void_p()
        check(library().sluice_open(os.fsencode(self.path), flags, 0o666, ctypes.byref(raw)))
        self._handle = Handle(raw.value or 0, library().sluice_close, f"the file {self.path!r}")

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
        """No further requests; those under way are finished."""
        self._handle.close()

    @property
    def size(self) -> int:
        """In bytes, now."""
        with self._handle as file:
            return check(library().sluice_size(file))

    def read_into(self, target: Any, offset: int = 0, length: int | None = None, *, target_offset: int = 0) -> Result:
        """Fills `target` with the bytes from `offset` on.

        `target` is a torch, cupy or numpy array, a bytearray, a memoryview or a registered Buffer, contiguous; all of it
        is filled, or `length` bytes of it from its byte `target_offset` on. Waits until the GPU has done what the current
        stream had for it to do.
        """
        return self._transfer(library().sluice_read, target, offset, length, target_offset, writable=True)

    def write_from(self, source: Any, offset: int = 0, length: int | None = None, *, source_offset: int = 0) -> Result:
        """Writes the bytes of `source`, or `length` of them from its byte `source_offset` on, at `offset`. All are written,
        or it is an Error."""
        return self._transfer(library().sluice_write, source, offset, length, source_offset, writable=False)

    async def read_into_async(self, target: Any, offset: int = 0, length: int | None = None, *,
                              target_offset: int = 0) -> Result:
        """As read_into(), while the event loop goes on.

        A cancelled read has no result, but its bytes may still arrive: the memory is held until they have, so don't use it
        for something else before."""
        return await self._transfer_async(library().sluice_read_async, target, offset, length, target_offset, writable=True)

    async def write_from_async(self, source: Any, offset: int = 0, length: int | None = None, *,
                               source_offset: int = 0) -> Result:
        """As write_from(), while the event loop goes on. A cancelled write may still be done."""
        return await self._transfer_async(library().sluice_write_async, source, offset, length, source_offset,
                                          writable=False)

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes themselves: for headers and the like."""
        offset = _whole(offset, "offset")
        left = max(self.size - offset, 0)
        data = bytearray(left if length is None else min(_whole(length, "length"), left))
        return bytes(memoryview(data)[:self.read_into(data, offset).bytes])

    def readv(self, target: Any, segments: Iterable[tuple[int, int, int]]) -> Result:
        """Reads many ranges at once: (file_offset, target_offset, length) each. One that meets the end of the file is
        short, and the others are read."""
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
            done = check(library().sluice_readv(file, buffer, array, len(ranges), ctypes.byref(struct)))
        return _result(done, struct)

    def gather(self, index: Any, dim: int | Sequence[int] | None = None, dtype: Any = None, offset: int = 0,
               device: Any = None, out: Any = None) -> Any:
        """As sluice.gather(): rows of this file by number."""
        from ._gather import gather_rows
        return gather_rows(self, index, dim, dtype, offset, device, out)

    def scatter(self, index: Any, values: Any, offset: int = 0) -> Result:
        """As sluice.scatter(): writes rows of this file by number."""
        from ._gather import scatter_rows
        return scatter_rows(self, index, values, offset)

    def prefetch(self, offset: int = 0, length: int | None = None, promote: bool = False) -> None:
        """Reads the range, or all from `offset` on, into the page cache in the background. With `promote`, the file moves
        to the fastest tier of its mount instead, also in the background."""
        offset = _whole(offset, "offset")
        length = None if length is None else _whole(length, "length")
        if length == 0:
            return
        with self._handle as file:
            check(library().sluice_prefetch(file, offset, length or 0, _PREFETCH_PROMOTE if promote else _PREFETCH_WARM))

    def route(self, target: Any = None) -> Route:
        """How a large read into `target` would travel, and why; None: into the memory of a GPU."""
        query = QueryStruct()
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(self._handle)
            buffer = None if target is None else _enter(stack, target, writable=False)[1]
            if buffer == 0:
                raise ValueError("the target is empty")
            check(library().sluice_query_file(file, buffer, ctypes.byref(query)))
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
            result = _result(check(function(*arguments, ctypes.byref(struct))), struct)
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
            _begin(function, arguments, (stack.pop_all(), loop, future))
        result = await future
        rest = self._rest(result, arguments, writable)
        return result if rest is None else _sum(result, await self._transfer_async(function, target, *rest, writable))

    def _rest(self, result: Result, arguments: list[int], is_read: bool) -> tuple[int, int, int] | None:
        """What is left of a write that an error ended early, and that the next try will tell."""
        _, _, start, length, offset = arguments
        if is_read or result.bytes == length:
            return None
        if result.bytes == 0:
            raise Error(errno.EIO, f"write {self.path}: none of {length} bytes were written")
        return offset + result.bytes, length - result.bytes, start + result.bytes

    def _arguments(self, stack: contextlib.ExitStack, target: Any, offset: int, length: int | None, target_offset: int,
                   writable: bool) -> tuple[list[int], Memory]:
        """The first five of a transfer; what they name is there until `stack` is closed."""
        offset, target_offset = _whole(offset, "offset"), _whole(target_offset, "the offset in the memory")
        file = stack.enter_context(self._handle)
        memory, buffer = _enter(stack, target, writable)
        if length is None:
            length = max(memory.length - target_offset, 0)
        length = _whole(length, "length")
        _check_range(memory, target_offset, length)
        return [file, buffer, target_offset, length, offset], memory


def _sum(first: Result, rest: Result) -> Result:
    return dataclasses.replace(rest, bytes=first.bytes + rest.bytes)


def _check_range(memory: Memory, offset: int, length: int) -> None:
    if offset + length > memory.length:
        raise ValueError(f"{length} bytes at byte {offset} of the memory go past its end: it has {memory.length} bytes")


def _enter(stack: contextlib.ExitStack, target: Any, writable: bool) -> tuple[Memory, int]:
    """The memory of `target` and its handle, which is valid until `stack` is closed; 0 for memory of no bytes."""
    if isinstance(target, Buffer):
        raw = stack.enter_context(target._handle)
        return target._again(), raw
    memory = memory_of(target, writable)
    buffer = stack.enter_context(Buffer(memory))
    return memory, stack.enter_context(buffer._handle)


_Request = tuple[contextlib.ExitStack, asyncio.AbstractEventLoop, "asyncio.Future[Result]"]


class _Pending:
    """The asynchronous requests that are under way, by number. What each uses is held here until its callback."""

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
        # In a child of fork() too: callbacks of the parent's requests come to the parent.
        self._requests: dict[int, _Request] = {}
        self.threads: set[int] = set()  # that callbacks come from
        self._changed = threading.Condition()

    def _wait(self) -> None:
        """Before the interpreter ends: a thread that comes back to it later would bring the process down."""
        with self._changed:
            self._changed.wait_for(lambda: not self._requests)
        while not self.threads.isdisjoint(sys._current_frames()):
            time.sleep(0.001)


_pending = _Pending()


def _begin(function: Callable[..., int], arguments: list[int], request: _Request) -> None:
    number = _pending.add(request)
    code = function(*arguments, _callback, number)
    if code < 0:
        error = last_error(code)
        _pending.take(number)[0].close()
        raise error


@CALLBACK  # type: ignore[untyped-decorator,unused-ignore]
def _callback(number: int, done: int, struct: Any) -> None:
    """In a thread of libsluice's."""
    _pending.threads.add(threading.get_ident())
    outcome: Result | Error = last_error(done) if done < 0 else _result(done, struct.contents)
    stack, loop, future = _pending.take(number)
    stack.close()
    del stack  # before anybody hears of it: they may want to resize a bytearray
    try:
        loop.call_soon_threadsafe(_settle, future, outcome)
    except RuntimeError:
        pass  # the loop is closed: nobody waits


def _settle(future: asyncio.Future[Result], outcome: Result | Error) -> None:
    if future.done():  # cancelled
        return
    if isinstance(outcome, Error):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def open(path: str | os.PathLike[str], mode: str = "r") -> File:
    """Opens a file: "r" to read, "r+" to write too, "w" or "w+" makes it empty first, "x" or "x+" makes a new one."""
    return File(path, mode)

