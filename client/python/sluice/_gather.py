# SPDX-License-Identifier: BSD-2-Clause
"""Reads and writes records of one size by number: rows of an embedding table, samples of a batch."""
import array
import contextlib
import ctypes
import errno
import importlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ._file import Buffer, File, Result, _enter, _result, _whole
from ._library import Error, ResultStruct, check, library
from ._memory import Memory, memory_of

_BAD_INDEX = re.compile(r"index\[(\d+)\] is (\d+)")


def gather(path_or_file: str | os.PathLike[str] | File, index: Any, dim: int | Sequence[int] | None = None,
           dtype: Any = None, offset: int = 0, device: Any = None, out: Any = None) -> Any:
    """Reads rows of a file by number, in the order of `index`:

        rows = sluice.gather("/mnt/pool/embeddings.bin", index, dim=768, dtype="float32")

    Row 0 begins at byte `offset`. `index` contains integers, in any order and with duplicates: a torch, cupy or numpy array,
    on the host or on a GPU, or any iterable. A row is `dim` elements of `dtype` (or has the shape `dim`); without a dtype it
    is `dim` bytes.

    The result is a tensor or an array of the library of `index`, on the device of `index` or on `device`. Its shape is
    index.shape followed by dim. For an index that is not an array, the result is a tensor if a device is given, a NumPy
    array if a dtype is given, and a bytearray otherwise.
    If `out` is given, it is filled instead and returned. IndexError: the file has no complete row with that number.
    """
    if isinstance(path_or_file, File):
        return path_or_file.gather(index, dim, dtype, offset, device, out)
    with File(path_or_file) as file:
        return file.gather(index, dim, dtype, offset, device, out)


def scatter(path_or_file: str | os.PathLike[str] | File, index: Any, values: Any, offset: int = 0) -> Result:
    """Writes rows by number: values[i] becomes row index[i] of the file. If a number occurs twice, the last row stays. The
    size of a row is the size of `values` divided by the length of `index`. The file does not grow: a number out of range
    raises an IndexError, and then nothing has been written."""
    if isinstance(path_or_file, File):
        return path_or_file.scatter(index, values, offset)
    with File(path_or_file, "r+") as file:
        return file.scatter(index, values, offset)


def gather_rows(file: File, index: Any, dim: int | Sequence[int] | None, dtype: Any, offset: int, device: Any,
                out: Any) -> Any:
    numbers = _Numbers(index)
    if out is None:
        shape = _shape(dim)
        maker = _Maker(numbers, dtype, device)
        row_bytes = math.prod(shape) * maker.item
        if row_bytes == 0:
            raise ValueError("a row must have at least one byte")
        out = maker.make((*numbers.shape, *shape))
    elif device is not None:
        raise TypeError("pass device or out, not both: out already has a device")
    else:
        row_bytes = _row_bytes(numbers.count, _length(out, writable=True), "out")
        if dim is not None and dtype is not None:
            wanted = math.prod(_shape(dim)) * _Maker(numbers, dtype, None).item
            if numbers.count > 0 and wanted != row_bytes:
                raise ValueError(f"out has {row_bytes} bytes for each row, but dim and dtype say {wanted}")
    _transfer(file, library().sluice_gather, numbers, out, row_bytes, offset, writable=True)
    return out


def scatter_rows(file: File, index: Any, values: Any, offset: int) -> Result:
    numbers = _Numbers(index)
    row_bytes = _row_bytes(numbers.count, _length(values, writable=False), "values")
    return _transfer(file, library().sluice_scatter, numbers, values, row_bytes, offset, writable=False)


def _transfer(file: File, function: Callable[..., int], numbers: "_Numbers", target: Any, row_bytes: int, offset: int,
              writable: bool) -> Result:
    offset = _whole(offset, "offset")
    struct = ResultStruct()
    with contextlib.ExitStack() as stack:
        handle = stack.enter_context(file._handle)
        if numbers.count == 0:
            return _result(0, struct)
        memory, buffer = _enter(stack, target, writable)
        for each in (memory, numbers.memory):
            if each.wait:
                each.wait()
        try:
            done = check(function(handle, buffer, 0, numbers.memory.address, numbers.count, row_bytes, offset,
                                  ctypes.byref(struct)), file.path)
        except Error as error:
            raise _index_error(error) from None
    return _result(done, struct)


def _index_error(error: Error) -> Exception:
    found = _BAD_INDEX.search(error._sentence)
    if error.errno != errno.ERANGE or found is None:
        return error
    place, number = int(found[1]), int(found[2])
    if number >= 2**63:
        return IndexError(f"index[{place}] is {number - 2**64}: row numbers must not be negative")
    return IndexError(error._sentence)


def _length(target: Any, writable: bool) -> int:
    return len(target) if isinstance(target, Buffer) else memory_of(target, writable).length


def _row_bytes(count: int, length: int, name: str) -> int:
    if count > 0 and (length == 0 or length % count != 0):
        raise ValueError(f"{name} has {length} bytes, which is not a multiple of the {count} rows")
    return length // count if count > 0 else 0


def _shape(dim: int | Sequence[int] | None) -> tuple[int, ...]:
    if dim is None:
        raise TypeError("pass dim: the number of elements in a row (of bytes if there is no dtype)")
    return tuple(_whole(size, "dim") for size in (dim if isinstance(dim, Sequence) else (dim,)))


class _Numbers:
    """An index as an array of 64-bit numbers, and its library: torch, cupy, numpy, or None."""

    def __init__(self, index: Any) -> None:
        torch = sys.modules.get("torch")
        self.module: Any = None
        self.index = index
        if torch is not None and isinstance(index, torch.Tensor):
            self.module = torch
            if index.dtype.is_floating_point or index.dtype.is_complex or index.dtype == torch.bool:
                raise TypeError(f"an index must contain integers, not {index.dtype}; use index.long()")
            if index.dtype not in (torch.int64, getattr(torch, "uint64", torch.int64)):
                self.index = index.long()
            self.index = self.index.contiguous().flatten()
        elif hasattr(index, "__cuda_array_interface__"):
            self._take_cuda(index)
        elif hasattr(index, "__array_interface__") and hasattr(index, "astype"):
            self.module = importlib.import_module("numpy")
            self._take_array(index)
        else:
            self.index = _plain(index)
        self.memory: Memory = memory_of(self.index, writable=False)
        self.count = self.memory.length // 8
        self.shape: tuple[int, ...] = tuple(getattr(index, "shape", (self.count,)))

    def _take_cuda(self, index: Any) -> None:
        if hasattr(index, "astype"):
            self.module = sys.modules.get(type(index).__module__.partition(".")[0])
            self._take_array(index)
        elif index.__cuda_array_interface__["typestr"] not in ("<i8", "<u8"):
            raise TypeError("an index on a GPU must contain 64-bit integers, not "
                            f"{index.__cuda_array_interface__['typestr']}")

    def _take_array(self, index: Any) -> None:
        if index.dtype.kind not in "iu":
            raise TypeError(f"an index must contain integers, not {index.dtype}; use index.astype('int64')")
        if index.dtype.itemsize != 8 or not index.dtype.isnative:
            index = index.astype("uint64" if index.dtype.kind == "u" else "int64")
        self.index = index.ravel()  # a copy only if necessary


def _plain(index: Iterable[int]) -> Any:
    """An index that is not an array of a library."""
    if isinstance(index, (Iterator, bytes, bytearray)):
        # An iterator is needed again to find the wrong number; array.array() takes bytes as the memory of numbers.
        index = list(index)
    try:
        return array.array("Q", index)
    except OverflowError:
        for place, number in enumerate(index):
            if not 0 <= number < 2**64:
                raise IndexError(f"index[{place}] is {number}: row numbers must not be negative") from None
        raise
    except TypeError as error:
        raise TypeError(f"an index must be an array or an iterable of integers: {error}") from None


class _Maker:
    """Allocates the result, with the index's library and on its device unless another device is given."""

    def __init__(self, numbers: _Numbers, dtype: Any, device: Any) -> None:
        torch = sys.modules.get("torch")
        library_name = getattr(numbers.module, "__name__", None)
        if library_name == "cupy" and device is not None:
            raise TypeError("CuPy has one current device: use `with cupy.cuda.Device(...)`, or pass out=")
        if torch is not None and isinstance(dtype, torch.dtype):
            library_name = "torch"
        elif device is not None and (library_name is None or str(device) != "cpu"):
            library_name = "torch"
        elif library_name is None and dtype is not None:
            library_name = "numpy"
        self._module: Any = None
        self.item = 1
        if library_name is None:
            return
        self._module = _import(library_name, f"device={device!r}" if device is not None else f"dtype={dtype!r}")
        if library_name == "torch":
            self._dtype = _torch_dtype(self._module, dtype)
            self.item = self._dtype.itemsize
            self._device = device if device is not None else getattr(numbers.index, "device", "cpu")
            if device is None and numbers.module is not self._module:
                self._device = "cpu"
        else:
            self._dtype = self._module.dtype("uint8" if dtype is None else dtype)
            self.item = self._dtype.itemsize

    def make(self, shape: tuple[int, ...]) -> Any:
        if self._module is None:
            return bytearray(math.prod(shape))
        if self._module.__name__ == "torch":
            return self._module.empty(shape, dtype=self._dtype, device=self._device)
        return self._module.empty(shape, dtype=self._dtype)


def _import(name: str, wanted: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{wanted} needs {name}: {error}; install it, or pass out=") from None


def _torch_dtype(torch: Any, dtype: Any) -> Any:
    if dtype is None:
        return torch.uint8
    if isinstance(dtype, torch.dtype):
        return dtype
    # As torch.empty() and NumPy take them; torch.float is float32.
    of_python = {float: torch.float64, int: torch.int64, complex: torch.complex128}
    if isinstance(dtype, type) and dtype in of_python:
        return of_python[dtype]
    name = dtype if isinstance(dtype, str) else str(getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype))
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"torch has no dtype {name!r}; pass one of torch's, such as torch.float32")
    return found
