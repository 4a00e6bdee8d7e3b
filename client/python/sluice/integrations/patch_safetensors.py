# SPDX-License-Identifier: BSD-2-Clause
"""safetensors.safe_open for files on a Sluice mount. safetensors.torch.load_file and the other loaders are made of it.

The original is always opened, too. It checks the file, answers everything that is not about bytes on a GPU, and is what a
failed load falls back to; tensors on the CPU are its own, which map the file.
"""
import concurrent.futures
import contextlib
import functools
import importlib
import inspect
import mmap
import os
import sys
import types
from typing import Any

from .._file import File, Result
from .._file import open as open_file
from .._safetensors import _DTYPES, _PAIRS, Model, Tensor, shape_in_torch
from ._bulk import Bulk, FileState, gpu_of, left_to_original, on_mount
from ._report import report

_TORCH = ("pt", "torch", "pytorch")
_NUMPY = ("np", "numpy")
_NUMPY_DTYPES = {"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "F32", "F64", "C64"}
_NUMPY_THREADS = 4
_PIECE_BYTES = 16 << 20
_RUN_BYTES = 16 << 10  # shorter runs of a slice are read together with what is between them
# /proc/self/pagemap has a word for each page of memory.
_WORD = 8
_PAGE_PRESENT = -(1 << 62)  # in memory or swapped out: bits 62 and 63
_PAGE_OF_FILE = 1 << 61


def patch(module: Any) -> None:
    original = module.safe_open
    # A class, because the original is one; programs check for it, or annotate with it.
    replaced = _Meta("safe_open", (), {"__doc__": original.__doc__, "__module__": "safetensors", "original": original})
    with contextlib.suppress(ValueError):  # it has none
        replaced.__signature__ = inspect.signature(original)
    replace_everywhere(original, replaced)


def replace_everywhere(original: Any, replaced: Any) -> None:
    """Replaces a function in its module and in those that have imported it by name."""
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and not module.__name__.endswith("_safetensors_rust"):
            for name in [name for name, value in list(vars(module).items()) if value is original]:
                setattr(module, name, replaced)


class _Meta(type):
    original: Any
    __signature__: inspect.Signature

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.original, name)  # programs ask what this version has

    def __dir__(cls) -> list[str]:
        return dir(cls.original)

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        ours = _prepare(*arguments, **options)
        inner = cls.original(*arguments, **options)
        return inner if ours is None else Opened(inner, *ours)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Opened) or (isinstance(cls.original, type) and isinstance(instance, cls.original))


def _prepare(filename: Any = None, framework: Any = None, device: Any = "cpu", *_: Any,
             **__: Any) -> tuple[FileState, str, Any] | None:
    """What Opened needs; None if the file is not on a mount, or the original should do it all."""
    if not isinstance(filename, str | os.PathLike):
        return None
    try:
        path = os.fspath(filename)
        if framework not in (*_TORCH, *_NUMPY) or not isinstance(path, str) or not on_mount(path):
            return None
        gpu = gpu_of(device) if framework in _TORCH and device != "cpu" else None
        if gpu is None and device != "cpu":
            return None
        return FileState(os.path.abspath(path)), "pt" if framework in _TORCH else "np", gpu
    except Exception as error:
        report.fell_back(str(filename), error)
        return None


class Opened:
    """An open file on a mount."""

    def __init__(self, inner: Any, state: FileState, framework: str, gpu: Any) -> None:
        self._inner, self._framework, self._gpu = inner, framework, gpu
        self.bulk = Bulk(state, Model.open)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # of a copy that has nothing yet
            raise AttributeError(name)
        found = getattr(self._inner, name)
        return self._get_tensors if name == "get_tensors" else found  # safetensors has it since 0.8

    def __enter__(self) -> "Opened":
        self._inner.__enter__()
        return self

    def __exit__(self, *why: object) -> Any:
        self.bulk.forget()
        return self._inner.__exit__(*why)

    def get_slice(self, name: str) -> "PySafeSlice":
        return PySafeSlice(self._inner.get_slice(name), self.bulk, name, self._gpu)

    def get_tensor(self, name: str) -> Any:
        if self._gpu is None:
            tensor = self._inner.get_tensor(name)
            if self._framework == "pt":
                _origins()[tensor] = self.bulk, name, _place(tensor)
            return tensor
        self._inner.get_slice(name)  # raises the right error if there is no such tensor, or the file is closed
        try:
            return read_tensor(self.bulk, name, self._gpu, ahead=True)
        except Exception as error:
            left_to_original(self.bulk, name, error)
        return self._inner.get_tensor(name)

    def _get_tensors(self) -> dict[str, Any]:
        names = self._inner.offset_keys()
        if self._framework == "np":
            return self._arrays(names)
        if self._gpu is None:
            return {name: self.get_tensor(name) for name in names}
        try:
            self.bulk.want([name for name, tensor in self.bulk.tensors().items() if tensor.length], self._gpu)
        except Exception as error:
            left_to_original(self.bulk, "", error)
            return dict(self._inner.get_tensors())
        return {name: self.get_tensor(name) for name in names}

    def _arrays(self, names: list[str]) -> dict[str, Any]:
        """The original copies the arrays one after the other."""
        try:
            numpy, tensors = importlib.import_module("numpy"), self.bulk.tensors()
            if all(tensors[name].dtype in _NUMPY_DTYPES and tensors[name].length for name in names):
                arrays = {name: numpy.empty(tensors[name].shape, _DTYPES[tensors[name].dtype]) for name in names}
                pieces = [(tensors[name], array.reshape(-1).view(numpy.uint8), at) for name, array in arrays.items()
                          for at in range(0, tensors[name].length, _PIECE_BYTES)]
                with (report.load(self.bulk.path) as results, open_file(self.bulk.path) as file,
                      concurrent.futures.ThreadPoolExecutor(_NUMPY_THREADS) as pool):
                    self.bulk.check()  # it is the file that the header was read from
                    results.extend(pool.map(lambda piece: _read_piece(file, *piece), pieces))
                return arrays
        except Exception as error:
            left_to_original(self.bulk, "", error)
        return dict(self._inner.get_tensors())


def _read_piece(file: File, tensor: Tensor, target: Any, at: int) -> Result:
    length = min(_PIECE_BYTES, tensor.length - at)
    result = file.read_into(target[at:at + length], tensor.file_offset + at)
    if result.bytes != length:
        raise ValueError(f"{file.path} became shorter while it was read")
    return result


class PySafeSlice:
    """A tensor that is read when it is indexed. With a GPU, that is where it is read to."""

    def __init__(self, inner: Any, bulk: Bulk, name: str, gpu: Any) -> None:
        self._inner, self.bulk, self.name, self._gpu = inner, bulk, name, gpu

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def on(self, gpu: Any) -> "PySafeSlice":
        """The same tensor on a GPU. If it can't be read there, indexing gives what it gave before: a tensor on the CPU."""
        return PySafeSlice(self._inner, self.bulk, self.name, gpu)

    def __getitem__(self, index: Any) -> Any:
        if self._gpu is not None:
            try:
                found = self._read(index)
                if found is not None:
                    return found
            except Exception as error:
                left_to_original(self.bulk, self.name, error)
        return self._inner[index]

    def _read(self, index: Any) -> Any:
        """None: the original has to do it, and raises an error if that is what the index gives."""
        torch, gpu = sys.modules["torch"], self._gpu
        dtype, shape = torch_type(self.bulk.tensors()[self.name])
        if list(shape) != list(self._inner.get_shape()):
            return None
        if index is ...:
            return read_tensor(self.bulk, self.name, gpu)
        whole = torch.empty(shape, dtype=dtype, device="meta")
        try:
            view = whole[index]
        except Exception:
            return None
        if view.numel() == 0 or view.untyped_storage()._cdata != whole.untyped_storage()._cdata:
            return None  # nothing to read, or an index that chooses elements one by one
        start, shape, strides = view.storage_offset(), tuple(view.shape), view.stride()
        if view.is_contiguous() and view.numel() == whole.numel():
            return torch_tensor(self.bulk.take(self.name, gpu), dtype, shape, gpu)
        size = dtype.itemsize
        run, outer = 1, len(shape)
        while outer > 0 and (shape[outer - 1] == 1 or strides[outer - 1] == run):
            outer -= 1
            run *= shape[outer]
        if outer == 0 or run * size >= _RUN_BYTES:
            starts = [start]
            for count, stride in zip(shape[:outer], strides[:outer], strict=True):
                starts = [at + i * stride for at in starts for i in range(count)]
            storage = self.bulk.part(self.name, [(at * size, run * size) for at in starts], gpu)
            return torch_tensor(storage, dtype, shape, gpu)
        span = 1 + sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True))
        storage = self.bulk.part(self.name, [(start * size, span * size)], gpu)
        return torch_tensor(storage, dtype, (span,), gpu).as_strided(shape, strides).clone().contiguous()


@functools.cache
def _origins() -> Any:
    return importlib.import_module("torch.utils.weak").WeakTensorKeyDictionary()


def _place(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def origin_of(tensor: Any) -> tuple[Bulk, str] | None:
    """The file and the name of a tensor that maps a file on a mount, and that the program has not changed."""
    bulk, name, place = _origins().get(tensor, (None, "", ()))
    if bulk is None or place != _place(tensor) or not _is_memory_of_file(tensor.data_ptr(), tensor.nbytes):
        return None
    return bulk, name


def _is_memory_of_file(address: int, length: int) -> bool:
    """Whether a private mapping of a file has the file's own pages here. A page that was written to is a copy."""
    if length == 0:
        return True
    torch, page = sys.modules["torch"], mmap.PAGESIZE
    first, end = address // page, -(-(address + length) // page)
    words = bytearray((end - first) * _WORD)
    with open("/proc/self/pagemap", "rb", buffering=0) as file:
        file.seek(first * _WORD)
        if file.readinto(words) != len(words):
            return False
    pages = torch.frombuffer(words, dtype=torch.int64)
    return bool((((pages & _PAGE_PRESENT) == 0) | ((pages & _PAGE_OF_FILE) != 0)).all())


def keeps_value(*dtypes: Any) -> bool:
    """Whether a GPU rounds as the CPU does when it converts between these types."""
    torch = sys.modules["torch"]
    return all(dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64) for dtype in dtypes)


def torch_type(tensor: Tensor) -> tuple[Any, tuple[int, ...]]:
    """The type and shape that a tensor of a file has in torch. ValueError: this torch has no such type."""
    torch = sys.modules["torch"]
    found = getattr(torch, _PAIRS if tensor.dtype == "F4" else _DTYPES.get(tensor.dtype, ""), None)
    if found is None:
        raise ValueError(f"torch {torch.__version__} has no type for {tensor.dtype}")
    return found, shape_in_torch(tensor)


def torch_tensor(storage: Any, dtype: Any, shape: tuple[int, ...], device: Any) -> Any:
    """A tensor that is not a view of another one, like those of the original."""
    return sys.modules["torch"].empty(0, dtype=dtype, device=device).set_(storage, 0, shape)


def read_tensor(bulk: Bulk, name: str, device: Any, ahead: bool = False) -> Any:
    dtype, shape = torch_type(bulk.tensors()[name])
    return torch_tensor(bulk.take(name, device, ahead), dtype, shape, device)
