# SPDX-License-Identifier: BSD-2-Clause
"""Blocks of a KV cache, one file each, in a directory with a budget.

A block is found by a key and is never changed. It is written to a file in `tmp` and renamed, so readers see all of it or
none. A trailer with a checksum follows the bytes: what a crash, a full disk or a bad disk damaged is a miss, and so is what
the budget deleted. A miss costs the caller time; nothing here raises an error for one, and no call returns wrong bytes.
"""
import concurrent.futures
import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import pathlib
import re
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .._control import _tier_of
from .._file import Buffer, File, checksum, register
from .._memory import Memory
from .._ring import Ring

_log = logging.getLogger("sluice")
_TRAILER = struct.Struct("<8sQQ8x32s")  # magic, bytes of the block, checksum, digest of the key; on disk: never changed
_MAGIC = b"SluiceK1"
_ENTRIES = 128
_GROUP = 16  # files that a thread has open at once
_ABANDONED_S = 3600  # where there are no locks, a file in `tmp` that is older was left by a process that died
# The daemon or its mount ended. The ring is made again, for the next daemon.
_GONE = {errno.ESTALE, errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNABORTED}


# Results of a block. Only MISSED is false.
MISSED, THERE, WRITTEN = 0, 1, 2


class Piece(NamedTuple):
    buffer: Buffer
    offset: int
    length: int


class Block(NamedTuple):
    """The bytes of a block are those of its pieces, in order."""
    key: bytes
    pieces: Sequence[Piece]

    @property
    def length(self) -> int:
        return sum(piece.length for piece in self.pieces)

    def checksum(self) -> int:
        sums = b"".join(checksum(*piece).to_bytes(8, "little") for piece in self.pieces)
        return int.from_bytes(hashlib.blake2b(sums, digest_size=8).digest(), "little")


def piece_of(target: Any) -> Piece:
    """All bytes of a tensor, an array or a memoryview."""
    buffer = register(target)
    return Piece(buffer, 0, len(buffer))


def piece_at(address: int, length: int, owner: object) -> Piece:
    return Piece(Buffer(Memory(address, length, owner)), 0, length)


class _Transfer:
    """The requests of a group of blocks, on the ring of one thread. If an error ends it early, the ring is discarded: that
    waits for requests in progress, which use the caller's memory and descriptors."""

    def __init__(self, ring: Ring, discard: Callable[[], None]) -> None:
        self._ring, self._discard = ring, discard
        self._files: list[tuple[int, File]] = []
        self._buffers: dict[int, int] = {}  # by id(), which is valid as long as the ring has the buffer
        self._wanted: list[tuple[int, int]] = []  # by user_data: the place of the block, and the length
        self._left: dict[int, int] = {}  # by place of a block that is not done: its requests
        self._in_progress = 0
        self._done: list[int] = []
        self.failed: dict[int, int] = {}  # by place of the block: errno

    def __enter__(self) -> "_Transfer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._discard()
            return
        for number, file in self._files:
            self._ring.drop_file(number)
            file.close()
        for number in self._buffers.values():
            self._ring.drop_buffer(number)

    def start(self, place: int, block: Block, descriptor: int, write: bool) -> None:
        file = File.of_descriptor(descriptor)
        number = self._ring.add_file(file)
        self._files.append((number, file))
        self._left[place] = len(block.pieces)
        offset = 0
        for piece in block.pieces:
            if id(piece.buffer) not in self._buffers:
                self._buffers[id(piece.buffer)] = self._ring.add_buffer(piece.buffer)
            if self._in_progress == _ENTRIES:
                self._ring.submit()
                self._take(1)
            (self._ring.write if write else self._ring.read)(number, self._buffers[id(piece.buffer)], piece.offset,
                                                             piece.length, offset, len(self._wanted))
            self._wanted.append((place, piece.length))
            self._in_progress += 1
            offset += piece.length
        self._ring.submit()

    def done(self, wait: bool = False) -> list[int]:
        """Returns the places of blocks that were done since the last call; with `wait`, none means that all are done."""
        self._take(0)
        while wait and not self._done and self._in_progress > 0:
            self._take(1)
        done, self._done = self._done, []
        return done

    def _take(self, least: int) -> None:
        for completion in self._ring.wait(least, _ENTRIES):
            self._in_progress -= 1
            place, length = self._wanted[completion.user_data]
            if -completion.result in _GONE:
                raise OSError(-completion.result, os.strerror(-completion.result))
            if completion.result != length:  # a write is short if the disk is full
                self.failed[place] = -completion.result if completion.result < 0 else errno.ENOSPC
            self._left[place] -= 1
            if self._left[place] == 0:
                self._done.append(place)


class BlockStore:
    """Threads: all methods may be called from any thread, but only in the process that made the store: threads do not survive
    a fork."""

    def __init__(self, directory: str | os.PathLike[str], budget: str | None = None, threads: int = 4) -> None:
        """`budget` is a size such as "200GiB": beyond it, the mount deletes the blocks of least value. It needs a Sluice
        mount. Each of loading and storing has `threads` threads."""
        if threads < 1:
            raise ValueError(f"threads must be 1 or more, not {threads}")
        self._process = os.getpid()
        self.directory = pathlib.Path(directory)
        self._incoming = self.directory / "tmp"
        self._incoming.mkdir(parents=True, exist_ok=True)
        self._budget = budget
        if budget is not None:
            set_budget(self.directory, budget)
        self._access, self._filesystem = os.stat(self.directory), _filesystem_of(self.directory)
        self._sweep()
        self._local = threading.local()
        self._lock = threading.Lock()
        self._rings: list[Ring] = []
        self._warned: set[int] = set()
        self._threads = threads
        self._loaders = concurrent.futures.ThreadPoolExecutor(threads, "sluice-kv-load")
        self._storers = concurrent.futures.ThreadPoolExecutor(threads, "sluice-kv-store")
        self._start_threads()

    def _start_threads(self) -> None:
        """A pool starts a thread when it has work for it. If that fails, the caller gets the error while others do the work."""
        are_started = threading.Event()
        try:
            for _ in range(self._threads):
                for pool in self._loaders, self._storers:
                    pool.submit(are_started.wait)  # the threads so far are busy with the same, so this one gets its own
        except RuntimeError as error:
            are_started.set()
            self.close()
            raise RuntimeError(f"can't start {2 * self._threads} threads for the KV cache {self.directory}: {error}") from error
        are_started.set()

    def close(self) -> None:
        """Finishes the requests in progress."""
        if self._process != os.getpid():
            return  # it is the parent's
        self._loaders.shutdown()
        self._storers.shutdown()
        while self._rings:
            self._rings.pop().close()

    def contains(self, key: bytes, length: int | None = None) -> bool:
        """Whether there is a block of that length. It may still be missing or damaged when it is loaded."""
        self._check_process()
        try:
            size = os.stat(self._path(key)).st_size - _TRAILER.size
            return size > 0 if length is None else size == length
        except FileNotFoundError:
            return False
        except OSError as error:
            self._warn(error, "look up a block")
            return False

    def delete(self, key: bytes) -> int:
        """Returns the length that the block had; 0 if there was none."""
        self._check_process()
        path = self._path(key)
        try:
            size = os.stat(path).st_size
            os.unlink(path)
        except FileNotFoundError:
            return 0
        except OSError as error:
            self._warn(error, "delete a block")
            return 0
        return max(size - _TRAILER.size, 0)

    def load(self, blocks: Sequence[Block]) -> "concurrent.futures.Future[list[int]]":
        """Fills the pieces. The result tells for each block whether it was THERE or MISSED; the memory of a missed block
        may have any content. The memory must stay valid until the result comes."""
        return self._spread(self._loaders, self._load, blocks)

    def store(self, blocks: Sequence[Block]) -> "concurrent.futures.Future[list[int]]":
        """Writes the blocks that are not there yet. The result tells for each block whether it was THERE, was WRITTEN, or could
        not be written (MISSED)."""
        return self._spread(self._storers, self._store, blocks)

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise ValueError("the block store belongs to the process that created it; create it again after a fork")

    def _spread(self, pool: concurrent.futures.Executor, work: Callable[[Sequence[Block]], list[int]],
                blocks: Sequence[Block]) -> "concurrent.futures.Future[list[int]]":
        self._check_process()
        future: concurrent.futures.Future[list[int]] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        share = max(-(-len(blocks) // self._threads), 1)
        shares = [blocks[start:start + share] for start in range(0, len(blocks), share)] or [[]]
        parts: list[list[int]] = [[] for _ in shares]
        left = len(shares)

        def run(place: int) -> None:
            nonlocal left
            for start in range(0, len(shares[place]), _GROUP):
                group = shares[place][start:start + _GROUP]
                try:
                    parts[place] += self._twice(work, group)
                except Exception:  # the caller waits for an answer, and counts on the memory
                    _log.exception("blocks of the KV cache in %s could not be transferred", self.directory)
                    parts[place] += [MISSED] * len(group)
            with self._lock:
                left -= 1
                is_last = left == 0
            if is_last:
                future.set_result([each for part in parts for each in part])

        for place in range(len(shares)):
            pool.submit(run, place)
        return future

    def _twice(self, work: Callable[[Sequence[Block]], list[int]], blocks: Sequence[Block]) -> list[int]:
        try:
            return work(blocks)
        except OSError:  # the daemon may have ended; the next one serves a new ring
            pass
        try:
            return work(blocks)
        except OSError as error:
            self._warn(error, "transfer blocks")
            return [MISSED] * len(blocks)

    def _load(self, blocks: Sequence[Block]) -> list[int]:
        sums: dict[int, int] = {}
        loaded = [MISSED] * len(blocks)

        def check(places: list[int]) -> bool:
            for place in places:
                if place in transfer.failed:
                    self._warn(OSError(transfer.failed[place], os.strerror(transfer.failed[place])), "read a block")
                elif blocks[place].checksum() != sums[place]:
                    self._damaged(blocks[place].key)
                else:
                    loaded[place] = THERE
            return bool(places)

        with contextlib.ExitStack() as stack, _Transfer(self._ring(), self._discard_ring) as transfer:
            for place, block in enumerate(blocks):
                opened = self._open(block, stack)
                if opened is None:
                    continue
                descriptor, sums[place] = opened
                transfer.start(place, block, descriptor, write=False)
                check(transfer.done())  # while this block is read
            while check(transfer.done(wait=True)):
                pass
        return loaded

    def _open(self, block: Block, stack: contextlib.ExitStack) -> tuple[int, int] | None:
        """Returns a descriptor, which `stack` closes, and the checksum that the bytes must have; None: there is no block."""
        try:
            descriptor = os.open(self._path(block.key), os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            if os.fstat(descriptor).st_size != block.length + _TRAILER.size:
                return None
            trailer = os.pread(descriptor, _TRAILER.size, block.length)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in _GONE:
                raise
            self._warn(error, "open a block")
            return None
        if len(trailer) != _TRAILER.size:
            return None
        magic, length, total, digest = _TRAILER.unpack(trailer)
        if (magic, length, digest) != (_MAGIC, block.length, _digest(block.key)):
            self._damaged(block.key)
            return None
        return descriptor, total

    def _store(self, blocks: Sequence[Block]) -> list[int]:
        stored = [THERE if self.contains(block.key, block.length) else MISSED for block in blocks]
        made: dict[int, tuple[pathlib.Path, int, int]] = {}
        with contextlib.ExitStack() as stack, _Transfer(self._ring(), self._discard_ring) as transfer:
            for place, block in enumerate(blocks):
                if stored[place]:
                    continue
                try:
                    temporary, descriptor = self._create()
                except OSError as error:  # the disk or the budget is full
                    self._warn(error, "create a block")
                    continue
                stack.callback(_remove, temporary)
                stack.callback(_close, descriptor)
                transfer.start(place, block, descriptor, write=True)
                made[place] = temporary, descriptor, block.checksum()  # while it is written
            while places := transfer.done(wait=True):
                for place in places:
                    try:
                        if place in transfer.failed:
                            raise OSError(transfer.failed[place], os.strerror(transfer.failed[place]))
                        self._publish(blocks[place], *made[place])
                        stored[place] = WRITTEN
                    except OSError as error:
                        self._warn(error, "write a block")
        return stored

    def _create(self) -> tuple[pathlib.Path, int]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        while True:
            temporary = self._incoming / os.urandom(16).hex()
            try:
                descriptor = os.open(temporary, flags, 0o666)
            except FileNotFoundError:  # somebody cleared the cache
                self._make_folders_again()
                descriptor = os.open(temporary, flags, 0o666)
            with contextlib.suppress(OSError):  # the filesystem has no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # it ends with this process, and tells others that the file is in use
            if os.path.exists(temporary):  # not st_nlink, which is always 0 on some filesystems
                return temporary, descriptor
            os.close(descriptor)  # another process took it for abandoned, because it was not locked yet

    def _make_folders_again(self) -> None:
        is_there = self.directory.exists()
        if _filesystem_of(self.directory if is_there else self.directory.parent) != self._filesystem:
            raise FileNotFoundError(errno.ENOENT, "its mount has ended")  # blocks would fill the disk below it
        with contextlib.suppress(FileExistsError):  # another thread was faster
            if not is_there:
                self.directory.mkdir(0o700)  # blocks contain what users typed
                with contextlib.suppress(PermissionError):
                    os.chown(self.directory, -1, self._access.st_gid)
                    self.directory.chmod(self._access.st_mode & 0o7777)
        if self._budget is not None:
            set_budget(self.directory, self._budget)
        self._incoming.mkdir(exist_ok=True)  # last: without it, nothing is stored

    def _publish(self, block: Block, temporary: pathlib.Path, descriptor: int, total: int) -> None:
        trailer = _TRAILER.pack(_MAGIC, block.length, total, _digest(block.key))
        if os.pwrite(descriptor, trailer, block.length) != len(trailer):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path = self._path(block.key)
        try:
            os.rename(temporary, path)
        except FileNotFoundError:
            path.parent.mkdir(exist_ok=True)
            os.rename(temporary, path)

    def _damaged(self, key: bytes) -> None:
        """A block with the right size would never be stored again."""
        _log.warning("a block of the KV cache is damaged and was deleted: file=%s", self._path(key))
        self.delete(key)

    def _path(self, key: bytes) -> pathlib.Path:
        name = _digest(key).hex()
        return self.directory / name[:2] / name[2:]

    def _ring(self) -> Ring:
        ring: Ring | None = getattr(self._local, "ring", None)
        if ring is None:
            # The daemon can't use this memory, and the ring would keep a block open, which could be deleted meanwhile.
            ring = self._local.ring = Ring(_ENTRIES, in_process=True)
            with self._lock:
                self._rings.append(ring)
        return ring

    def _discard_ring(self) -> None:
        ring: Ring | None = getattr(self._local, "ring", None)
        if ring is not None:
            with self._lock:
                self._rings.remove(ring)
            self._local.ring = None
            ring.close()

    def _warn(self, error: OSError, what: str) -> None:
        with self._lock:
            if error.errno in self._warned:
                return
            self._warned.add(error.errno or 0)
        _log.warning("KV cache %s: could not %s: %s; the block is computed again (logged once for this error)",
                     self.directory, what, error)

    def _sweep(self) -> None:
        with contextlib.suppress(OSError), os.scandir(self._incoming) as entries:
            for entry in entries:
                # Only ours: the directory may have had a "tmp" before.
                is_ours = re.fullmatch("[0-9a-f]{32}", entry.name) is not None and entry.is_file(follow_symlinks=False)
                if is_ours:
                    with contextlib.suppress(OSError):  # removed or renamed by another process
                        _remove_if_abandoned(entry.path)


def set_budget(directory: str | os.PathLike[str], budget: str) -> None:
    """Raises an OSError that says what to do if the directory can't have a budget."""
    try:
        _tier_of(directory)  # another filesystem would simply store the attribute
        os.setxattr(directory, "user.sluice.budget", budget.encode())
    except OSError as error:
        reason = {errno.EOPNOTSUPP: "it is not on a Sluice mount; leave the budget out, or use a directory on one",
                  errno.EINVAL: "a budget is a size such as 200GiB, and the root of a mount can't have one",
                  errno.EPERM: "only its owner and root may set it"}.get(error.errno or 0, error.strerror)
        raise OSError(error.errno, f"can't set a budget of {budget}: {reason}", os.fspath(directory)) from None


def _filesystem_of(path: pathlib.Path) -> int:
    """The number of the filesystem; 0 for a Sluice mount, which has another number when it is mounted again."""
    try:
        _tier_of(path)
        return 0
    except OSError:
        return os.stat(path).st_dev


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=32).digest()


def _remove_if_abandoned(path: str) -> None:
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # it is being written
        except OSError:  # no locks, or another user's
            if os.lstat(path).st_mtime >= time.time() - _ABANDONED_S:
                return
        os.unlink(path)  # with the lock, so that who made it finds out


def _remove(path: pathlib.Path) -> None:
    with contextlib.suppress(OSError):  # renamed
        os.unlink(path)


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # what a late error damaged, the checksum tells
        os.close(descriptor)
