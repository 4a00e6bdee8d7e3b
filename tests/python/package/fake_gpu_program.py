# SPDX-License-Identifier: BSD-2-Clause
"""fake_gpu_program.py LIBCUDA FILE: reads a file into memory of a GPU that is described by the CUDA array interface."""
import asyncio
import ctypes
import sys
import threading

cuda = ctypes.CDLL(sys.argv[1])

import sluice  # noqa: E402: after CUDA, as in a program that uses it
from sluice._ring import Ring  # noqa: E402


def check(code):
    assert code == 0, code


class GpuArray:
    def __init__(self, size, stream):
        self.address, self.size = ctypes.c_uint64(), size
        check(cuda.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(size)))
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "version": 3, "strides": None,
                                         "data": (self.address.value, False), "stream": stream}

    def content(self):
        check(cuda.cuCtxSynchronize())
        data = ctypes.create_string_buffer(self.size)
        check(cuda.cuMemcpyDtoH_v2(data, self.address, ctypes.c_size_t(self.size)))
        return data.raw


def main():
    path = sys.argv[2]
    with open(path, "rb") as plain:
        expected = plain.read()
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    stream = ctypes.c_void_p()
    check(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    array = GpuArray(len(expected), stream.value)
    with sluice.open(path) as file:
        # Work in the stream comes first, and must not overwrite the bytes that were read.
        check(cuda.cuMemsetD8Async(array.address, 77, ctypes.c_size_t(array.size), stream))
        result = file.read_into(array)
        print(result, file.route(array))
        assert result.route != "host", result
        assert array.content() == expected

        check(cuda.cuMemsetD8Async(array.address, 77, ctypes.c_size_t(array.size), stream))
        thread = threading.Thread(target=lambda: file.read_into(array, 5, 1000))
        thread.start()
        thread.join()
        assert array.content() == expected[5:1005] + bytes([77]) * (array.size - 1000)

        check(cuda.cuMemsetD8Async(array.address, 78, ctypes.c_size_t(array.size), stream))
        asyncio.run(file.read_into_async(array, 0, 5000))
        assert array.content() == expected[:5000] + bytes([78]) * (array.size - 5000)

        with sluice.register(array) as buffer:
            file.readv(buffer, [(0, 10_000, 100), (100_000, 0, 100)])
        assert array.content()[:100] == expected[100_000:100_100]
        assert array.content()[10_000:10_100] == expected[:100]

        check(cuda.cuMemsetD8Async(array.address, 79, ctypes.c_size_t(array.size), stream))
        with sluice.register(array) as buffer, Ring(8) as ring:
            source, target = ring.add_file(file), ring.add_buffer(buffer)
            assert ring.read_many(source, target, [(0, 1000, 7), (5000, 100, 0)]) == 2
            ring.submit()
            assert sorted(each.result for each in ring.wait(2)) == [100, 1000]
        assert array.content()[:1000] == expected[7:1007] and array.content()[5000:5100] == expected[:100]
        assert array.content()[1000:5000] == bytes([79]) * 4000
    print("all bytes are right")


main()
