# SPDX-License-Identifier: BSD-2-Clause
"""fake_gpu_gather.py LIBCUDA FILE: rows by number, with index and rows in memory of the fake GPU."""
import array
import ctypes
import random
import sys
import time

cuda = ctypes.CDLL(sys.argv[1])

import sluice  # noqa: E402: after CUDA, as in a program that uses it


def check(code):
    assert code == 0, code


class GpuArray:
    def __init__(self, content, typestr, item):
        self.address, self.size = ctypes.c_uint64(), len(content)
        check(cuda.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(self.size)))
        check(cuda.cuMemcpyHtoD_v2(self.address, content, ctypes.c_size_t(self.size)))
        self.__cuda_array_interface__ = {"shape": (self.size // item,), "typestr": typestr, "version": 3, "strides": None,
                                         "data": (self.address.value, False), "stream": None}

    def content(self):
        data = ctypes.create_string_buffer(self.size)
        check(cuda.cuMemcpyDtoH_v2(data, self.address, ctypes.c_size_t(self.size)))
        return data.raw


def main():
    path = sys.argv[2]
    with open(path, "rb") as plain:
        content = plain.read()
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    size = 100
    count = len(content) // size
    numbers = [random.randrange(count) for _ in range(5000)]
    expected = b"".join(content[size * n:size * n + size] for n in numbers)
    there = GpuArray(array.array("Q", numbers).tobytes(), "<u8", 8)
    rows = GpuArray(bytes(len(expected)), "|u1", 1)
    with sluice.open(path, "r+") as file:
        time.sleep(2.1)  # a recently changed file is not registered
        for index in (numbers, there):
            file.gather(index, out=rows)
            assert rows.content() == expected
            assert sluice.checksum(rows) == sluice.checksum(expected)
            assert sluice.checksum(rows, 3) == sluice.checksum(expected[3:])
        wrong = GpuArray(array.array("Q", [1, count]).tobytes(), "<i8", 8)
        try:
            file.gather(wrong, out=bytearray(2 * size))
            raise AssertionError("a row beyond the end")
        except IndexError as error:
            assert f"index[1] is {count}" in str(error), error
        try:
            file.gather(GpuArray(bytes(8), "<f8", 8), out=bytearray(size))
            raise AssertionError("an index of floats")
        except TypeError as error:
            assert "<f8" in str(error), error
        result = file.scatter(there, rows)
        assert result.route == "staged" and file.read() == content, result
    print("all rows are right")


main()
