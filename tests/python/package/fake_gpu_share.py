# SPDX-License-Identifier: BSD-2-Clause
"""fake_gpu_share.py LIBCUDA FILE: loads a model with share=True, into tensors of something that resembles torch."""
import contextlib
import ctypes
import gc
import math
import sys
import time
import types

cuda = ctypes.CDLL(sys.argv[1])


def check(code):
    assert code == 0, code


class Dtype:
    def __init__(self, itemsize):
        self.itemsize = itemsize


class FakeTensor:
    """Bytes of GPU memory; `owner` keeps them."""

    def __init__(self, address, length, owner, itemsize=1):
        self.address, self.length, self.owner, self.itemsize = address, length, owner, itemsize

    def __len__(self):
        return self.length // self.itemsize

    def __getitem__(self, part):
        start = part.start or 0
        return FakeTensor(self.address + start, part.stop - start, self.owner)

    def view(self, dtype):
        assert self.address % dtype.itemsize == 0 and self.length % dtype.itemsize == 0, "not aligned"
        return FakeTensor(self.address, self.length, self.owner, dtype.itemsize)

    def as_strided(self, shape, strides, offset):
        assert strides == tuple(math.prod(shape[at + 1:]) for at in range(len(shape))), "there are gaps"
        begin, length = offset * self.itemsize, math.prod(shape) * self.itemsize
        assert begin + length <= self.length, "outside of the memory"
        return FakeTensor(self.address + begin, length, self.owner, self.itemsize)

    def clone(self):
        address = ctypes.c_uint64()
        check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(self.length)))
        check(cuda.cuMemcpyHtoD_v2(address, self.content(), ctypes.c_size_t(self.length)))
        return FakeTensor(address.value, self.length, None)

    def content(self):
        data = ctypes.create_string_buffer(self.length)
        check(cuda.cuMemcpyDtoH_v2(data, ctypes.c_uint64(self.address), ctypes.c_size_t(self.length)))
        return data.raw


def as_tensor(array, device):
    described = array.__cuda_array_interface__
    return FakeTensor(described["data"][0], described["shape"][0], array)


torch = types.ModuleType("torch")
torch.__version__ = "0"
torch.Tensor = FakeTensor
torch.uint8, torch.float32 = Dtype(1), Dtype(4)
torch.as_tensor = as_tensor
torch.empty = lambda shape, dtype, device: FakeTensor(0, 0, None)
torch.cuda = types.SimpleNamespace(device=lambda device: contextlib.nullcontext(), synchronize=lambda: cuda.cuCtxSynchronize())
sys.modules["torch"] = torch

import sluice  # noqa: E402: after CUDA, as in a program that uses it
from sluice import _safetensors  # noqa: E402


def main():
    path = sys.argv[2]
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    with _safetensors.Model.open(path) as model:
        expected = {tensor.name: tensor for tensor in model.tensors()}
    with open(path, "rb") as plain:
        content = plain.read()
    # Files that changed recently are not shared.
    deadline = time.monotonic() + 30
    while True:
        with _safetensors.Model.open(path) as model:
            tensors = _safetensors._share(model, _safetensors._Framework("pt", "cuda"))
        if tensors.shared or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert tensors.shared, tensors.not_shared_because
    again = sluice.load_safetensors(path, device="cuda", share=True)
    assert again.shared, again.not_shared_because
    for name, tensor in expected.items():
        at = tensor.file_offset
        assert tensors[name].content() == again[name].content() == content[at:at + tensor.length], name
    freed = []
    unmap = sluice._library.library().sluice_unmap
    for each in again.values():
        if each.owner is not None:
            each.owner._handle._free = lambda raw: (freed.append(raw), unmap(raw))
    last = again["b"]  # bytes need no alignment, so it is a view
    assert last.owner is not None
    del again, each
    gc.collect()
    assert not freed, "freed while a tensor uses it"
    assert len(last.content()) == expected["b"].length
    del last
    gc.collect()
    assert len(freed) == 1, freed
    print("all bytes are right")


main()
