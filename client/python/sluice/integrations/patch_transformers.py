# SPDX-License-Identifier: BSD-2-Clause
"""transformers: tensors that its device_map puts on a GPU are read there, instead of to the CPU first.

transformers 5 opens each file for the CPU, decides for one tensor after the other where it goes (spawn_materialize), and
reads and converts them after that. So all decisions are known at the first read, and tensors are loaded in groups.
"""
import concurrent.futures
import functools
from collections.abc import Callable
from typing import Any

from ._bulk import gpu_of
from ._report import report
from .patch_safetensors import PySafeSlice, keeps_value, replace_everywhere, torch_type


def patch(module: Any) -> None:
    original = module.spawn_materialize

    @functools.wraps(original)
    def spawn_materialize(thread_pool: Any, tensor: Any, device: Any = None, dtype: Any = None, *rest: Any,
                          **options: Any) -> Any:
        try:
            there = _on_gpu(tensor, device, dtype) if isinstance(tensor, PySafeSlice) else None
        except Exception as error:
            report.fell_back(tensor.bulk.path, error)
            there = None
        if there is None:
            return original(thread_pool, tensor, device, dtype, *rest, **options)
        if (rest[0] if rest else options.get("sharding_op")) is not None:  # takes a part of it, which may be none
            return original(thread_pool, there, device, dtype, *rest, **options)
        there.bulk.want([there.name], gpu_of(device))
        there.bulk.spares_memory = thread_pool is None or _is_converted(there, dtype)
        job = original(None, there, device, dtype, *rest, **options)
        return job if thread_pool is None else _Deferred(job)

    replace_everywhere(original, spawn_materialize)


def _stored_type(tensor: PySafeSlice) -> Any:
    return torch_type(tensor.bulk.tensors()[tensor.name])[0]


def _is_converted(tensor: PySafeSlice, dtype: Any) -> bool:
    return dtype is not None and dtype != _stored_type(tensor)


def _on_gpu(tensor: PySafeSlice, device: Any, dtype: Any) -> PySafeSlice | None:
    gpu = gpu_of(device)
    if gpu is None:
        return None
    # Other types are converted on the CPU, as before.
    return None if _is_converted(tensor, dtype) and not keeps_value(dtype, _stored_type(tensor)) else tensor.on(gpu)


class _Deferred(concurrent.futures.Future[Any]):
    """A job that runs when its result is asked for. It is a Future, as the original returns one for each tensor."""

    def __init__(self, job: Callable[[], Any]) -> None:
        super().__init__()
        self._job: Callable[[], Any] | None = job

    def result(self, timeout: float | None = None) -> Any:
        if self._job is not None:
            job, self._job = self._job, None
            try:
                self.set_result(job())
            except BaseException as error:  # KeyboardInterrupt too: the next caller would wait for ever
                self.set_exception(error)
        return super().result(timeout)
