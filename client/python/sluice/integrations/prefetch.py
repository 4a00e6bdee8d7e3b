# SPDX-License-Identifier: BSD-2-Clause
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# (pyright takes sluice/torch.py for PyTorch where that is not installed)
"""Reads batches of records on a ring, before they are wanted, for sluice.torch."""
import collections
import contextlib
import ctypes
import os
import weakref
from typing import Any, Protocol

import torch

from .._file import File, register
from .._library import Error
from .._ring import Completion, Ring, SharedBuffer

_MOST_ENTRIES = 32_768  # of a ring
_MOST_KEPT = 64  # buffers of batches that the program keeps, and `ahead` more: each has a descriptor
_NUMBER = 1 << 32  # a completion's user_data is the number of its batch times this, and the place of its segment


class Records(Protocol):
    path: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    record_bytes: int
    device: torch.device

    def _open(self) -> File: ...


class _Batch:
    """A batch in progress."""

    def __init__(self, buffer: int, count: int, segments: list[tuple[int, int, int]], memory: Any) -> None:
        self.buffer, self.count, self.segments, self.memory = buffer, count, segments, memory
        self.queued = self.done = 0  # segments


class Prefetcher:
    """Batches are taken in the order in which they were started. Threads: one uses it."""

    def __init__(self, records: Records, batch_size: int, ahead: int) -> None:
        self._records, self._batch_bytes = records, batch_size * records.record_bytes
        self._ring = Ring(min(_MOST_ENTRIES, batch_size * (ahead + 1)))
        self._file = self._ring.add_file(records._open())
        self._batches: collections.OrderedDict[int, _Batch] = collections.OrderedDict()
        self._next = 0
        self._is_waiting = False  # for room in the ring
        self._buffers, self._most_kept = 0, ahead + _MOST_KEPT
        self._free: collections.deque[tuple[int, SharedBuffer]] = collections.deque()
        # Memory of another stream's pool: a read need not wait for work with batches before it.
        on_gpu = records.device.type == "cuda"
        self._stream = torch.cuda.Stream(records.device) if on_gpu else None  # type: ignore[no-untyped-call,unused-ignore]

    def __enter__(self) -> "Prefetcher":
        return self

    def __exit__(self, *_: object) -> None:
        self._ring.close()

    def start(self, indices: torch.Tensor) -> None:
        """Starts to read the records with these numbers."""
        segments = _segments(indices.tolist(), self._records.record_bytes)
        if self._stream is not None:
            with torch.cuda.stream(self._stream):
                memory: Any = torch.empty(len(indices) * self._records.record_bytes, dtype=torch.uint8,
                                          device=self._records.device)
                number = self._ring.add_buffer(register(memory))
        else:
            if not self._free:
                buffer = SharedBuffer(self._batch_bytes)
                self._free.append((self._ring.add_buffer(buffer), buffer))
                self._buffers += 1
            number, memory = self._free.popleft()
        self._batches[self._next] = _Batch(number, len(indices), segments, memory)
        self._next += 1
        self._queue()

    def take(self) -> torch.Tensor:
        """Returns the oldest batch, as a tensor of shape (count, *shape)."""
        batch = next(iter(self._batches.values()))
        while batch.done < len(batch.segments):
            self._complete(self._ring.wait(1, 1024))
            if self._is_waiting:
                self._queue()
        self._batches.popitem(last=False)
        records = self._records
        flat = self._on_host(batch) if self._stream is None else self._on_gpu(batch)
        return flat.view(records.dtype).view(batch.count, *records.shape)

    def _queue(self) -> None:
        """Queues what has room in the ring, the oldest first."""
        self._is_waiting = False
        with torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext():
            for number, batch in self._batches.items():
                if batch.queued < len(batch.segments):
                    batch.queued += self._ring.read_many(self._file, batch.buffer, batch.segments[batch.queued:],
                                                         number * _NUMBER + batch.queued)
                    if batch.queued < len(batch.segments):
                        self._is_waiting = True
                        break
            self._ring.submit()

    def _complete(self, completions: list[Completion]) -> None:
        for each in completions:
            number, place = divmod(each.user_data, _NUMBER)
            batch = self._batches[number]
            batch.done += 1
            _, length, offset = batch.segments[place]
            if each.result < 0:
                path = self._records.path
                raise Error(-each.result, f"read {path}: {os.strerror(-each.result)}, at byte {offset}", path)
            if each.result != length:
                raise ValueError(f"{self._records.path} became shorter: it ends at byte {offset + each.result}")

    def _on_host(self, batch: _Batch) -> torch.Tensor:
        """The memory itself, which is used again when the last view of it is gone; a copy if the program keeps many."""
        shared: SharedBuffer = batch.memory
        array = (ctypes.c_ubyte * (batch.count * self._records.record_bytes)).from_buffer(shared.memory)
        weakref.finalize(array, self._free.append, (batch.buffer, shared)).atexit = False
        tensor = torch.frombuffer(array, dtype=torch.uint8)
        kept = self._buffers - len(self._free) - len(self._batches)  # with this one
        return tensor if kept <= self._most_kept else tensor.clone()

    def _on_gpu(self, batch: _Batch) -> torch.Tensor:
        self._ring.drop_buffer(batch.buffer)
        tensor: torch.Tensor = batch.memory
        tensor.record_stream(torch.cuda.current_stream(self._records.device))
        return tensor


def _segments(numbers: list[int], size: int) -> list[tuple[int, int, int]]:
    """(buffer_offset, length, file_offset) of each run of neighbours."""
    runs: list[tuple[int, int, int]] = []
    place = 0
    while place < len(numbers):
        end = place + 1
        while end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
            end += 1
        runs.append((place * size, (end - place) * size, numbers[place] * size))
        place = end
    return runs
