# SPDX-License-Identifier: BSD-2-Clause
"""fake_gpu_nixl.py LIBCUDA FILE SECONDS [OTHER]: reads random blocks of a file into memory of a GPU, with NIXL, for some time.

With an empty LIBCUDA it reads into host memory. After an error it goes on with the file OTHER, which has the same bytes.
"""
import ctypes
import os
import random
import sys
import time

import numpy

cuda = ctypes.CDLL(sys.argv[1]) if sys.argv[1] else None

from nixl._bindings import nixlBackendError  # noqa: E402: after CUDA, as in a program that uses it
from nixl_agent import Agent, pieces  # noqa: E402

SIZE = 4_000_000


def check(code):
    assert code == 0, code


class HostMemory:
    kind = "DRAM"

    def __init__(self):
        self.array = numpy.zeros(SIZE, dtype=numpy.uint8)
        self.address = self.array.ctypes.data

    def content(self):
        return self.array.tobytes()


class GpuMemory:
    kind = "VRAM"

    def __init__(self):
        context, address = ctypes.c_void_p(), ctypes.c_uint64()
        check(cuda.cuInit(0))
        check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        check(cuda.cuCtxSetCurrent(context))
        check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(SIZE)))
        check(cuda.cuMemsetD8Async(address, 0, ctypes.c_size_t(SIZE), None))
        check(cuda.cuCtxSynchronize())
        self.address = address.value

    def content(self):
        check(cuda.cuCtxSynchronize())
        data = ctypes.create_string_buffer(SIZE)
        check(cuda.cuMemcpyDtoH_v2(data, ctypes.c_uint64(self.address), ctypes.c_size_t(SIZE)))
        return data.raw


def main():
    path, seconds, *others = sys.argv[2:]
    with open(path, "rb") as plain:
        expected = plain.read()
    end = time.monotonic() + float(seconds)
    memory = GpuMemory() if cuda else HostMemory()
    model = bytearray(SIZE)
    rng = random.Random(3)
    agent = Agent()
    agent.register(memory.kind, memory.address, SIZE, 0)
    file = 1000
    for number, each in enumerate([path, *others]):
        agent.register("FILE", 0, len(expected), file + number, f"ro:{each}")
    print("begun", flush=True)
    rounds = 0
    while rounds < 20 or time.monotonic() < end:
        blocks = []
        for at, length in pieces(rng, SIZE, rng.choice([1, 40, 1000])):
            offset = rng.randrange(len(expected) - length)
            blocks.append((memory.address + at, offset, length))
            model[at:at + length] = expected[offset:offset + length]
        try:
            assert agent.run("READ", blocks, file, memory.kind) == "DONE"
        except nixlBackendError:
            if file > 1000 or not others:
                raise
            print("the first file has failed", flush=True)
            file, rounds = 1001, 0
            assert agent.run("READ", blocks, file, memory.kind) == "DONE"
        assert memory.content() == model
        rounds += 1
        time.sleep(0.02 if rounds > 20 else 0)
    print(f"{rounds} rounds, all bytes are right", flush=True)


main()
