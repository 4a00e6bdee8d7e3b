# SPDX-License-Identifier: BSD-2-Clause
"""Datasets for PyTorch."""
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from ._file import File
from .integrations.prefetch import Prefetcher


class RecordDataset(Dataset[torch.Tensor]):  # type: ignore[misc,unused-ignore]  # torch may be missing
    """A map-style dataset of a file with records of one size.

        dataset = RecordDataset("/mnt/pool/train.bin", dtype=torch.int32, shape=(2048,))
        loader = torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True)

    A record is `record_bytes` bytes (uint8), or a tensor of `dtype` and `shape`. A batch is one request for all of its
    records. Each worker of a DataLoader opens the file itself. With a CUDA `device` use no workers: the records are read
    directly to the GPU.

    A map-style dataset learns of a batch only when it is wanted. batches() knows all of them, and reads ahead.
    """

    def __init__(self, path: str | os.PathLike[str], record_bytes: int | None = None, *, dtype: torch.dtype | None = None,
                 shape: Sequence[int] | None = None, device: str | torch.device = "cpu") -> None:
        if (record_bytes is None) == (dtype is None) or (dtype is None) != (shape is None):
            raise TypeError("pass record_bytes, or dtype and shape")
        self.dtype = dtype or torch.uint8
        self.shape = (int(record_bytes),) if record_bytes is not None else tuple(shape or ())
        self.path, self.device = os.fspath(path), torch.device(device)
        self.record_bytes: int = self.dtype.itemsize
        for size in self.shape:
            self.record_bytes *= size
        if self.record_bytes <= 0:
            raise ValueError("a record must have at least one byte")
        self._file: File | None = None
        self._process = 0
        size = self._open().size
        if size % self.record_bytes != 0:
            raise ValueError(f"{self.path}: {size} bytes are not a multiple of the record size {self.record_bytes}")
        self._length = size // self.record_bytes

    def _open(self) -> File:
        if self._file is None or self._process != os.getpid():
            self._file, self._process = File(self.path), os.getpid()
        return self._file

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.batch([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        return list(self.batch(indices).unbind(0))

    def batches(self, batch_size: int, *, shuffle: bool = False, seed: int = 0, drop_last: bool = False, ahead: int = 4,
                rank: int | None = None, ranks: int | None = None) -> "RecordBatches":
        """Returns a dataset of whole batches, which are read before they are wanted:

            batches = dataset.batches(64, shuffle=True)
            loader = torch.utils.data.DataLoader(batches, batch_size=None, num_workers=2)
            for epoch in range(3):
                batches.set_epoch(epoch)
                for batch in loader:
                    ...

        `ahead` batches are in progress while one is used, on a ring (docs/rings.md), in each worker. `seed` and the epoch
        determine the order. Of several `ranks`, each gets its share, as from a DistributedSampler; without the arguments
        they are those of torch.distributed, if it is initialized.
        """
        return RecordBatches(self, batch_size, shuffle, seed, drop_last, ahead, rank, ranks)

    def batch(self, indices: Sequence[int]) -> torch.Tensor:
        """Returns the records as one tensor, of shape (len(indices), *shape)."""
        segments = []
        for place, index in enumerate(indices):
            number = int(index)
            if not -self._length <= number < self._length:
                raise IndexError(f"record {number} is out of range: the file has {self._length}")
            segments.append((number % self._length * self.record_bytes, place * self.record_bytes, self.record_bytes))
        records = torch.empty((len(segments), *self.shape), dtype=self.dtype, device=self.device)
        done = self._open().readv(records, segments).bytes
        if done != len(segments) * self.record_bytes:
            raise ValueError(f"{self.path} became shorter than its {self._length} records")
        return records


class RecordBatches(IterableDataset[torch.Tensor]):  # type: ignore[misc,unused-ignore]
    """Batches of a RecordDataset in order, or shuffled. RecordDataset.batches() makes it."""

    def __init__(self, records: RecordDataset, batch_size: int, shuffle: bool, seed: int, drop_last: bool, ahead: int,
                 rank: int | None, ranks: int | None) -> None:
        if batch_size < 1 or ahead < 0:
            raise ValueError(f"batch_size must be 1 or more and ahead 0 or more, not {batch_size} and {ahead}")
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        self._rank = rank if rank is not None else torch.distributed.get_rank() if distributed else 0
        self._ranks = ranks if ranks is not None else torch.distributed.get_world_size() if distributed else 1
        if not 0 <= self._rank < self._ranks:
            raise ValueError(f"rank {self._rank} is not one of {self._ranks}")
        self._records, self._batch_size, self._ahead = records, batch_size, ahead
        self._shuffle, self._seed, self._drop_last = shuffle, seed, drop_last
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call,unused-ignore]  # workers that persist see it, too

    def set_epoch(self, epoch: int) -> None:
        """Another epoch has another order. Call it before each one, with the same number in all ranks."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        each = self._each()
        return each // self._batch_size if self._drop_last else -(-each // self._batch_size)

    def _each(self) -> int:
        """The number of records of each rank."""
        return len(self._records) // self._ranks if self._drop_last else -(-len(self._records) // self._ranks)

    def _order(self) -> torch.Tensor:
        count = len(self._records)
        order = torch.arange(count)
        if self._shuffle:
            order = torch.randperm(count, generator=torch.Generator().manual_seed(self._seed + int(self._epoch)))
        # Every rank has as many: the first records are there again at the end.
        return order[torch.arange(self._rank, self._each() * self._ranks, self._ranks) % max(count, 1)]

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None and self._records.device.type == "cuda":
            raise RuntimeError("workers can't use the GPU of their parent; use num_workers=0 with device='cuda'")
        batches = torch.split(self._order(), self._batch_size)[:len(self)]
        if worker is not None:
            batches = batches[worker.id::worker.num_workers]
        with Prefetcher(self._records, self._batch_size, self._ahead) as prefetcher:
            for batch in batches[:self._ahead]:
                prefetcher.start(batch)
            for place in range(len(batches)):
                if place + self._ahead < len(batches):
                    prefetcher.start(batches[place + self._ahead])
                yield prefetcher.take()
