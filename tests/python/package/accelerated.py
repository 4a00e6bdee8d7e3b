# SPDX-License-Identifier: BSD-2-Clause
"""For the tests of sluice.accelerate: the functions of the packages, replaced for one test, and a GPU for a machine without.

"cpu:0" plays the GPU: torch knows it beside "cpu", and its memory is that of the host. All but the memory is real: what is
loaded where, in which groups, and what it is compared with. With a real GPU, gpu_of() is not replaced.
"""
import contextlib
import importlib
import os
import sys

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
import safetensors.torch  # noqa: E402

PATCHES = ("safetensors", "torch", "transformers", "diffusers")
TYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64",
         "bool", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz",
         "float4_e2m1fn_x2"]


@contextlib.contextmanager
def accelerated():
    """Gives the originals by name while the functions are replaced."""
    import _sluice_accelerate
    import sluice
    from sluice.integrations.patch_safetensors import replace_everywhere

    before = [(module, dict(vars(module))) for module in map(sys.modules.get, _sluice_accelerate._PATCHES) if module]
    originals = {"safe_open": safetensors.safe_open}
    sluice.accelerate()
    try:
        yield originals
    finally:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _sluice_accelerate._Finder)]
        for module, names in before:
            for name, value in names.items():
                now = getattr(module, name)
                if now is not value:
                    replace_everywhere(now, value)
        assert safetensors.safe_open is originals["safe_open"]


@contextlib.contextmanager
def a_gpu():
    """Gives the device of a GPU."""
    if torch.cuda.is_available():
        yield torch.device("cuda", 0)
        return
    gpu = torch.device("cpu", 0)
    modules = [importlib.import_module("sluice.integrations._bulk")]
    modules += [importlib.import_module(f"sluice.integrations.patch_{name}") for name in PATCHES]
    real = modules[0].gpu_of
    for module in modules:
        module.gpu_of = lambda device: gpu if str(device) == "cpu:0" else None
    registry = torch.serialization._package_registry
    entry = (15, lambda storage: None, lambda storage, location: storage.to(device=gpu) if location == "cpu:0" else None)
    registry.append(entry)
    registry.sort(key=lambda each: each[0])
    try:
        yield gpu
    finally:
        registry.remove(entry)
        for module in modules:
            module.gpu_of = real


def some(dtype, shape, seed=0):
    most = 1 if dtype == torch.bool else 255
    content = torch.randint(0, most + 1, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.uint8,
                            generator=torch.Generator().manual_seed(seed))
    return content.view(dtype)


def tensors_of(seed=0, layers=12):
    made = {f"layers.{i}.weight": some(torch.float32, (40, 3000), seed + i) for i in range(layers)}
    for name in TYPES:
        dtype = getattr(torch, name, None)
        if dtype is not None and dtype in safetensors.torch._SIZE:
            made[name] = some(dtype, (6, 8), seed)
    return {**made, "none": torch.zeros(0, 3), "one": torch.tensor(1.5 + seed)}


def save(tensors, path):
    """Replaces the file, so that programs that have it open keep the old one."""
    safetensors.torch.save_file(tensors, f"{path}.new", {"format": "pt", "a": "b"})
    os.replace(f"{path}.new", path)
    return path


def content_of(tensor):
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def same(found, expected):
    assert type(found) is type(expected) and found.dtype == expected.dtype and found.shape == expected.shape
    assert found.stride() == expected.stride() and content_of(found) == content_of(expected)


def open_on(gpu, originals, path):
    """safe_open(path, "pt", device=gpu). The original refuses the device that plays the GPU, and gets the CPU."""
    if gpu.type == "cuda":
        return safetensors.safe_open(path, "pt", device=str(gpu))
    from sluice.integrations import _bulk, patch_safetensors
    return patch_safetensors.Opened(originals["safe_open"](path, "pt"), _bulk.FileState(str(path)), "pt", gpu)


def read_bytes():
    from sluice.integrations._report import report
    return sum(report.figures()["files"].values())


def reasons():
    from sluice.integrations._report import report
    return report.figures()["reasons"]
