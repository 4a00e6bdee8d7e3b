# SPDX-License-Identifier: BSD-2-Clause
import array
import ctypes
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import sluice


@pytest.mark.parametrize("target", [
    lambda: np.zeros(1000, np.uint8), lambda: np.zeros((10, 25), np.float32), lambda: np.zeros((2, 500), np.int8)[1:],
    lambda: memoryview(bytearray(1000)), lambda: memoryview(bytearray(1200))[100:1100], lambda: array.array("i", range(250)),
    lambda: (ctypes.c_char * 1000)(), lambda: np.zeros((), "V1000"), lambda: np.zeros(500, np.float16)])
def test_memory_of_the_host(path, content, target):
    target = target()
    length = memoryview(target).nbytes
    with sluice.open(path) as file:
        assert file.read_into(target, 123).bytes == length
    assert bytes(memoryview(target)) == content[123:123 + length]


def test_non_contiguous_memory_is_refused(path):
    square = np.zeros((10, 10))
    with sluice.open(path) as file:
        for target in (square[:, 1:], square.T, square[::2], memoryview(bytearray(10))[::2]):
            with pytest.raises(ValueError, match="not contiguous; use .*ascontiguousarray"):
                file.read_into(target)


def test_read_only_memory_is_refused(path):
    frozen = np.zeros(10)
    frozen.flags.writeable = False
    with sluice.open(path) as file:
        for target in (b"abc", memoryview(b"abc"), frozen):
            with pytest.raises(ValueError, match="read-only"):
                file.read_into(target)


def test_objects_without_memory_are_refused(path):
    with sluice.open(path) as file:
        for target in (None, 5, "text", [1, 2], object()):
            with pytest.raises(TypeError, match="has no usable memory"):
                file.read_into(target)
        for target in (np.array([None, 1]), np.zeros(2, [("a", "O"), ("b", "i4")]), (ctypes.py_object * 2)(),
                       memoryview(np.zeros(2, [("O", "i4"), ("a", "O")]))):
            with pytest.raises(TypeError, match="Python objects"):
                file.read_into(target)


def test_fields_may_have_any_name(path, content):
    class Entry(ctypes.Structure):
        _fields_ = [("Offset", ctypes.c_int), ("O", ctypes.c_int)]

    fields = [("Offset", "<i4"), ("O", "<i4")]
    with sluice.open(path) as file:
        for target in (np.zeros(4, fields), memoryview(np.zeros(4, fields)), (Entry * 4)()):
            assert file.read_into(target).bytes == 32
            assert bytes(target) == content[:32]


class OnlyDlpack:
    def __init__(self, array, versions=False):
        self.array, self.versions = array, versions

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **others):
        if others and not self.versions:
            raise TypeError("unexpected argument")
        return self.array.__dlpack__(stream=stream, **others)


def test_dlpack(path, content):
    target = np.zeros((10, 10), np.int16)
    with sluice.open(path) as file:
        assert file.read_into(OnlyDlpack(target), 5).bytes == 200
        with pytest.raises(ValueError, match="not contiguous"):
            file.read_into(OnlyDlpack(target[:, 1:]))
    assert target.tobytes() == content[5:205]


@pytest.mark.skipif(int(np.__version__.split(".")[0]) < 2, reason="this NumPy's DLPack has no versions")
def test_dlpack_with_versions(path, content):
    target = np.zeros((10, 10), np.int16)
    with sluice.open(path) as file:
        assert file.read_into(OnlyDlpack(target, versions=True), 5).bytes == 200
        assert target.tobytes() == content[5:205]
        target.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            file.read_into(OnlyDlpack(target, versions=True))


def test_types_without_a_code_in_the_buffer_protocol(path, content):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    target = np.zeros(100, ml_dtypes.bfloat16)
    with sluice.open(path) as file:
        assert file.read_into(target).bytes == 200
    assert target.tobytes() == content[:200]


class CudaArray:
    """Host memory that is described as GPU memory, for tests that only use the description."""

    def __init__(self, array, **others):
        self.array = array
        self.__cuda_array_interface__ = {"shape": array.shape, "typestr": array.dtype.str, "version": 3,
                                         "data": (array.ctypes.data, False), "strides": array.strides, **others}


def test_the_description_of_a_cuda_array(path, content):
    target = np.zeros((10, 10), np.int16)
    with sluice.open(path) as file:
        assert file.read_into(CudaArray(target, strides=None)).bytes == 200
        assert target.tobytes() == content[:200]
        assert file.read_into(CudaArray(target[:1]), 7).bytes == 20
        assert target[0].tobytes() == content[7:27]
        with pytest.raises(ValueError, match="cupy.ascontiguousarray"):
            file.read_into(CudaArray(target[:, ::2]))
        with pytest.raises(ValueError, match="read-only"):
            file.read_into(CudaArray(target, data=(target.ctypes.data, True)))
        with pytest.raises(ValueError, match="mask"):
            file.read_into(CudaArray(target, mask=CudaArray(target)))


def test_memory_of_a_gpu(path):
    """With the fake GPU of the other tests, in a separate process because CUDA can't be unloaded."""
    fake = os.environ.get("SLUICE_FAKE_CUDA")
    if not fake:
        pytest.skip("SLUICE_FAKE_CUDA, the path of the fake libcuda.so.1, is not given")
    program = pathlib.Path(__file__).parent / "fake_gpu_program.py"
    done = subprocess.run([sys.executable, program, fake, path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all bytes are right" in done.stdout
    try:
        has_gpu = not sluice.stat(path).gpu.startswith("host")
    except sluice.Error:
        has_gpu = False  # there is no daemon
    assert f"in_process={not has_gpu}" in done.stdout
