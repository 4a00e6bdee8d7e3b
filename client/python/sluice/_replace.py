# SPDX-License-Identifier: BSD-2-Clause
"""Replaces a file as a whole: after a crash, its name has the old bytes or the new ones. Writes large ones at the speed of
the disk."""
import bisect
import collections
import contextlib
import ctypes
import errno
import fcntl
import glob
import itertools
import mmap
import os
import secrets
import struct
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor  # so that it is imported before the interpreter ends
from stat import S_IRWXG, S_IRWXO, S_ISGID, S_ISREG
from typing import Any, NamedTuple

from ._aio import Write, Writer
from ._control import pin, stat
from ._library import Error
from ._memory import memory_of

_SUFFIX = ".saving"
_TOKEN = 4  # random bytes in the name of a new file
_LONGEST_NAME = 255
_IN_GPU = "user.sluice.hbm"
_ACL = "system.posix_acl_access"
_BLOCK = 4 << 20  # the most bytes of one write
_THREADS = 2
_BLOCKS = 4  # of each thread: one is filled while the others are written
_ALIGNMENT = 4096  # of writes with O_DIRECT
_HUGE_PAGE = 2 << 20


@contextlib.contextmanager
def replacement(path: str | os.PathLike[str], size: int = 0) -> Iterator[int]:
    """Gives the descriptor of a new, empty file with room for `size` bytes. When the block ends, its bytes are on the disk
    and the file gets the name `path`, and the owner (if this process may give files away), the mode, the ACL and the pins of
    the old file. If the block raises, the old file stays as it is, and nothing else is left.

    A process that is killed leaves a file with the suffix .saving, which the next replacement of the same name removes.
    """
    target = os.path.realpath(path)
    where, name = os.path.split(target)
    renamed = False
    try:
        _refuse_special_file(target)
        with _opened_folder(where) as folder:  # it may be renamed meanwhile
            _remove_leftovers(folder, name)
            descriptor, temporary = _create(folder, name, size)
            try:
                yield descriptor
                with contextlib.suppress(FileNotFoundError):
                    _take_access(descriptor, folder, name)
                os.fsync(descriptor)
                tier, in_gpu = _pin_of(target), _is_pinned_to_gpu(target)
                if tier is not None:
                    with contextlib.suppress(OSError):
                        pin(os.path.join(where, temporary), tier)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                renamed = True
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            finally:
                os.close(descriptor)
            os.fsync(folder)
        if in_gpu:  # the mount finds such files by their paths, so only now
            with contextlib.suppress(OSError):
                os.setxattr(target, _IN_GPU, b"1")
    except OSError as error:
        code = error.errno or errno.EIO
        why = f"{error.strerror}; the new file is there, but may not survive a power failure"
        if not renamed:
            why = _reason(error, target, size)
        raise Error(code, f"save {os.fspath(path)}: {why}", os.fspath(path)) from error


@contextlib.contextmanager
def _opened_folder(path: str) -> Iterator[int]:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield folder
    finally:
        os.close(folder)


def _refuse_special_file(target: str) -> None:
    """A folder, a device or a pipe can't be replaced by a file."""
    if os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if os.path.exists(target) and not os.path.isfile(target):
        raise OSError(errno.EINVAL, "not a regular file")


def _take_access(descriptor: int, folder: int, name: str) -> None:
    """Gives the new file, which only its owner can open, the owner, the mode and the ACL of the old one, as they are now.
    Nobody gets access who had none to the old one."""
    old = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
    try:
        status, acl = os.fstat(old), _acl_of(f"/proc/self/fd/{old}")
    finally:
        os.close(old)
    if not S_ISREG(status.st_mode):
        return
    mode = status.st_mode & 0o7777
    try:
        os.fchown(descriptor, -1, status.st_gid)
    except OSError:  # the group is another one: it gets the permissions of others
        mode &= ~S_ISGID
        if acl is None:
            mode = mode & ~S_IRWXG | (mode & S_IRWXO) << 3
        else:
            acl = _with_group_as_others(acl)
    if acl is not None:
        os.setxattr(descriptor, _ACL, acl)  # before the mode, whose bits for the group are those of the ACL's mask
    else:
        with contextlib.suppress(OSError):
            os.removexattr(descriptor, _ACL)  # that it has from the folder
    os.fchmod(descriptor, mode)
    with contextlib.suppress(OSError):  # last: who may give a file away may not change its mode afterwards
        os.fchown(descriptor, status.st_uid, -1)


def _acl_of(path: str) -> bytes | None:
    try:
        return os.getxattr(path, _ACL)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):
            raise
        return None


def _with_group_as_others(acl: bytes) -> bytes:
    """The ACL if the file had another group, with the permissions of others. The named users and groups stay."""
    group, others = 4, 32
    head, entries = acl[:4], list(struct.iter_unpack("<HHI", acl[4:]))
    rights = next(right for tag, right, _ in entries if tag == others)
    return head + b"".join(struct.pack("<HHI", tag, rights if tag == group else right, who) for tag, right, who in entries)


def sync_folder(path: str) -> None:
    """Returns when the names in the folder are on the disk."""
    with _opened_folder(path) as folder:
        os.fsync(folder)


def _pin_of(path: str) -> str | None:
    """The tier to which a file on a mount is pinned, if not with its folder."""
    with contextlib.suppress(OSError):
        tier = stat(path).pin
        return None if tier == stat(os.path.dirname(path)).pin else tier
    return None


def _is_pinned_to_gpu(path: str) -> bool:
    with contextlib.suppress(OSError):
        return bool(os.getxattr(path, _IN_GPU))
    return False


def _stem(name: str) -> str:
    """How the names of new files for `name` begin, so that they are not too long."""
    room = _LONGEST_NAME - len(f"..{secrets.token_hex(_TOKEN)}{_SUFFIX}")
    while len(os.fsencode(name)) > room:
        name = name[:-1]
    return f".{name}."


def _create(folder: int, name: str, size: int) -> tuple[int, str]:
    while True:
        temporary = f"{_stem(name)}{secrets.token_hex(_TOKEN)}{_SUFFIX}"
        # Nobody may open the new content of a private file before it has the mode of the old one.
        mode = 0o600 if _exists(folder, name) else 0o666
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode, dir_fd=folder)
        try:
            made = os.fstat(descriptor)
            _reserve(descriptor, size)
        except OSError:
            _unlink(folder, temporary)
            raise
        finally:
            os.close(descriptor)
        # Opened again: now a mount knows how large the file will be, and lets the kernel write it without the daemon.
        try:
            descriptor = _open_direct(folder, temporary)
        except FileNotFoundError:
            continue  # another process took it for a leftover, because it was not locked
        except OSError:
            _unlink(folder, temporary)
            raise
        _lock(descriptor)  # it ends with this process, and tells others that the file is in use
        now = os.fstat(descriptor)
        if os.path.samestat(now, made) and now.st_nlink > 0:
            return descriptor, temporary
        os.close(descriptor)  # as above, or somebody has put another file there


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _unlink(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _lock(descriptor: int) -> None:
    """Where a filesystem has no locks, leftovers stay."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _open_direct(folder: int, name: str) -> int:
    try:
        return os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_DIRECT, dir_fd=folder)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(name, os.O_RDWR | os.O_NOFOLLOW, dir_fd=folder)  # the filesystem does not have it


def _remove_leftovers(folder: int, name: str) -> None:
    for leftover in glob.glob(f"{glob.escape(_stem(name))}{'[0-9a-f]' * 2 * _TOKEN}{_SUFFIX}", dir_fd=folder):
        with contextlib.suppress(OSError):  # in use, or removed by another process
            descriptor = os.open(leftover, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(leftover, dir_fd=folder)
            finally:
                os.close(descriptor)


def _reserve(descriptor: int, size: int) -> None:
    """Fails at once if the disk has no room. Not posix_fallocate(), which writes zeros where a filesystem can't reserve."""
    if size == 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size)) < 0 and ctypes.get_errno() == errno.ENOSPC:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _reason(error: OSError, target: str, size: int) -> str:
    if error.errno != errno.ENOSPC:
        return f"{error.strerror}; the file was not changed"
    free = os.statvfs(os.path.dirname(target))
    return (f"{error.strerror}: {size} bytes are needed, and {free.f_bavail * free.f_frsize} are free; the file was not "
            "changed; free some space, and save again")


class Piece(NamedTuple):
    """Bytes for a place in a file. `source` is a torch tensor, a NumPy or CuPy array, or bytes, and contiguous."""
    offset: int
    length: int
    source: Any


def write_pieces(descriptor: int, pieces: list[Piece]) -> None:
    """Fills the file with the pieces, which are in file order, do not overlap and leave no gaps."""
    for piece in pieces:
        memory = memory_of(piece.source, writable=False)
        if memory.wait:
            memory.wait()  # in this thread, whose stream may have the last work on it
    size = max((piece.offset + piece.length for piece in pieces), default=0)
    ends = [piece.offset + piece.length for piece in pieces]
    block_bytes = min(_BLOCK, _aligned(size // _THREADS + 1))  # small files need little memory
    starts, taking, stopped = iter(range(0, size, block_bytes)), threading.Lock(), threading.Event()

    def take() -> Iterator[int]:
        while not stopped.is_set():
            with taking:
                start = next(starts, None)
            if start is None:
                return
            yield start

    def work() -> None:
        writes: collections.deque[tuple[_Block, Write]] = collections.deque()
        # Its own: an exception may end the wait for this thread, and the caller then closes the descriptor.
        own = os.dup(descriptor)
        try:
            with contextlib.ExitStack() as blocks, Writer(own, _BLOCKS) as writer:
                for start in take():
                    if len(writes) < _BLOCKS:  # made when it is needed: the disk should not wait for all of them
                        block = blocks.enter_context(_Block(pieces, ends, block_bytes))
                    else:
                        block, write = writes.popleft()
                        writer.finish(write)
                    writes.append((block, writer.start(block.fill(start, min(block_bytes, size - start)), start)))
                for _, write in writes:
                    writer.finish(write)
        except BaseException:
            stopped.set()
            raise
        finally:
            os.close(own)

    with ThreadPoolExecutor(_THREADS, "sluice-save") as pool:
        workers: list[Future[None]] = []
        try:
            with contextlib.suppress(RuntimeError):  # no more threads; when the interpreter ends, none at all
                workers.extend(pool.submit(work) for _ in range(_THREADS))
            if not workers:
                work()
            for worker in workers:
                worker.result()
        finally:
            stopped.set()
    os.ftruncate(descriptor, size)  # the last block was longer


def _aligned(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT


def _torch() -> Any:
    return sys.modules.get("torch")


def _huge_memory(length: int) -> tuple[mmap.mmap, int]:
    """Memory, and where in it `length` aligned bytes begin. It has huge pages if the kernel gives them: the disk waits while
    the pages of a write are looked up."""
    memory = mmap.mmap(-1, length + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory has none
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory, -ctypes.addressof(ctypes.c_ubyte.from_buffer(memory)) % _HUGE_PAGE


class _Block:
    """Memory for a part of the file, aligned for O_DIRECT and, for tensors on a GPU, pinned. One thread uses it."""

    def __init__(self, pieces: list[Piece], ends: list[int], length: int) -> None:
        self._pieces, self._ends = pieces, ends
        self._memory, self._begin = _huge_memory(length)
        self._view = memoryview(self._memory)[self._begin:]
        self._torch = _torch()
        gpus = {piece.source.device for piece in pieces if self._is_on_gpu(piece.source)}
        self._is_pinned = False
        # Not the default stream, in which the copies of all threads would wait for each other.
        self._streams = {gpu: self._torch.cuda.Stream(gpu) for gpu in gpus}
        if gpus:
            self._tensor = self._torch.frombuffer(self._memory, dtype=self._torch.uint8, count=length, offset=self._begin)
            self._pin()

    def __enter__(self) -> "_Block":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams.values():
            stream.synchronize()  # after an error, copies may be in progress
        if self._is_pinned:
            self._torch.cuda.cudart().cudaHostUnregister(self._tensor.data_ptr())

    def fill(self, start: int, length: int) -> memoryview:
        """Returns the bytes of the file from `start` on, and zeros up to a multiple of _ALIGNMENT."""
        at = 0
        for piece in itertools.islice(self._pieces, bisect.bisect_right(self._ends, start), None):
            if at == length:
                break
            inside = start + at - piece.offset
            part = min(piece.length - inside, length - at)
            self._copy(piece.source, inside, at, part)
            at += part
        for stream in self._streams.values():
            stream.synchronize()
        padded = _aligned(length)
        self._view[length:padded] = bytes(padded - length)
        return self._view[:padded]

    def _pin(self) -> None:
        """Makes copies from GPUs faster."""
        cuda, portable = self._torch.cuda, 1
        with cuda.device(next(iter(self._streams))):
            # It may fail. Not memory of CUDA, which O_DIRECT may refuse.
            self._is_pinned = int(cuda.cudart().cudaHostRegister(self._tensor.data_ptr(), self._tensor.nbytes, portable)) == 0

    def _copy(self, source: Any, inside: int, at: int, length: int) -> None:
        if self._is_on_gpu(source):
            with self._torch.cuda.stream(self._streams[source.device]):
                part = source.reshape(-1).view(self._torch.uint8)[inside:inside + length]
                self._tensor[at:at + length].copy_(part, non_blocking=True)
        elif hasattr(source, "__cuda_array_interface__"):
            self._view[at:at + length] = source.ravel().view("u1")[inside:inside + length].get().data
        else:
            target = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._memory, self._begin + at))
            ctypes.memmove(target, memory_of(source, writable=False).address + inside, length)

    def _is_on_gpu(self, source: Any) -> bool:
        return self._torch is not None and isinstance(source, self._torch.Tensor) and source.is_cuda
