# SPDX-License-Identifier: BSD-2-Clause
# pyright: reportMissingImports=false
"""`vllm serve --load-format sluice`: safetensors files are loaded by libsluice, layer by layer, directly to the GPU.

vLLM finds register() by the entry point `vllm.general_plugins` of the installed package.
"""
import copy
import functools
import logging
import os
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from .._safetensors import _layer_of, _natural, stream_layers

_log = logging.getLogger("sluice")


def _version(file: str) -> tuple[int, ...]:
    status = os.stat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@functools.cache  # vLLM may call it several times in a process
def register() -> None:
    try:
        _register()
    except Exception as error:  # vLLM would end, although hardly anybody asks for this format
        _log.warning("--load-format sluice is not available: it does not fit this version of vLLM: %r", error)


def _register() -> None:
    from vllm.model_executor.model_loader import default_loader, register_model_loader
    from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight
    torch: Any = sys.modules["torch"]  # by vLLM
    original = default_loader.safetensors_weights_iterator
    select = default_loader.DefaultModelLoader._get_weights_iterator

    class SluiceModelLoader(default_loader.DefaultModelLoader):  # type: ignore[misc,unused-ignore]  # vLLM may be missing
        """Finds the files of a model as vLLM does for --load-format safetensors, and reads them itself."""

        def __init__(self, load_config: Any) -> None:
            load_config = copy.copy(load_config)
            load_config.load_format = "safetensors"
            super().__init__(load_config)

        def _get_weights_iterator(self, source: Any) -> Any:
            # vLLM's function, in which one name is ours. Replacing the name in vLLM would change other loaders.
            scope = {**vars(default_loader), "safetensors_weights_iterator": self._weights,
                     "multi_thread_safetensors_weights_iterator": self._weights}
            return types.FunctionType(select.__code__, scope, closure=select.__closure__)(self, source)

        def _weights(self, files: list[str], use_tqdm: Any, strategy: str | None = None,
                     local_expert_ids: set[int] | None = None, **options: Any) -> Iterable[tuple[str, Any]]:
            if strategy == "torchao":  # makes other objects of the tensors
                return original(files, use_tqdm, strategy, local_expert_ids, **options)  # type: ignore[no-any-return]
            device = self.load_config.device or (f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu")
            return (weight for file in sorted(files, key=_natural)
                    for weight in self._weights_of(file, str(device), local_expert_ids))

        @staticmethod
        def _weights_of(file: str, device: str, local_expert_ids: set[int] | None) -> Iterator[tuple[str, Any]]:
            seen: set[str] = set()
            before = _version(file)
            try:
                for _, layer in stream_layers(file, lambda name: None if should_skip_weight(name, local_expert_ids)
                                              else _layer_of(name), device):
                    for name in list(layer):
                        seen.add(name)
                        yield name, layer.pop(name)
                return
            except (OSError, ValueError, RuntimeError) as error:  # or no memory is left on the GPU
                if seen and _version(file) != before:
                    raise RuntimeError(f"{file} was changed while it was loaded; start again") from error
                _log.warning("%s is loaded by vLLM's own loader: %s", file, error)
            for name, tensor in original([file], False, None, local_expert_ids):
                if name not in seen:
                    yield name, tensor

    register_model_loader("sluice")(SluiceModelLoader)
