# SPDX-License-Identifier: BSD-2-Clause
"""Finds the memory of tensors and arrays: PyTorch, CUDA array interface, buffer protocol, DLPack."""
import ctypes
import math
import re
import sys
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_ssize_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any


class Memory:
    """A range of memory. `owner` keeps it allocated. `wait` returns when the GPU has finished the work queued so far on
    this memory, and may be called from any thread; None: there is nothing to wait for."""

    def __init__(self, address: int, length: int, owner: object, wait: Callable[[], object] | None = None) -> None:
        self.address, self.length, self.owner, self.wait = address, length, owner, wait


def memory_of(target: Any, writable: bool) -> Memory:
    """Returns the memory of `target`. TypeError: it has none. ValueError: it is not contiguous, or read-only."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(target, torch.Tensor):
        return _of_torch(target)
    if hasattr(target, "__cuda_array_interface__"):
        return _of_cuda_array(target, writable)
    try:
        view = _view(target)
    except TypeError:
        if hasattr(target, "__dlpack__"):
            return _of_dlpack(target, writable)
        raise TypeError(f"{_name(target)} has no usable memory; pass a torch, cupy or numpy array, a bytearray, "
                        "a memoryview, or anything else with the buffer protocol, the CUDA array interface or DLPack"
                        ) from None
    return _of_buffer(target, view, writable)


def _name(target: object) -> str:
    return f"{type(target).__module__}.{type(target).__qualname__}"


def _not_contiguous(target: object, how: str) -> ValueError:
    return ValueError(f"the bytes of this {_name(target)} are not contiguous; {how}")


def _read_only(target: object) -> ValueError:
    return ValueError(f"this {_name(target)} is read-only; pass one that may be written to, such as a copy")


def _of_torch(tensor: Any) -> Memory:
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided:
        raise ValueError(f"a tensor of layout {tensor.layout} has no plain memory; use tensor.to_dense()")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"memory on device '{tensor.device}' can't be used; use a tensor on cpu or cuda")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError("the tensor is a conjugate or negative view; call resolve_conj() or resolve_neg() first")
    if not tensor.is_contiguous():
        raise _not_contiguous(tensor, "make a contiguous tensor (torch.empty(t.shape), t.contiguous()) and use that")
    # detach() returns an alias that keeps this storage, whatever happens to `tensor`.
    length = tensor.numel() * tensor.element_size()
    if tensor.data_ptr() == 0 and length > 0:
        raise ValueError(f"this {_name(tensor)} has no memory of its own; use a plain tensor, such as that of a DTensor's "
                         "to_local() or full_tensor()")
    wait = None
    if tensor.is_cuda:
        wait = torch.cuda.current_stream(tensor.device).record_event().synchronize
    return Memory(tensor.data_ptr(), length, tensor.detach(), wait)


def _of_cuda_array(target: Any, writable: bool) -> Memory:
    described = target.__cuda_array_interface__
    item = int(described["typestr"][2:])
    shape = described["shape"]
    address, read_only = described["data"]
    if described["typestr"][1] == "O":
        raise TypeError(f"this {_name(target)} contains Python objects, whose bytes can't be transferred")
    if read_only and writable:
        raise _read_only(target)
    if described.get("mask") is not None:
        raise ValueError("arrays with a mask can't be used; pass the data and the mask separately")
    if not _in_a_row(shape, described.get("strides"), item):
        raise _not_contiguous(target, "use a C-contiguous array (cupy.ascontiguousarray(a))")
    stream = described.get("stream")
    wait = None if stream is None or address == 0 else lambda: _wait_for_stream(address, stream)
    return Memory(address, math.prod(shape) * item, target, wait)


def _in_a_row(shape: tuple[int, ...], strides: tuple[int, ...] | None, item: int) -> bool:
    if strides is None or 0 in shape:
        return True
    expected = item
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _wait_for_stream(address: int, stream: int) -> None:
    """Waits in the primary context of the GPU that has `address`: streams 1 and 2, the default streams, belong to the
    current context, and this thread may have none."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} of CUDA failed with {code} while waiting for the array's stream")

    ordinal, device, context, before = c_int(), c_int(), c_void_p(), c_void_p()
    device_ordinal = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    call("cuPointerGetAttribute", ctypes.byref(ordinal), device_ordinal, c_uint64(address))
    call("cuDeviceGet", ctypes.byref(device), ordinal)
    call("cuCtxGetCurrent", ctypes.byref(before))
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        call("cuCtxSetCurrent", context)
        call("cuStreamSynchronize", c_void_p(stream))
    finally:
        cuda.cuCtxSetCurrent(before)
        cuda.cuDevicePrimaryCtxRelease_v2(device)


class _PyBuffer(ctypes.Structure):
    _fields_ = [("buf", c_void_p), ("obj", ctypes.py_object), ("len", c_ssize_t), ("itemsize", c_ssize_t),
                ("readonly", c_int), ("ndim", c_int), ("format", c_char_p), ("shape", POINTER(c_ssize_t)),
                ("strides", POINTER(c_ssize_t)), ("suboffsets", POINTER(c_ssize_t)), ("internal", c_void_p)]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes, _get_buffer.restype = [ctypes.py_object, POINTER(_PyBuffer), c_int], c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes, _release_buffer.restype = [POINTER(_PyBuffer)], None
_is_contiguous = ctypes.pythonapi.PyBuffer_IsContiguous
_is_contiguous.argtypes, _is_contiguous.restype = [POINTER(_PyBuffer), ctypes.c_char], c_int
_STRIDES, _FORMAT = 0x18, 0x4  # PyBUF_STRIDES, PyBUF_FORMAT
_FIELD_NAME = re.compile(rb":[^:]*:")  # in a format, such as T{i:Offset:}


class _View:
    """A view of an object's buffer. While it exists, a bytearray can't be resized."""

    def __init__(self, buffer: _PyBuffer) -> None:
        self.buffer = buffer

    def __del__(self) -> None:
        _release_buffer(ctypes.byref(self.buffer))


def _view(target: object) -> _View:
    buffer = _PyBuffer()
    try:
        _get_buffer(target, ctypes.byref(buffer), _STRIDES | _FORMAT)
    except (ValueError, BufferError):
        # Types for which the buffer protocol has no code, such as bfloat16 of ml_dtypes.
        try:
            _get_buffer(target, ctypes.byref(buffer), _STRIDES)
        except (ValueError, BufferError) as error:
            raise ValueError(f"{_name(target)} does not export its memory: {error}") from None
    return _View(buffer)


def _of_buffer(target: object, view: _View, writable: bool) -> Memory:
    buffer = view.buffer
    has_objects = getattr(getattr(target, "dtype", None), "hasobject", None)
    if has_objects is None:
        has_objects = b"O" in _FIELD_NAME.sub(b"", buffer.format or b"")
    if has_objects:
        raise TypeError(f"this {_name(target)} contains Python objects, whose bytes can't be transferred")
    if writable and buffer.readonly:
        raise _read_only(target)
    if not _is_contiguous(ctypes.byref(buffer), b"C"):
        raise _not_contiguous(target, "use a C-contiguous array (numpy.ascontiguousarray(a))")
    return Memory(buffer.buf or 0, buffer.len, view)


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8),
                ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


class _DLManagedVersioned(ctypes.Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("manager", c_void_p), ("deleter", c_void_p), ("flags", c_uint64),
                ("tensor", _DLTensor)]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = [ctypes.py_object, c_char_p], c_void_p
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.argtypes, _capsule_is.restype = [ctypes.py_object, c_char_p], c_int
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_LEGACY_STREAM = 1
_READ_ONLY_FLAG = 1


def _of_dlpack(target: Any, writable: bool) -> Memory:
    device = int(target.__dlpack_device__()[0])
    if device not in (_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED):
        raise ValueError(f"memory on the DLPack device {device} can't be used; use memory of the host or of CUDA")
    stream = _LEGACY_STREAM if device == _CUDA else None
    try:
        capsule = target.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:  # an object from before DLPack 1.0
        capsule = target.__dlpack__(stream=stream)
    # The capsule is kept, not consumed: its destructor releases the memory.
    if _capsule_is(capsule, b"dltensor_versioned"):
        managed = _DLManagedVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        tensor = managed.tensor
        if managed.major != 1:
            raise ValueError(f"this {_name(target)} uses DLPack {managed.major}; only version 1 is supported")
        if writable and managed.flags & _READ_ONLY_FLAG:
            raise _read_only(target)
    else:
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    # Strides count elements.
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
    if not _in_a_row(shape, strides, 1):
        raise _not_contiguous(target, "use a C-contiguous array")
    address = (tensor.data or 0) + tensor.byte_offset
    length = (math.prod(shape) * tensor.bits * tensor.lanes + 7) // 8
    wait = (lambda: _wait_for_stream(address, _LEGACY_STREAM)) if device == _CUDA and address else None
    return Memory(address, length, (target, capsule), wait)
