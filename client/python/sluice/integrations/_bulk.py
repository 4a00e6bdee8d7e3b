# SPDX-License-Identifier: BSD-2-Clause
"""Reads tensors of a file on a Sluice mount into the memory of GPUs, many in one load."""
import concurrent.futures
import contextlib
import errno
import functools
import importlib
import os
import stat
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from .._safetensors import Model, Tensor
from . import _place
from ._report import report

# Tensors that are wanted on the same GPU are loaded together, up to this size, while the caller uses the group before: twice
# as much is in memory before it is taken.
GROUP_BYTES = 1 << 30
SMALL_GROUP_BYTES = 256 << 20
_FIRST_GROUP_BYTES = 16 << 20
# Errors of the caller's memory or of the GPU, not of the file: the original may do better.
_NOT_OF_THE_FILE = {errno.ENOMEM, errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV, errno.EFAULT, errno.ESTALE, errno.EBUSY}
_END_OF_THE_MOUNT = {errno.ENOTCONN, errno.ECONNABORTED}


def on_mount(path: str) -> bool:
    """Whether this is a file on a Sluice mount. The mount never lists its attributes. If this one is listed, a user has set
    it on another filesystem."""
    try:
        os.getxattr(path, "user.sluice.tier")
        return "user.sluice.tier" not in os.listxattr(path) and stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def gpu_of(device: Any) -> Any:
    """The torch.device of the GPU that `device` names; None if it names something else, or a GPU that can't be used."""
    torch = importlib.import_module("torch")
    if isinstance(device, bool) or not isinstance(device, int | str | torch.device):
        return None
    if isinstance(device, str) and not device.startswith("cuda"):
        return None
    found = torch.device(device)
    if found.type != "cuda" or not _has_gpu():
        return None
    return found if found.index is not None else torch.device("cuda", torch.cuda.current_device())


@functools.cache
def _has_gpu() -> bool:
    torch = importlib.import_module("torch")
    return torch.version.cuda is not None and bool(torch.cuda.is_available())


class FileState:
    """Tells whether a path still names the file that it named before. It is not open: the mount counts opens as accesses."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._before = self._now()

    def _now(self) -> tuple[int, ...]:
        now = os.stat(self.path)
        return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns

    def check(self) -> None:
        if self._now() != self._before:
            raise ValueError(f"{self.path} was changed or replaced after it was opened")


class _Coming(NamedTuple):
    device: Any
    future: concurrent.futures.Future[dict[str, Any]]


class Bulk:
    """The tensors of one file. Thread-safe; one thread loads at a time, as a load uses several itself."""

    def __init__(self, state: FileState, open_model: Callable[[str], Model]) -> None:
        self._state, self._open, self._process = state, open_model, os.getpid()
        self.spares_memory = False  # set by a caller for whom what is loaded takes memory beside the final tensors
        self._lock = threading.RLock()
        self._model: Model | None = None
        self.known: dict[str, Tensor] = {}
        self._order: list[str] = []
        self._place: dict[str, int] = {}
        self._end = 0  # of the last group
        self._wanted: dict[Any, set[str]] = {}
        self._reserved: set[Any] = set()
        self._ready: dict[tuple[str, Any], Any] = {}  # storages that were loaded together with another
        self._coming: _Coming | None = None
        self._next: tuple[str, Any, int] | None = None  # what is read next if the caller reads in the order of the file

    @property
    def path(self) -> str:
        return self._state.path

    def check(self) -> None:
        """ValueError: the path names another file by now."""
        self._state.check()

    def _check_process(self) -> None:
        # The lock may be held, and the thread that loads does not exist here.
        if self._process != os.getpid():
            raise ValueError(f"{self.path} was opened before a fork")

    def tensors(self) -> dict[str, Tensor]:
        """By name, in the order of their bytes. OSError, ValueError: the file can't be opened, or is another by now."""
        self._check_process()
        with self._lock:
            if self._model is None:
                model = self._open(self.path)
                self._state.check()
                self.known = {tensor.name: tensor for tensor in model.tensors()}
                self._order = list(self.known)
                self._place = {name: i for i, name in enumerate(self._order)}
                self._model = model
            return self.known

    def want(self, names: list[str], device: Any) -> None:
        """Says that these tensors will be taken on this device, and nowhere else."""
        self._check_process()
        with self._lock:
            self._wanted.setdefault(device, set()).update(names)
            self._reserved.discard(device)

    def forget(self) -> None:
        """Frees what was loaded but not taken, and closes the file. It is opened again if a tensor is taken nevertheless."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._wanted.clear()
            self._collect()
            self._ready.clear()
            self._next = None
            if self._model is not None:
                self._model.__exit__()
                self._model = None

    def take(self, name: str, device: Any, ahead: bool = False) -> Any:
        """The bytes of a tensor, as a storage of their own. KeyError: the file has no such tensor. With `ahead`, tensors
        that follow in the file are read too, once the caller takes them in this order."""
        self._check_process()
        with self._lock:
            tensor = self.tensors()[name]
            if tensor.length == 0:
                return sys.modules["torch"].UntypedStorage(0, device=device)
            found = self._ready.pop((name, device), None)
            if found is None and self._coming is not None:
                self._collect()
                found = self._ready.pop((name, device), None)
            if found is None:
                self._load(self._group(name, device, ahead), device)
                found = self._ready.pop((name, device))
            if self._coming is None and self._wanted.get(device) and not self.spares_memory:
                self._load_next(device)
            return found

    def part(self, name: str, parts: list[tuple[int, int]], device: Any) -> Any:
        """Parts of a tensor, each (offset, length), one after the other in a storage of their own."""
        self._check_process()
        with self._lock:
            tensor, model = self.tensors()[name], self._model
        assert model is not None
        return _place.read(self.path, model, tensor, parts, device)

    def _group(self, name: str, device: Any, ahead: bool) -> list[str]:
        """The tensors to load together with `name`: those that follow it in the file and are wanted, too."""
        wanted = self._wanted.get(device, set())
        if wanted and device not in self._reserved:
            self._reserved.add(device)
            _place.reserve(sum(self.known[each].length + 511 & ~511 for each in wanted if each in self.known), device)
        wanted.discard(name)
        if self.spares_memory and self._ready:
            return [name]  # the caller's order is not that of the file
        limit, guess = SMALL_GROUP_BYTES if self.spares_memory else GROUP_BYTES, False
        if not wanted and ahead:
            limit = 0
            if self._next is not None and self._next[:2] == (name, device):
                limit, guess = min(max(2 * self._next[2], _FIRST_GROUP_BYTES), GROUP_BYTES), True
            else:
                self._ready.clear()
        group, size = [name], self.known[name].length
        last = self._place[name]
        for i in range(last + 1, len(self._order)):
            other = self._order[i]
            length = self.known[other].length
            if guess or other in wanted:
                if size + length > limit:
                    break
                if length > 0:
                    group.append(other)
                    size += length
                last = i
            elif not wanted:
                break
        wanted.difference_update(group)
        self._end = last + 1
        if ahead:
            self._next = (self._order[last + 1], device, size) if last + 1 < len(self._order) else None
        return group

    def _load_next(self, device: Any) -> None:
        """Starts to load the next group that is wanted, in a thread of its own."""
        assert self._model is not None
        wanted = self._wanted[device]
        first = next((name for name in self._order[self._end:] if name in wanted), None)
        first = first or next((name for name in self._order if name in wanted), None)
        if first is None:
            wanted.clear()  # names that the file does not have
            return
        group = self._group(first, device, ahead=False)
        future = _place.load_soon(self.path, self._model, [self.known[name] for name in group], device)
        self._coming = _Coming(device, future)

    def _collect(self) -> None:
        """Waits for the group that is being loaded. If that fails, its tensors are loaded when they are taken."""
        coming, self._coming = self._coming, None
        if coming is not None:
            with contextlib.suppress(Exception):
                self._ready.update({(name, coming.device): storage for name, storage in coming.future.result().items()})

    def _load(self, group: list[str], device: Any) -> None:
        assert self._model is not None
        try:
            loaded = _place.load(self.path, self._model, [self.known[name] for name in group], device)
        except RuntimeError as error:
            if type(error).__name__ != "OutOfMemoryError" or len(group) == 1:  # of torch or torch.cuda
                raise
            report.fell_back(self.path, f"one tensor at a time, because memory is short: {error}")
            self._wanted.pop(device, None)
            self._ready.clear()  # the rest is loaded again when it is taken
            loaded = _place.load(self.path, self._model, [self.known[group[0]]], device)
        self._ready.update({(name, device): storage for name, storage in loaded.items()})


def left_to_original(bulk: Bulk, name: str, error: Exception) -> None:
    """Reports that the original function reads a tensor. If the file itself can't be read, the error is raised: the original
    may have mapped the file, and the process would end by SIGBUS."""
    if isinstance(error, OSError) and error.errno in _END_OF_THE_MOUNT:
        raise error
    report.fell_back(bulk.path, error)
    if not isinstance(error, OSError) or error.errno in _NOT_OF_THE_FILE:
        return
    try:
        opened = open(bulk.path, "rb", buffering=0)
    except OSError as failed:
        if failed.errno == errno.EIO or failed.errno in _END_OF_THE_MOUNT:
            raise
        return  # of the path or this process, not of the file, which the original has open
    with opened as file:
        tensor = bulk.known.get(name)
        at, left = 0, os.fstat(file.fileno()).st_size if bulk.known else 1  # only its beginning if the header can't be read
        if tensor:
            at, left = tensor.file_offset, tensor.length
        while left > 0:
            done = os.pread(file.fileno(), min(left, 1 << 20), at)
            if not done:
                break
            at, left = at + len(done), left - len(done)
