# SPDX-License-Identifier: BSD-2-Clause
"""Safetensors files into memory: one arena a file or a layer, filled by one request, with the tensors as views of it.

The format: eight bytes with the header's length, little-endian; the header, JSON; the data, which the tensors cover
without holes. See https://github.com/huggingface/safetensors#format.
"""
import concurrent.futures
import contextlib
import dataclasses
import importlib
import json
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from ._file import Buffer, File
from ._memory import memory_of

_HEADER_LIMIT = 100_000_000  # the format's own
_LARGEST = 2**63 - 1
_IN_FLIGHT = 4
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"

# Bits of an element, and what the frameworks call it.
_DTYPES: dict[str, tuple[int, str, str]] = {
    "BOOL": (8, "bool", "bool"), "U8": (8, "uint8", "uint8"), "I8": (8, "int8", "int8"), "U16": (16, "uint16", "uint16"),
    "I16": (16, "int16", "int16"), "U32": (32, "uint32", "uint32"), "I32": (32, "int32", "int32"),
    "U64": (64, "uint64", "uint64"), "I64": (64, "int64", "int64"), "F16": (16, "float16", "float16"),
    "BF16": (16, "bfloat16", "bfloat16"), "F32": (32, "float32", "float32"), "F64": (64, "float64", "float64"),
    "C64": (64, "complex64", "complex64"), "F8_E4M3": (8, "float8_e4m3fn", "float8_e4m3fn"),
    "F8_E5M2": (8, "float8_e5m2", "float8_e5m2"), "F8_E8M0": (8, "float8_e8m0fnu", "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz", "float8_e4m3fnuz"), "F8_E5M2FNUZ": (8, "float8_e5m2fnuz", "float8_e5m2fnuz"),
}


@dataclasses.dataclass(frozen=True)
class _Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int  # in the file
    length: int


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key!r} stands there twice")
        found[key] = value
    return found


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _bytes_of(shape: Iterable[int], bits: int, limit: int) -> int | None:
    """The size of a tensor in bytes; None if it is more than `limit`, or no whole number."""
    if 0 in shape:
        return 0
    total = bits
    for size in shape:
        total *= size
        if total > limit * 8:
            return None
    return total // 8 if total % 8 == 0 else None


def _parse_tensor(where: str, name: str, entry: object, start: int, size: int) -> _Tensor:
    where = f"{where}: tensor {name!r}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{where}: must be an object with dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ValueError(f"{where}: dtype {dtype!r} is not known")
    if not isinstance(shape, list) or not all(_is_size(each) for each in shape):
        raise ValueError(f"{where}: the shape must be a list of whole numbers")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(each) for each in offsets):
        raise ValueError(f"{where}: data_offsets must be two whole numbers")
    begin, end = offsets
    if begin > end or end > size:
        raise ValueError(f"{where}: data_offsets {begin} to {end} are not within the {size} bytes of data")
    needed = _bytes_of(shape, _DTYPES[dtype][0], size)
    if needed != end - begin:
        raise ValueError(f"{where}: {dtype} of shape {shape} is not {end - begin} bytes, as data_offsets say")
    return _Tensor(name, dtype, tuple(shape), start + begin, end - begin)


def _parse_header(file: File) -> list[_Tensor]:
    """The tensors of a file in the order of their bytes. ValueError says what is wrong, and where."""
    where = file.path
    size = file.size
    if size < 8:
        raise ValueError(f"{where}: a safetensors file has at least 8 bytes, this one {size}")
    length = int.from_bytes(file.read(0, 8), "little")
    if length > _HEADER_LIMIT:
        raise ValueError(f"{where}: bytes 0 to 8: a header of {length} bytes is more than the {_HEADER_LIMIT} that may be; "
                         "is it a safetensors file?")
    if length > size - 8:
        raise ValueError(f"{where}: bytes 0 to 8: the header has {length} bytes, but only {size - 8} follow; "
                         "is the file complete?")
    text = file.read(8, length)
    try:
        if not text.startswith(b"{"):
            raise ValueError("it does not begin with '{'")
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: the header, from byte 8 on: {error}") from None
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError(f"{where}: __metadata__ must be an object of strings")
    start = 8 + length
    tensors = [_parse_tensor(where, name, entry, start, size - start) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.length))
    at = start
    for tensor in tensors:
        if tensor.begin != at:
            what = "overlaps the one before it" if tensor.begin < at else "leaves a hole before it"
            raise ValueError(f"{where}: tensor {tensor.name!r} {what}: it begins at byte {tensor.begin}, not {at}")
        at += tensor.length
    if at != size:
        raise ValueError(f"{where}: the tensors end at byte {at}, the file at {size}")
    return tensors


@dataclasses.dataclass(frozen=True)
class _Shard:
    file: File
    tensors: list[_Tensor]


def _parse_index(path: pathlib.Path) -> dict[pathlib.Path, set[str]]:
    """Which tensors to take from which file."""
    try:
        index = json.loads(path.read_text("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict):
        raise ValueError(f"{path}: there is no weight_map, an object of file names by tensor name")
    shards: dict[pathlib.Path, set[str]] = {}
    for tensor, name in names.items():
        if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"{path}: weight_map: {tensor!r}: {name!r} is not the name of a file beside the index")
        shards.setdefault(path.parent / name, set()).add(tensor)
    return shards


def _open_shards(path_or_index: str | os.PathLike[str], stack: contextlib.ExitStack) -> list[_Shard]:
    path = pathlib.Path(path_or_index)
    if path.is_dir():
        path = path / _INDEX if (path / _INDEX).exists() else path / _SINGLE
    if path.suffix != ".json":
        file = stack.enter_context(File(path))
        return [_Shard(file, _parse_header(file))]
    shards = []
    for shard, names in sorted(_parse_index(path).items()):
        file = stack.enter_context(File(shard))
        tensors = _parse_header(file)
        missing = names - {tensor.name for tensor in tensors}
        if missing:
            raise ValueError(f"{path}: weight_map: {min(missing)!r} is not in {shard.name}")
        shards.append(_Shard(file, [tensor for tensor in tensors if tensor.name in names]))
    return shards


class _Framework:
    """Makes arenas and views of them."""

    def __init__(self, name: str, device: str) -> None:
        if name not in ("pt", "np"):
            raise ValueError(f"framework must be 'pt' (PyTorch) or 'np' (NumPy), not {name!r}")
        if name == "np" and device != "cpu":
            raise ValueError(f"NumPy has no memory on {device!r}; use framework='pt', or device='cpu'")
        self.name, self.device = name, device
        try:
            self.module = importlib.import_module("torch" if name == "pt" else "numpy")
        except ImportError as error:
            other = "np" if name == "pt" else "pt"
            raise ImportError(f"framework={name!r}: {error}; install it, or use framework={other!r}") from None

    def dtype(self, tensor: _Tensor) -> Any:
        _, torch_name, numpy_name = _DTYPES[tensor.dtype]
        if self.name == "pt":
            found = getattr(self.module, torch_name, None)
        else:
            found = None
            with contextlib.suppress(TypeError):
                found = self.module.dtype(numpy_name)
            if found is None:
                with contextlib.suppress(ImportError):
                    found = getattr(importlib.import_module("ml_dtypes"), numpy_name, None)
        if found is None:
            what = f"torch {self.module.__version__}" if self.name == "pt" else "NumPy"
            do = "use a newer one" if self.name == "pt" else "install ml_dtypes, or use framework='pt'"
            raise ValueError(f"tensor {tensor.name!r}: {what} has no dtype for {tensor.dtype}; {do}")
        return found

    def arena(self, length: int) -> Any:
        if self.name == "pt":
            return self.module.empty(length, dtype=self.module.uint8, device=self.device)
        return self.module.empty(length, dtype=self.module.uint8)

    def view(self, arena: Any, tensor: _Tensor, at: int) -> Any:
        dtype = self.dtype(tensor)
        try:
            if tensor.length == 0:
                if self.name == "pt":
                    return self.module.empty(tensor.shape, dtype=dtype, device=self.device)
                return self.module.empty(tensor.shape, dtype=dtype)
            return arena[at:at + tensor.length].view(dtype).reshape(tensor.shape)
        except (ValueError, RuntimeError, OverflowError) as error:
            raise ValueError(f"tensor {tensor.name!r} of shape {tensor.shape}: {error}") from None


class _Load:
    """Tensors of one file on their way into an arena. Made in the caller's thread, whose stream and GPU the memory is
    allocated for; run() may be called in another."""

    def __init__(self, file: File, tensors: list[_Tensor], framework: _Framework) -> None:
        self._file, self._tensors, self._framework = file, tensors, framework
        self.bytes = sum(tensor.length for tensor in tensors)
        # As in the file, so that one range of it is one range here; but a tensor that would not be aligned there begins
        # at the next place where it is.
        self._places: list[int] = []
        self._segments: list[list[int]] = []  # file_offset, target_offset, length
        end = 0
        for tensor in tensors:
            framework.dtype(tensor)  # before anything is allocated
            item = _DTYPES[tensor.dtype][0] // 8
            at = end + -end % item
            self._places.append(at)
            end = at + tensor.length
            last = self._segments[-1] if self._segments else None
            if last is not None and (last[0] + last[2], last[1] + last[2]) == (tensor.begin, at):
                last[2] += tensor.length
            elif tensor.length > 0:
                self._segments.append([tensor.begin, at, tensor.length])
        self._arena = framework.arena(end)
        memory = memory_of(self._arena, writable=True)
        self._buffer, self._wait = Buffer(memory), memory.wait

    def run(self) -> dict[str, Any]:
        with self._buffer:
            if self._wait:
                self._wait()
            if len(self._segments) == 1:
                source, to, length = self._segments[0]
                done = self._file.read_into(self._buffer, source, length, target_offset=to).bytes
            else:
                done = self._file.readv(self._buffer, [(a, b, c) for a, b, c in self._segments]).bytes
        if done != self.bytes:
            raise ValueError(f"{self._file.path}: {done} bytes came of {self.bytes}; the file has become shorter")
        views = {tensor.name: self._framework.view(self._arena, tensor, at)
                 for tensor, at in zip(self._tensors, self._places, strict=True)}
        del self._arena  # it is the views' from now on
        return views


class _Progress:
    """A line on stderr, when that is a terminal and the work takes long enough to wonder."""
    PATIENCE_S = 1.5

    def __init__(self, files: int, total: int) -> None:
        self._files, self._total = files, total
        self._done_files = self._done = 0
        self._start = time.monotonic()
        self._shown = False

    def add(self, size: int) -> None:
        self._done_files += 1
        self._done += size

    def show(self) -> None:
        elapsed = time.monotonic() - self._start
        if elapsed < self.PATIENCE_S or not sys.stderr.isatty():
            return
        self._shown = True
        full = 30 * self._done // self._total if self._total else 30
        print(f"\r[{'#' * full}{' ' * (30 - full)}] {self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB, "
              f"{self._done_files} of {self._files} files, {elapsed:.0f} s\033[K", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def load_safetensors(path_or_index: str | os.PathLike[str], device: str = "cpu", framework: str = "pt") -> dict[str, Any]:
    """Loads a safetensors file, or all files of an index (model.safetensors.index.json, or the folder that has it).

    The tensors of a file are views of one piece of memory, filled by one read with no copy in between; that memory is freed
    when the last of them is. `device` is "cpu", "cuda", "cuda:1"; framework "pt" gives torch tensors, "np" NumPy arrays.
    ValueError says what is wrong with a file, and where.
    """
    made = _Framework(framework, device)
    tensors: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        shards = _open_shards(path_or_index, stack)
        loads = [_Load(shard.file, shard.tensors, made) for shard in shards]
        progress = _Progress(len(loads), sum(load.bytes for load in loads))
        stack.callback(progress.end)
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(_IN_FLIGHT, "sluice-load"))
        stack.callback(pool.shutdown, cancel_futures=True)
        under_way = {pool.submit(load.run): load.bytes for load in loads}
        loads.clear()
        while under_way:
            done, _ = concurrent.futures.wait(under_way, 0.2, concurrent.futures.FIRST_COMPLETED)
            for future in done:
                tensors |= future.result()
                progress.add(under_way.pop(future))
            progress.show()
    return tensors


_LAYER = re.compile(r"(?:.*?\.)??\d+(?=\.)")


def _layer_of(name: str) -> str:
    match = _LAYER.match(name)
    return match.group() if match else ""


def _natural(key: Hashable) -> list[tuple[int, int, str]]:
    """Sorts layer 2 before layer 10."""
    parts = re.split(r"(\d+)", str(key))
    return [(0, int(part), "") if part.isdecimal() and part.isascii() else (1, 0, part) for part in parts if part]


def stream_layers(path_or_index: str | os.PathLike[str], groups: Callable[[str], Hashable | None] | None = None,
                  device: str = "cpu", ahead: int = 2, framework: str = "pt") -> Iterator[tuple[Any, dict[str, Any]]]:
    """Goes through a model layer by layer, as (key, tensors by name), with the next `ahead` layers being loaded meanwhile.

    A layer is what has the same name up to its first number: "model.layers.7". All that has no number (embeddings, the
    head) comes first, as layer "". `groups` may say otherwise: it is given a tensor's name, and returns the layer's key, or
    None to leave the tensor out. Layers come in the order of their keys, 2 before 10.

    No more than `ahead` + 1 layers are in memory: the dict is emptied when the next layer is asked for. To keep tensors
    longer, take them out of it.
    """
    if ahead < 0:
        raise ValueError(f"ahead must be 0 or more, not {ahead}")
    return _stream(_Framework(framework, device), path_or_index, groups or _layer_of, ahead)


def _stream(framework: _Framework, path_or_index: str | os.PathLike[str], group_of: Callable[[str], Hashable | None],
            ahead: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    with contextlib.ExitStack() as stack:
        layers: dict[Hashable, list[tuple[File, list[_Tensor]]]] = {}
        for shard in _open_shards(path_or_index, stack):
            parts: dict[Hashable, list[_Tensor]] = {}
            for tensor in shard.tensors:
                key = group_of(tensor.name)
                if key is not None:
                    parts.setdefault(key, []).append(tensor)
            for key, part in parts.items():
                layers.setdefault(key, []).append((shard.file, part))
        keys = sorted(layers, key=_natural)
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(_IN_FLIGHT, "sluice-layers"))
        stack.callback(pool.shutdown, cancel_futures=True)
        coming: list[list[concurrent.futures.Future[dict[str, Any]]]] = []
        begun = 0
        for i, key in enumerate(keys):
            while begun < len(keys) and begun <= i + ahead:
                coming.append([pool.submit(_Load(file, part, framework).run) for file, part in layers[keys[begun]]])
                begun += 1
            tensors: dict[str, Any] = {}
            for future in coming.pop(0):
                tensors |= future.result()
            del future
            yield key, tensors
            tensors.clear()
