#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""torch_test.py LIBSLUICE FILE...: libsluice fills tensors that PyTorch allocated, by ctypes.

With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True the memory comes from the virtual memory API, else from
cudaMalloc; either way a tensor lies somewhere in the middle of an allocation. Exit 77: no PyTorch, or no GPU.
"""
import ctypes
import os
import sys


class Result(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint64), ("route", ctypes.c_uint32), ("why", ctypes.c_uint32),
                ("in_process", ctypes.c_uint32), ("reserved", ctypes.c_uint32)]


def load(path):
    lib = ctypes.CDLL(path)
    size, pointer, u64 = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64
    out = ctypes.POINTER(ctypes.c_void_p)
    lib.sluice_open.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, out]
    lib.sluice_buffer_register.argtypes = [pointer, size, out]
    lib.sluice_buffer_unregister.argtypes = lib.sluice_close.argtypes = [pointer]
    for function in (lib.sluice_read, lib.sluice_write):
        function.argtypes = [pointer, pointer, size, size, u64, ctypes.POINTER(Result)]
        function.restype = ctypes.c_ssize_t
    lib.sluice_error.restype = lib.sluice_route_name.restype = lib.sluice_why_text.restype = ctypes.c_char_p
    return lib


def check(lib, code, what):
    if code < 0:
        sys.exit(f"FAILED: {what}: {lib.sluice_error().decode()} ({code})")
    return code


def read_into(lib, torch, path, tensor, file_offset, length):
    """Reads into the tensor and compares it with read(2). Returns libsluice's result."""
    file, buffer, result = ctypes.c_void_p(), ctypes.c_void_p(), Result()
    check(lib, lib.sluice_open(path.encode(), os.O_RDONLY, 0, ctypes.byref(file)), "open")
    check(lib, lib.sluice_buffer_register(tensor.data_ptr(), tensor.numel(), ctypes.byref(buffer)), "register")
    done = check(lib, lib.sluice_read(file, buffer, 0, length, file_offset, ctypes.byref(result)), "read")
    lib.sluice_buffer_unregister(buffer)
    lib.sluice_close(file)
    with open(path, "rb") as plain:
        plain.seek(file_offset)
        expected = plain.read(length)
    if done != len(expected):
        sys.exit(f"FAILED: {done} bytes of {path} came, not {len(expected)}")
    wanted = torch.frombuffer(bytearray(expected), dtype=torch.uint8).to(tensor.device)
    if not torch.equal(tensor[:done], wanted):
        sys.exit(f"FAILED: {path}: {int((tensor[:done] != wanted).sum())} bytes differ")
    return result


def main():
    library, paths = sys.argv[1], sys.argv[2:]
    try:
        import torch
    except ImportError as missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        sys.exit(77)
    lib = load(library)
    torch.manual_seed(1)
    # Neighbours before and after, which must not change, and which make the addresses of the
    # tensors odd.
    before = torch.full((3_000_001,), 77, dtype=torch.uint8, device="cuda")
    for path in paths:
        size = os.path.getsize(path)
        tensor = torch.zeros(size, dtype=torch.uint8, device="cuda")
        result = read_into(lib, torch, path, tensor, 0, size)
        print(f"{size} bytes by {lib.sluice_route_name(result.route).decode()}"
              f" ({lib.sluice_why_text(result.why).decode()}),"
              f" {'in this process' if result.in_process else 'by the daemon'}")
        # A view in the middle of the tensor, and an unaligned range of the file.
        if size > 100_000:
            view = tensor[12_345:12_345 + 50_001]
            read_into(lib, torch, path, view, 999, 50_001)
        # Memory that grew: with expandable segments, several adjacent allocations.
        grown = torch.zeros(size + 64 * 1024 * 1024, dtype=torch.uint8, device="cuda")
        read_into(lib, torch, path, grown, 0, size)
        del tensor, grown
    torch.cuda.synchronize()
    if int((before != 77).sum()) != 0:
        sys.exit("FAILED: a neighbour of the tensors was written to")
    print("all bytes are right, allocator:", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "default"))


if __name__ == "__main__":
    main()
