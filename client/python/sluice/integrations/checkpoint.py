# SPDX-License-Identifier: BSD-2-Clause
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# (pyright takes sluice/torch.py for PyTorch where that is not installed)
"""Storage for torch.distributed.checkpoint, from and to GPU memory:

    import torch.distributed.checkpoint as dcp
    from sluice.integrations.checkpoint import Reader, Writer

    dcp.save(state, storage_writer=Writer("/mnt/pool/checkpoint"))
    dcp.load(state, storage_reader=Reader("/mnt/pool/checkpoint"))

A checkpoint is a folder. Each rank writes one safetensors file with a name that no earlier checkpoint has. When all of them
are on the disk, rank 0 replaces the file .metadata, which names them, and removes the files of the checkpoint before. So the
folder always has a complete checkpoint: the last one whose save() has ended. What a save that failed has left is removed when
the next one begins.
"""
import concurrent.futures
import contextlib
import dataclasses
import io
import math
import os
import pickle
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .._file import File, register
from .._memory import memory_of
from .._replace import Piece, replacement, sync_folder, write_pieces
from .._safetensors import _DTYPES, Model, Tensor
from .._save import layout

_SUFFIX = ".safetensors"
_READ_BYTES = 64 << 20
_IN_FLIGHT = 4
_METADATA = r"(__\d+)?\.metadata"
_NAMES = {getattr(torch, name): saved for saved, name in _DTYPES.items() if hasattr(torch, name)}


class Writer(filesystem.FileSystemWriter):  # type: ignore[misc,unused-ignore]  # torch may be missing
    """Writes checkpoints to a folder. With overwrite=False, a folder that has one is refused."""

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = True,
                 cache_staged_state_dict: bool = False) -> None:
        super().__init__(path, overwrite=overwrite, cache_staged_state_dict=cache_staged_state_dict)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        self.fs.mkdir(self.path)
        if not self.overwrite and self._metadata_exists():
            raise RuntimeError(f"{self.path} has a checkpoint; choose another folder, or pass overwrite=True")
        if self._is_alone():
            # It is what load() reads first, and no rank knows when all ranks have saved, so that it may go.
            if os.path.exists(self._get_metadata_path()):
                raise RuntimeError(f"{self.path} has a checkpoint that all ranks saved together, which use_collectives=False "
                                   "can't replace; choose another folder, or remove its .metadata")
            plan = dataclasses.replace(plan, storage_data=self._prefix(self.rank, secrets.token_hex(4)))
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        # Here no rank writes yet, and only rank 0 is called, or each rank for its own files.
        self._remove_unfinished()
        name = secrets.token_hex(4)
        return [plan if plan.storage_data is not None else dataclasses.replace(plan, storage_data=self._prefix(rank, name))
                for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[list[WriteResult]]":
        # A new name each time: a planner that caches plans brings the prefix of the save before.
        name = f"{plan.storage_data.prefix}{secrets.token_hex(4)}{_SUFFIX}"
        sources = {_name(item, number): _bytes_of(item, planner) for number, item in enumerate(plan.items)}
        place = layout({item: (dtype, shape, length) for item, (_, dtype, shape, length) in sources.items()},
                       {"format": "torch.distributed.checkpoint"})
        pieces = [Piece(0, len(place.header), place.header)]
        pieces += [Piece(offset, sources[item][3], sources[item][0]) for item, offset in place.offsets.items()]
        with replacement(os.path.join(self.path, name), place.size) as descriptor:
            write_pieces(descriptor, pieces)
        written: Future[list[WriteResult]] = Future()
        written.set_result([
            WriteResult(item.index, source[3], filesystem._StorageInfo(name, place.offsets[key], source[3]))
            for item, (key, source) in zip(plan.items, sources.items(), strict=True)])
        return written

    def finish(self, metadata: Any, results: list[list[WriteResult]]) -> None:
        metadata.version = filesystem.CURRENT_DCP_VERSION
        metadata.storage_data = {each.index: each.storage_data for written in results for each in written}
        metadata.storage_meta = self.storage_meta()
        sync_folder(os.path.dirname(os.path.realpath(self.path)))  # the folder may be new
        with replacement(self._get_metadata_path(self.rank if self._is_alone() else None)) as descriptor:
            write_pieces(descriptor, [Piece(0, len(text := pickle.dumps(metadata)), text)])
        self._remove_others({each.relative_path for each in metadata.storage_data.values()})

    def _metadata_exists(self) -> bool:
        if self._is_alone():  # other ranks may have finished this save already
            return os.path.exists(self._get_metadata_path(self.rank))
        return any(re.fullmatch(_METADATA, name) for name in os.listdir(self.path))

    def _is_alone(self) -> bool:
        """Every rank has its own metadata."""
        return self.rank is not None and not self.use_collectives

    @staticmethod
    def _prefix(rank: int | None, name: str) -> Any:
        return filesystem._StoragePrefix(f"__{rank}_{name}_")

    def _remove_unfinished(self) -> None:
        """Removes the files of saves that failed: without this, each would take the space of a checkpoint."""
        with contextlib.suppress(OSError):  # then finish() says so, if it can't remove them either
            texts = []
            for name in filter(re.compile(_METADATA).fullmatch, os.listdir(self.path)):
                with open(os.path.join(self.path, name), "rb") as file:
                    texts.append(file.read())
            # A pickle has strings as they are. It is not loaded, because to save is not to trust what is there.
            self._remove(self._data_files(), lambda name: any(name.encode() in text for text in texts))

    def _remove_others(self, names: set[str]) -> None:
        """Removes the files of earlier checkpoints."""
        patterns = [*self._data_files(), rf"__{self._owned()}_.*\.distcp"]
        if not self._is_alone():
            patterns.append(r"__\d+\.metadata")  # of ranks that saved alone
        self._remove(patterns, names.__contains__)

    def _owned(self) -> str:
        """The ranks whose files this one may remove."""
        return str(self.rank) if self._is_alone() else r"\d+"

    def _data_files(self) -> list[str]:
        return [rf"__{self._owned()}_[0-9a-f_]+\.safetensors", rf"\.__{self._owned()}_[0-9a-f_]+\.safetensors\..*\.saving"]

    def _remove(self, patterns: list[str], is_needed: Callable[[str], bool]) -> None:
        for name in filter(re.compile("|".join(patterns)).fullmatch, os.listdir(self.path)):
            if not is_needed(name):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.path, name))


def _name(item: Any, number: int) -> str:
    """For people who look into the file; a checkpoint is read by offset."""
    offset = "" if item.index.offset is None or not any(item.index.offset) else f"@{','.join(map(str, item.index.offset))}"
    return f"{number}:{item.index.fqn}{offset}"


def _bytes_of(item: Any, planner: SavePlanner) -> tuple[Any, str, tuple[int, ...], int]:
    data: Any = planner.resolve_data(item)
    if item.type == WriteItemType.BYTE_IO:
        content = data.getvalue()
        return content, "U8", (len(content),), len(content)
    tensor = data.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype not in _NAMES:
        tensor = tensor.unsqueeze(-1).view(torch.uint8)  # for example complex128: one dimension more
    if tensor.device.type not in ("cpu", "cuda"):
        tensor = tensor.cpu()
    return tensor, _NAMES[tensor.dtype], tuple(tensor.shape), tensor.nbytes


class Reader(filesystem.FileSystemReader):  # type: ignore[misc,unused-ignore]
    """Reads checkpoints of Writer, and those of torch's FileSystemWriter."""

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *arguments: Any, **options: Any) -> None:
        super().set_up_storage_reader(metadata, is_coordinator, *arguments, **options)
        self._dtypes = {name: each.properties.dtype for name, each in metadata.state_dict_metadata.items()
                        if hasattr(each, "properties")}

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        others: list[Any] = []
        files: dict[str, list[Any]] = {}
        for item in plan.items:
            name = self.storage_data[item.storage_index].relative_path
            if name.endswith(_SUFFIX):
                files.setdefault(name, []).append(item)
            else:
                others.append(item)
        if others:
            super().read_data(dataclasses.replace(plan, items=others), planner)
        with concurrent.futures.ThreadPoolExecutor(_IN_FLIGHT, "sluice-checkpoint") as pool:
            for name, items in files.items():
                self._read_file(os.path.join(self.path, name), items, planner, pool)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_file(self, path: str, items: list[Any], planner: LoadPlanner, pool: concurrent.futures.Executor) -> None:
        with Model.open(path) as model:
            stored = {tensor.file_offset: tensor for tensor in model.tensors() if tensor.length > 0}
        direct = []
        with File(path) as file:
            reads = _Reads(file, pool)
            for item in items:
                info = self.storage_data[item.storage_index]
                if info.length > 0 and getattr(stored.get(info.offset), "length", None) != info.length:
                    raise ValueError(f"{path} has no tensor of {info.length} bytes at byte {info.offset}, as .metadata says")
                if item.type == LoadItemType.BYTE_IO:
                    planner.load_bytes(item, io.BytesIO(file.read(info.offset, info.length)))
                    continue
                target = planner.resolve_tensor(item).detach()
                if target.size() != torch.Size(item.lengths):
                    raise ValueError(f"{item.storage_index.fqn}: the tensor has the shape {tuple(target.shape)}, but "
                                     f"{tuple(item.lengths)} is to be loaded")
                if target.numel() == 0:
                    planner.commit_tensor(item, target)
                elif reads.start(target, *self._place(item, stored[info.offset])):
                    direct.append((item, target))
                else:
                    self._read_part(item, stored[info.offset], target, _Reads(file, pool))
                    planner.commit_tensor(item, target)
            reads.finish()
        for item, target in direct:
            planner.commit_tensor(item, target)

    def _type(self, item: Any, tensor: Tensor) -> tuple[torch.dtype, tuple[int, ...]]:
        """The type and the shape that a tensor in a file stands for."""
        dtype = getattr(torch, _DTYPES[tensor.dtype])
        if len(tensor.shape) == len(item.lengths) + 1:
            return self._dtypes[item.storage_index.fqn], tensor.shape[:-1]
        return dtype, tensor.shape

    def _place(self, item: Any, tensor: Tensor) -> tuple[torch.dtype, int | None]:
        """The type of the item, and the offset of its bytes in the file; None if they are not in one place."""
        dtype, shape = self._type(item, tensor)
        begin, size, is_whole = 0, dtype.itemsize, True  # is_whole: all later dimensions are wanted completely
        for offset, length, full in reversed(list(zip(item.storage_offsets, item.lengths, shape, strict=True))):
            if not is_whole and length != 1:
                return dtype, None
            begin += offset * size
            is_whole = is_whole and length == full
            size *= full
        return dtype, tensor.file_offset + begin

    def _read_part(self, item: Any, tensor: Tensor, target: torch.Tensor, reads: "_Reads") -> None:
        """Reads more than the part, and copies what is wanted."""
        dtype, shape = self._type(item, tensor)
        rows = slice(0, 1) if not shape else slice(item.storage_offsets[0], item.storage_offsets[0] + item.lengths[0])
        device = target.device if target.device.type in ("cpu", "cuda") else "cpu"
        whole = torch.empty((rows.stop - rows.start, *shape[1:]) if shape else (), dtype=dtype, device=device)
        row_bytes = math.prod(shape[1:]) * dtype.itemsize
        if not reads.start(whole, dtype, tensor.file_offset + rows.start * row_bytes):
            raise ValueError(f"{item.storage_index.fqn}: memory on {device} can't be filled")
        reads.finish()
        for dimension in range(1, len(shape)):
            whole = whole.narrow(dimension, item.storage_offsets[dimension], item.lengths[dimension])
        target.copy_(whole)


class _Reads:
    """Reads of one file in progress."""

    def __init__(self, file: File, pool: concurrent.futures.Executor) -> None:
        self._file, self._pool = file, pool
        self._futures: list[concurrent.futures.Future[None]] = []

    def start(self, target: torch.Tensor, dtype: torch.dtype, offset: int | None) -> bool:
        """Starts to fill the tensor with what is at `offset`. False: this tensor can't be filled directly."""
        if offset is None or target.dtype != dtype or target.device.type not in ("cpu", "cuda") or not target.is_contiguous():
            return False
        if target.is_conj() or target.is_neg():  # its memory does not have its values
            return False
        wait = memory_of(target, writable=True).wait
        if wait:
            wait()  # in this thread, whose stream may have work on it
        buffer = register(target)
        for start, length in _cut(target.nbytes):
            self._futures.append(self._pool.submit(self._read, buffer, offset + start, start, length))
        return True

    def _read(self, buffer: Any, offset: int, start: int, length: int) -> None:
        done = self._file.read_into(buffer, offset, length, target_offset=start).bytes
        if done != length:
            raise ValueError(f"{self._file.path} became shorter: it ends at byte {offset + done}")

    def finish(self) -> None:
        concurrent.futures.wait(self._futures)
        for future in self._futures:
            future.result()


def _cut(size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, _READ_BYTES):
        yield start, min(_READ_BYTES, size - start)
