# SPDX-License-Identifier: BSD-2-Clause
"""Loads tensors of a file into memory of their own on a GPU, as the original functions give it: each can be freed, resized,
saved and shared alone."""
import concurrent.futures
import contextlib
import functools
import os
import sys
from typing import Any

from .._file import Buffer, Result
from .._memory import Memory, memory_of
from .._safetensors import Model, Tensor
from ._report import report

# torch keeps tensors up to this size apart, among others.
_SMALL_BYTES = 1 << 20
_MOST_RUNS = 8


def load(path: str, model: Model, tensors: list[Tensor], device: Any) -> dict[str, Any]:
    """The storages of some tensors of a model, by name. None of them is empty."""
    loaded: dict[str, Any] = {}
    large = [tensor for tensor in tensors if tensor.length > _SMALL_BYTES]
    small = [tensor for tensor in tensors if tensor.length <= _SMALL_BYTES]
    for some in large, small:
        if len(some) == 1:
            loaded[some[0].name] = read(path, model, some[0], [(0, some[0].length)], device)
        elif some:
            with report.load(path) as results:
                found = _load_in_place(model, some, device, results) if some is large else None
                loaded |= found or _load_and_copy(model, some, device, results)
    return loaded


def load_soon(path: str, model: Model, tensors: list[Tensor], device: Any) -> concurrent.futures.Future[dict[str, Any]]:
    """load() in another thread, as if the calling one had done it: in its stream."""
    cuda = sys.modules["torch"].cuda
    stream = cuda.stream(cuda.current_stream(device)) if device.type == "cuda" else contextlib.nullcontext()

    def run() -> dict[str, Any]:
        with stream:
            return load(path, model, tensors, device)

    return _thread(os.getpid()).submit(run)


@functools.cache
def _thread(_: int) -> concurrent.futures.ThreadPoolExecutor:
    """One for each process: threads do not survive a fork."""
    return concurrent.futures.ThreadPoolExecutor(1, "sluice-accelerate")


def read(path: str, model: Model, tensor: Tensor, parts: list[tuple[int, int]], device: Any) -> Any:
    """Parts of a tensor, each (offset, length), one after the other in a storage."""
    torch = sys.modules["torch"]
    target = torch.empty(sum(length for _, length in parts), dtype=torch.uint8, device=device)
    memory = memory_of(target, writable=True)
    with report.load(path) as results, Buffer(memory) as buffer:
        if memory.wait:
            memory.wait()
        # A load has several reads at a time, but its memory must end at such a multiple.
        if parts == [(0, tensor.length)] and tensor.length % 256 == 0:
            with model.select([tensor.name]) as part:
                results.append(part.load(buffer))
        else:
            results.append(model.read(tensor, parts, buffer))
    return target.untyped_storage()


def reserve(length: int, device: Any) -> None:
    """Lets torch's allocator get memory for the tensors that follow in one piece: one call of the driver instead of one for
    each, and they are neighbours."""
    torch = sys.modules["torch"]
    if device.type != "cuda" or length <= _SMALL_BYTES:
        return
    free = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if free < length:
        try:
            torch.empty(length, dtype=torch.uint8, device=device)
        except RuntimeError:
            pass  # too much in one piece, but maybe not in several


def allocate(lengths: list[int], device: Any) -> list[Any]:
    """A tensor of bytes for each."""
    torch = sys.modules["torch"]
    return [torch.empty(length, dtype=torch.uint8, device=device) for length in lengths]


def _load_in_place(model: Model, tensors: list[Tensor], device: Any, results: list[Result]) -> dict[str, Any] | None:
    """Loads without a copy where new tensors are neighbours in memory, at the distances that the model wants. They are after
    reserve(), because torch's allocator cuts them off the same piece. None: they are in too many pieces."""
    made = allocate([tensor.length for tensor in tensors], device)
    runs: list[list[int]] = []
    expected = -1
    for i, tensor in enumerate(tensors):
        if made[i].data_ptr() != expected:
            runs.append([])
        runs[-1].append(i)
        expected = made[i].data_ptr() + (tensor.length + 255 & ~255)
    if len(runs) > _MOST_RUNS:
        return None
    for run in runs:
        with model.select([tensors[i].name for i in run]) as part:
            # An allocation is a multiple of 512 bytes, so this is all theirs.
            memory = Memory(made[run[0]].data_ptr(), part.arena(), made, memory_of(made[run[0]], writable=True).wait)
            results.append(_fill(part, memory))
    return {tensor.name: each.untyped_storage() for each, tensor in zip(made, tensors, strict=True)}


def _load_and_copy(model: Model, tensors: list[Tensor], device: Any, results: list[Result]) -> dict[str, Any]:
    """Loads into one piece of memory, and copies from there. Inside the memory of a GPU, that costs little."""
    torch = sys.modules["torch"]
    with model.select([tensor.name for tensor in tensors]) as part:
        arena = torch.empty(part.arena(), dtype=torch.uint8, device=device)
        results.append(_fill(part, memory_of(arena, writable=True)))
        copies = {tensor.name: arena[tensor.arena_offset:tensor.arena_offset + tensor.length].clone().untyped_storage()
                  for tensor in part.tensors()}
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # from now on, any thread and stream may use them
    return copies


def _fill(part: Model, memory: Memory) -> Result:
    with Buffer(memory) as buffer:
        if memory.wait:
            memory.wait()
        return part.load(buffer)
