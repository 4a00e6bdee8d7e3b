# SPDX-License-Identifier: BSD-2-Clause
"""Loads safetensors files: libsluice reads the headers and fills the memory, and the tensors are views of it."""
import collections
import concurrent.futures
import contextlib
import ctypes
import errno
import functools
import importlib
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

from ._file import Buffer, Result, _result
from ._library import PROGRESS, Handle, RangeStruct, ResultStruct, SegmentStruct, TensorStruct, check, last_error, library
from ._memory import memory_of

# The names of the types in the frameworks.
_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
# The type in torch of two elements of F4. NumPy has none.
_PAIRS = "float4_e2m1fn_x2"

_TRIES = 3  # to share a file


class Tensor(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    length: int  # in bytes
    arena_offset: int
    file: int  # a handle of libsluice that belongs to the model
    file_offset: int


def _check(code: int, path: str | None = None) -> int:
    """Turns an error in a file into a ValueError."""
    if code == -errno.EUCLEAN:
        raise ValueError(last_error(code).strerror)
    return check(code, path)


def shape_in_torch(tensor: Tensor) -> tuple[int, ...]:
    if tensor.dtype != "F4":
        return tensor.shape
    if not tensor.shape or tensor.shape[-1] % 2:
        raise ValueError("torch has the type F4 in pairs only, and the last dimension is not even")
    return *tensor.shape[:-1], tensor.shape[-1] // 2


class Model:
    """A model of libsluice: a file, an index, a folder, or a part of one."""

    def __init__(self, raw: ctypes.c_void_p, what: str) -> None:
        self._handle = Handle(raw.value or 0, library().sluice_model_close, what)
        self._what = what

    @staticmethod
    def open(path: str | os.PathLike[str]) -> "Model":
        raw, name = ctypes.c_void_p(), os.fspath(path)
        _check(library().sluice_model_open(os.fsencode(name), ctypes.byref(raw)), name)
        return Model(raw, f"the model {name!r}")

    @staticmethod
    def of_ranges(path: str | os.PathLike[str], ranges: Iterable[tuple[str, int, int]]) -> "Model":
        """Makes a model of ranges of a file: (name, offset, length). A length is not 0."""
        raw, name = ctypes.c_void_p(), os.fspath(path)
        encoded = os.fsencode(name)
        array = [RangeStruct(encoded, each.encode(), offset, 1, length) for each, offset, length in ranges]
        _check(library().sluice_model_open_ranges((RangeStruct * len(array))(*array), len(array), ctypes.byref(raw)), name)
        return Model(raw, f"ranges of {name!r}")

    def select(self, names: Iterable[str]) -> "Model":
        encoded = [name.encode() for name in names]
        raw = ctypes.c_void_p()
        with self._handle as model:
            array = (ctypes.c_char_p * len(encoded))(*encoded)
            _check(library().sluice_model_select(model, array, len(encoded), ctypes.byref(raw)))
        return Model(raw, f"a part of {self._what}")

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._handle.close()

    def tensors(self) -> list[Tensor]:
        """The tensors, in the order of their bytes."""
        with self._handle as model:
            count = library().sluice_model_count(model)
            if count == 0:
                return []
            array = ctypes.cast(library().sluice_model_tensor(model, 0), ctypes.POINTER(TensorStruct * count)).contents
            return [Tensor(each.name.decode(), each.dtype.decode(), tuple(each.shape[:each.dimensions]), each.bytes,
                           each.arena_offset, each.file, each.file_offset) for each in array]

    def first_file(self) -> list[int]:
        """The file of the first tensor, unless that is empty."""
        with self._handle as model:
            first = library().sluice_model_tensor(model, 0)
            return [first.contents.file] if first and first.contents.bytes > 0 else []

    def arena(self) -> int:
        with self._handle as model:
            return int(library().sluice_model_arena(model))

    def map(self, file: int) -> "_Mapping":
        """Maps a file of the model in the memory of the current CUDA device. Its bytes are good after wait() only."""
        raw = ctypes.c_void_p()
        with self._handle:
            check(library().sluice_map_begin(file, None, ctypes.byref(raw)))
        return _Mapping(raw.value or 0)

    def read(self, tensor: Tensor, parts: list[tuple[int, int]], buffer: Buffer) -> Result:
        """Reads parts of a tensor, each (offset in it, length), one after the other into the buffer."""
        array, at = (SegmentStruct * len(parts))(), 0
        for i, (offset, length) in enumerate(parts):
            array[i] = SegmentStruct(at, tensor.file_offset + offset, length)
            at += length
        struct = ResultStruct()
        with self._handle, buffer._handle as memory:
            done = check(library().sluice_readv(tensor.file, memory, array, len(parts), ctypes.byref(struct)))
        if done != at:
            raise ValueError(f"{self._what} became shorter while it was read")
        return _result(done, struct)

    def load(self, buffer: Buffer, progress: Callable[[int, int], None] | None = None) -> Result:
        """Fills the buffer. `progress` is called with the bytes so far and in total; an exception in it ends the load."""
        raised: list[BaseException] = []

        def tell(_: object, done: int, total: int) -> int:
            assert progress
            try:
                progress(done, total)
            except BaseException as error:  # KeyboardInterrupt too: ctypes would only print it
                raised.append(error)
            return len(raised)

        struct = ResultStruct()
        with self._handle as model, buffer._handle as memory:
            callback = PROGRESS(tell) if progress else PROGRESS()  # or NULL
            code = library().sluice_model_load(model, memory or None, 0, callback, None, ctypes.byref(struct))
        if raised:
            raise raised[0]
        return _result(_check(code), struct)


class _Mapping:
    """A file in GPU memory that the daemon shares, as an array of bytes. Freed with the last tensor that is a view of it."""

    def __init__(self, raw: int) -> None:
        self._handle = Handle(raw, library().sluice_unmap, "a mapping")
        address = library().sluice_mapping_address(raw)
        # Not marked as read-only, because torch does not take such arrays.
        self.__cuda_array_interface__ = {"shape": (library().sluice_mapping_size(raw),), "typestr": "|u1", "version": 3,
                                         "strides": None, "data": (address, False), "stream": None}

    def wait(self) -> None:
        """Returns when the daemon has checked the memory. BlockingIOError: it was changed."""
        with self._handle as raw:
            check(library().sluice_map_wait(raw))

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._handle.close()


class Tensors(dict[str, Any]):
    """Tensors by name. `shared` tells whether they are views of memory that other processes of the user use too;
    `not_shared_because` says why not, if that was asked for."""

    shared = False
    not_shared_because = ""


class _Framework:
    """Allocates arenas and makes views of them."""

    def __init__(self, name: str, device: str) -> None:
        if name not in ("pt", "np"):
            raise ValueError(f"framework must be 'pt' (PyTorch) or 'np' (NumPy), not {name!r}")
        if name == "np" and device != "cpu":
            raise ValueError(f"NumPy has no memory on {device!r}; use framework='pt', or device='cpu'")
        self.name, self.device = name, device
        self._dtypes: dict[str, Any] = {}
        try:
            self.module = importlib.import_module("torch" if name == "pt" else "numpy")
        except ImportError as error:
            other = "np" if name == "pt" else "pt"
            raise ImportError(f"framework={name!r}: {error}; install it, or use framework={other!r}") from None

    def dtype(self, tensor: Tensor) -> Any:
        found = self._dtypes.get(tensor.dtype)
        if found is None:
            found = self._dtypes[tensor.dtype] = self._find(tensor)
        return found

    def _find(self, tensor: Tensor) -> Any:
        name = _DTYPES.get(tensor.dtype, "")
        found = None
        if self.name == "pt":
            found = getattr(self.module, _PAIRS if tensor.dtype == "F4" else name, None)
        elif name:
            with contextlib.suppress(TypeError):
                found = self.module.dtype(name)
            if found is None:
                with contextlib.suppress(ImportError):
                    found = getattr(importlib.import_module("ml_dtypes"), name, None)
        if found is None:
            what = f"torch {self.module.__version__}" if self.name == "pt" else "NumPy"
            do = "use a newer one" if self.name == "pt" else f"{'install ml_dtypes, or ' if name else ''}use framework='pt'"
            raise ValueError(f"tensor {tensor.name!r}: {what} has no dtype for {tensor.dtype}; {do}")
        return found

    def arena(self, length: int) -> "_Arena":
        if self.name == "pt":
            return _Arena(self.module.empty(length, dtype=self.module.uint8, device=self.device))
        return _Arena(self.module.empty(length, dtype=self.module.uint8))

    def map(self, model: Model, file: int) -> "_Arena":
        """A file of the model in GPU memory, good after wait(). OSError: it can't be shared."""
        torch = self.module
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()  # so that the device has a context, which libsluice looks for
            mapping = model.map(file)
            return _Arena(torch.as_tensor(mapping, device=self.device), mapping.wait)

    def view(self, arena: "_Arena | None", tensor: Tensor, at: int) -> Any:
        """The tensor whose bytes begin at `at` in the arena. An empty one needs none."""
        if tensor.length == 0 or arena is None:
            return self.empty(tensor)
        try:
            if self.name == "np":
                return arena.memory[at:at + tensor.length].view(self.dtype(tensor)).reshape(tensor.shape)
            # One call of torch, and few others: a model has thousands of tensors.
            as_strided, size = arena.makers.get(tensor.dtype) or arena.maker(tensor.dtype, self.dtype(tensor))
            first, is_between = divmod(at, size)
            if not is_between:
                shape = shape_in_torch(tensor)
                return as_strided(shape, _strides(shape), first)
            # A file that is mapped may have it where it can't be used.
            arena.wait()
            return self.view(_Arena(arena.memory[at:at + tensor.length].clone()), tensor, 0)
        except (ValueError, RuntimeError, OverflowError) as error:
            raise _no_view(tensor, error) from None

    def empty(self, tensor: Tensor) -> Any:
        try:
            if self.name == "pt":
                return self.module.empty(shape_in_torch(tensor), dtype=self.dtype(tensor), device=self.device)
            return self.module.empty(tensor.shape, dtype=self.dtype(tensor))
        except (ValueError, RuntimeError, OverflowError) as error:
            raise _no_view(tensor, error) from None


def _no_view(tensor: Tensor, error: Exception) -> ValueError:
    return ValueError(f"tensor {tensor.name!r} of shape {tensor.shape}: {error}")


@functools.lru_cache(4096)
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Those of a tensor without gaps."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


class _Arena:
    """Memory that tensors are views of: an array of bytes."""

    def __init__(self, memory: Any, wait: Callable[[], None] = lambda: None) -> None:
        self.memory, self.wait = memory, wait  # wait(): until the bytes may be read
        # What makes torch tensors of each type, and the size of its elements.
        self.makers: dict[str, tuple[Callable[..., Any], int]] = {}

    def maker(self, name: str, dtype: Any) -> tuple[Callable[..., Any], int]:
        whole = len(self.memory) // dtype.itemsize * dtype.itemsize
        self.makers[name] = self.memory[:whole].view(dtype).as_strided, dtype.itemsize
        return self.makers[name]


class _Load:
    """A load of a model into an arena. Created in the caller's thread, for whose stream and GPU it allocates memory; run()
    may be called in another."""

    def __init__(self, model: Model, framework: _Framework) -> None:
        self._model, self._framework = model, framework
        self._tensors = model.tensors()
        for tensor in self._tensors:
            framework.dtype(tensor)  # before anything is allocated
        self._arena = framework.arena(model.arena())
        memory = memory_of(self._arena.memory, writable=True)
        self._buffer, self._wait = Buffer(memory), memory.wait

    def run(self, progress: Callable[[int, int], None]) -> dict[str, Any]:
        with self._buffer:
            if self._wait:
                self._wait()
            self._model.load(self._buffer, progress)
        views = {tensor.name: self._framework.view(self._arena, tensor, tensor.arena_offset) for tensor in self._tensors}
        del self._arena  # the views own it from now on
        return views


class _Progress:
    """A progress line on stderr, if that is a terminal and the load takes long."""
    PATIENCE_S = 1.5

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._shown = False

    def show(self, done: int, total: int) -> None:
        elapsed = time.monotonic() - self._start
        if elapsed < self.PATIENCE_S or not sys.stderr.isatty():
            return
        self._shown = True
        full = 30 * done // total
        print(f"\r[{'#' * full}{' ' * (30 - full)}] {done / 1e9:.1f} of {total / 1e9:.1f} GB, {elapsed:.0f} s\033[K", end="",
              file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _share(model: Model, framework: _Framework) -> Tensors:
    made = Tensors()
    if framework.name != "pt" or not str(framework.device).startswith("cuda"):
        made.not_shared_because = f"only torch tensors on a GPU can be shared, not {framework.name!r} on {framework.device!r}"
        return made
    for _ in range(_TRIES):
        try:
            made.update(_shared(model, framework))
            made.shared = True
            return made
        except BlockingIOError as error:  # a program wrote to the memory: the daemon makes another copy
            made.not_shared_because = str(error)
        except OSError as error:
            made.not_shared_because = str(error)
            return made
    return made


def _shared(model: Model, framework: _Framework) -> dict[str, Any]:
    # The daemon checks the memory meanwhile, which takes as long as all of this.
    arenas = {file: framework.map(model, file) for file in model.first_file()}
    tensors = model.tensors()
    for tensor in tensors:
        framework.dtype(tensor)
        if tensor.length > 0 and tensor.file not in arenas:
            arenas[tensor.file] = framework.map(model, tensor.file)
    views = {tensor.name: framework.view(arenas.get(tensor.file), tensor, tensor.file_offset) for tensor in tensors}
    for arena in arenas.values():
        arena.wait()
    return views


def load_safetensors(path_or_index: str | os.PathLike[str], device: str = "cpu", framework: str = "pt", *,
                     share: bool = False) -> Tensors:
    """Loads a safetensors file, or all files of an index (model.safetensors.index.json, or the folder that has it).

    The tensors are views of one piece of memory, which is filled by large reads without intermediate copies and freed with
    the last tensor. `device` is "cpu", "cuda", "cuda:1"; framework "pt" gives torch tensors, "np" NumPy arrays.
    A ValueError tells what is wrong with a file, and where.

    With `share`, the tensors are views of the files in GPU memory, which the daemon shares among the processes of a user:
    nothing is copied, and nothing may be written to them. They keep their values when a file changes. If a file can't be
    shared, everything is loaded as usual; `shared` and `not_shared_because` of the result tell, and so does the log.
    """
    made = _Framework(framework, device)
    progress = _Progress()
    with Model.open(path_or_index) as model:
        tensors = _share(model, made) if share else Tensors()
        if tensors.shared:
            return tensors
        if share:
            logging.getLogger("sluice").warning("%s", tensors.not_shared_because)
        try:
            tensors.update(_Load(model, made).run(progress.show))
            return tensors
        finally:
            progress.end()


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
    """Yields a model layer by layer, as (key, tensors by name), and loads the next `ahead` layers meanwhile.

    A layer is the set of tensors with the same name up to its first number: "model.layers.7". Tensors without a number
    (embeddings, the head) come first, as layer "". To divide differently, pass `groups`: a function that takes a tensor's
    name and returns the layer's key, or None to leave the tensor out. Layers come in the order of their keys, 2 before 10.

    At most `ahead` + 1 layers are in memory. The dict is emptied when the next layer is requested; take out the tensors
    that you want to keep.
    """
    if ahead < 0:
        raise ValueError(f"ahead must be 0 or more, not {ahead}")
    return _stream(_Framework(framework, device), path_or_index, groups or _layer_of, ahead)


def _stream(framework: _Framework, path_or_index: str | os.PathLike[str], group_of: Callable[[str], Hashable | None],
            ahead: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    stopped = threading.Event()

    def go_on(*_: object) -> None:
        if stopped.is_set():
            raise concurrent.futures.CancelledError

    with contextlib.ExitStack() as stack:
        model = stack.enter_context(Model.open(path_or_index))
        layers: dict[Hashable, list[str]] = {}
        for tensor in model.tensors():
            key = group_of(tensor.name)
            if key is not None:
                layers.setdefault(key, []).append(tensor.name)
        waiting = collections.deque(sorted(layers, key=_natural))
        # Two threads: the next layer starts while the last reads of one are in progress.
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(2, "sluice-layers"))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        stack.callback(stopped.set)
        coming: collections.deque[tuple[Hashable, concurrent.futures.Future[dict[str, Any]]]] = collections.deque()
        while waiting or coming:
            while waiting and len(coming) <= ahead:
                key = waiting.popleft()
                coming.append((key, pool.submit(_Load(model.select(layers[key]), framework).run, go_on)))
            key, future = coming.popleft()
            tensors = future.result()
            del future
            yield key, tensors
            tensors.clear()
