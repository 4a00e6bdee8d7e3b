# SPDX-License-Identifier: BSD-2-Clause
"""Writes safetensors files, with the layout of the package safetensors."""
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from ._memory import memory_of
from ._replace import Piece, replacement, write_pieces
from ._safetensors import _DTYPES, _PAIRS

# The order of the tensors in a file is that of the package: larger alignment first, so that each is aligned.
_ORDER = ["BOOL", "F4", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16", "U16", "F16", "BF16",
          "I32", "U32", "F32", "C64", "F64", "I64", "U64"]
_NAMES = {framework: name for name, framework in _DTYPES.items()} | {_PAIRS: "F4"}


class Layout(NamedTuple):
    header: bytes
    offsets: dict[str, int]  # of each tensor in the file
    size: int


def layout(tensors: Mapping[str, tuple[str, tuple[int, ...], int]], metadata: Mapping[str, str] | None) -> Layout:
    """Places tensors of (dtype, shape, bytes) in a file."""
    described: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    offsets, at = {}, 0
    for name in sorted(tensors, key=lambda name: (-_ORDER.index(tensors[name][0]), name.encode())):
        dtype, shape, length = tensors[name]
        described[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + length]}
        offsets[name] = at
        at += length
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)
    places = {name: begin + offset for name, offset in offsets.items()}
    return Layout(len(text).to_bytes(8, "little") + text, places, begin + at)


def save_safetensors(tensors: Mapping[str, Any], path: str | os.PathLike[str],
                     metadata: Mapping[str, str] | None = None) -> None:
    """Saves tensors by name, as safetensors.torch.save_file() does, but directly from GPU memory and safely:

        sluice.save_safetensors(model.state_dict(), "/mnt/pool/model.safetensors", {"format": "pt"})

    When it returns, the bytes are on the disk. If it fails or the machine stops, the file has its old content. `tensors` has
    torch tensors on any device, NumPy or CuPy arrays. ValueError: one is not contiguous, or has a type that safetensors
    does not have. RuntimeError: two share memory.
    """
    if metadata is not None and not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise TypeError("metadata must have strings as keys and values")
    sources = {name: _source(name, tensor) for name, tensor in tensors.items()}
    _refuse_shared({name: source for name, (source, *_) in sources.items()})
    place = layout({name: (dtype, shape, memory_of(source, writable=False).length)
                    for name, (source, dtype, shape) in sources.items()}, metadata)
    pieces = [Piece(0, len(place.header), place.header)]
    for name, offset in place.offsets.items():
        source = sources[name][0]
        pieces.append(Piece(offset, memory_of(source, writable=False).length, source))
    with replacement(path, place.size) as descriptor:
        write_pieces(descriptor, pieces)


def dtype_name(tensor: Any, name: str) -> str:
    """The name of the tensor's type in safetensors files."""
    own = str(tensor.dtype).rpartition(".")[2]
    if own not in _NAMES:
        raise ValueError(f"tensor {name!r} is {tensor.dtype}, which safetensors files can't have; convert it")
    return _NAMES[own]


def _source(name: str, tensor: Any) -> tuple[Any, str, tuple[int, ...]]:
    if not isinstance(name, str) or name == "__metadata__":
        raise ValueError(f"{name!r} can't be the name of a tensor")
    if not hasattr(tensor, "dtype") or not hasattr(tensor, "shape"):
        raise TypeError(f"{name!r} is a {type(tensor).__name__}; pass torch tensors, NumPy or CuPy arrays")
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        tensor = _native(tensor)
    elif tensor.layout is not torch.strided:
        raise ValueError(f"tensor {name!r} has the layout {tensor.layout}; save tensor.to_dense()")
    elif tensor.is_contiguous():
        tensor = tensor.detach()
    else:
        raise ValueError(f"tensor {name!r} is not contiguous; save tensor.contiguous(), or the tensor that it is a view of")
    dtype, shape = dtype_name(tensor, name), tuple(tensor.shape)
    if dtype == "F4":
        if not shape:
            raise ValueError(f"tensor {name!r} is a scalar of {tensor.dtype}, which safetensors files can't have; reshape it")
        shape = *shape[:-1], shape[-1] * 2
    return tensor, dtype, shape


def _native(array: Any) -> Any:
    """The array in C order and little-endian."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array if array.flags.c_contiguous else array.copy(order="C")


def _refuse_shared(sources: dict[str, Any]) -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    ranges = sorted((str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, name)
                    for name, tensor in sources.items() if isinstance(tensor, torch.Tensor) and tensor.nbytes > 0)
    for before, after in zip(ranges, ranges[1:], strict=False):
        if before[0] == after[0] and after[1] < before[2]:
            raise RuntimeError(f"tensors {before[3]!r} and {after[3]!r} share memory, and would be saved twice and loaded as "
                               "two; save one of them, or a clone")
