# SPDX-License-Identifier: BSD-2-Clause
"""diffusers: tensors that its device_map puts on a GPU are read there, instead of to the CPU first.

diffusers maps a file for the CPU (load_state_dict), and moves one tensor after the other (load_model_dict_into_meta).
"""
import functools
import inspect
from collections.abc import Iterator
from typing import Any

from ._bulk import Bulk, gpu_of, left_to_original
from ._report import report
from .patch_safetensors import keeps_value, origin_of, read_tensor, replace_everywhere


def patch(module: Any) -> None:
    original, device_of = module.load_model_dict_into_meta, module._determine_param_device
    signature = inspect.signature(original)

    @functools.wraps(original)
    def load_model_dict_into_meta(*arguments: Any, **options: Any) -> Any:
        try:
            call = signature.bind(*arguments, **options)
            call.apply_defaults()
            given = call.arguments
            if given["device_map"] is not None and given["hf_quantizer"] is None:
                model, dtype = given["model"].state_dict(), given["dtype"]
                targets = {name: (gpu, dtype if dtype is not None and tensor.is_floating_point() else model[name].dtype)
                           for name, tensor in given["state_dict"].items()
                           if name in model and (gpu := gpu_of(device_of(name, given["device_map"]))) is not None}
                given["state_dict"] = _StateDict(given["state_dict"], targets)
        except Exception as error:
            report.fell_back("diffusers", error)
            return original(*arguments, **options)
        return original(*call.args, **call.kwargs)

    replace_everywhere(original, load_model_dict_into_meta)


class _StateDict(dict[str, Any]):
    """A state dict whose items() reads tensors to their GPU when they are reached. `targets` has the GPU and the type to which
    diffusers will convert them there."""

    def __init__(self, inner: dict[str, Any], targets: dict[str, tuple[Any, Any]]) -> None:
        super().__init__(inner)
        self._found: dict[str, tuple[Bulk, str, Any]] = {}
        for name, (gpu, dtype) in targets.items():
            origin, stored = origin_of(inner[name]), inner[name].dtype
            if origin is not None and (dtype == stored or keeps_value(dtype, stored)):
                self._found[name] = (*origin, gpu)
                origin[0].want([origin[1]], gpu)

    def items(self) -> Any:
        return self._read()

    def _read(self) -> Iterator[tuple[str, Any]]:
        for name, tensor in super().items():
            if name in self._found:
                bulk, stored, gpu = self._found[name]
                try:
                    tensor = read_tensor(bulk, stored, gpu)
                except Exception as error:
                    left_to_original(bulk, stored, error)
            yield name, tensor
