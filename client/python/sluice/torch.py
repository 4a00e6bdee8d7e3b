# SPDX-License-Identifier: BSD-2-Clause
"""Datasets for PyTorch."""
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from ._file import File


class RecordDataset(Dataset[torch.Tensor]):  # type: ignore[misc,unused-ignore]  # torch may be missing
    """A map-style dataset of a file with records of one size.

        dataset = RecordDataset("/mnt/pool/train.bin", dtype=torch.int32, shape=(2048,))
        loader = torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True)

    A record is `record_bytes` bytes (uint8), or a tensor of `dtype` and `shape`. A batch is one request for all of its
    records. Each worker of a DataLoader opens the file itself. With a CUDA `device` use no workers: the records are read
    directly to the GPU.
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
