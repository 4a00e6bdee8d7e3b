#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""dropin_test.py LIBCUFILE MOUNTED PLAIN [BYTES]: an unchanged program with torch.cuda.gds, and one with cuda.bindings.cufile,
with and without our libcufile preloaded, in a directory of a Sluice mount and in a plain one.

Every byte is compared with what open() and torch.load() give. What NVIDIA's library refuses by itself is no failure, but it
must refuse the same with ours before it. Prints GB/s. Exit 77: no PyTorch with torch.cuda.gds, or no GPU.
"""
import json
import os
import struct
import subprocess
import sys
import time
import zipfile

NOWHERE = "/nonexistent/libcufile.so.0"


# ---- The program, which does not mention Sluice. ----

def rate(torch, size, work, rounds=6):
    """The best of several rounds; the first includes the setup."""
    best = 0.0
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        best = max(best, size / (time.perf_counter() - begin) / 1e9)
    return best


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def data_offset(path, suffix):
    """The offset of a storage's bytes in a file of torch.save()."""
    with zipfile.ZipFile(path) as archive:
        info = next(each for each in archive.infolist() if each.filename.endswith(suffix))
    with open(path, "rb") as plain:
        plain.seek(info.header_offset + 26)
        name, extra = struct.unpack("<HH", plain.read(4))
    return info.header_offset + 30 + name + extra


def torch_program(directory, size):
    import torch
    import torch.cuda.gds as gds
    torch.manual_seed(1)
    path = os.path.join(directory, "gds.bin")
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
    file = gds.GdsFile(path, os.O_CREAT | os.O_RDWR)  # adds O_DIRECT by itself
    file.save_storage(source.untyped_storage(), offset=0)
    with open(path, "rb") as plain:
        written = torch.frombuffer(bytearray(plain.read()), dtype=torch.uint8)
    expect(torch.equal(written, source.cpu()), "the file has other bytes than were saved")

    loaded = torch.zeros(size, dtype=torch.uint8, device="cuda")
    result = {"load": rate(torch, size, lambda: file.load_storage(loaded.untyped_storage(), offset=0))}
    expect(torch.equal(loaded, source), "other bytes were loaded than saved")
    loaded.zero_()
    gds.gds_register_buffer(loaded.untyped_storage())
    result["load, registered"] = rate(torch, size, lambda: file.load_storage(loaded.untyped_storage(), offset=0))
    gds.gds_deregister_buffer(loaded.untyped_storage())
    expect(torch.equal(loaded, source), "other bytes were loaded into registered memory")
    result["save"] = rate(torch, size, lambda: file.save_storage(source.untyped_storage(), offset=0), rounds=3)

    # Memory that was freed and allocated again, perhaps at the same address.
    for offset in (0, 4096, 12_345):
        del loaded
        torch.cuda.empty_cache()
        loaded = torch.zeros(size // 2, dtype=torch.uint8, device="cuda")
        file.load_storage(loaded.untyped_storage(), offset=offset)
        expect(torch.equal(loaded, source[offset:offset + size // 2]), f"other bytes from offset {offset}")
    del file

    # A file of torch.save(), compared with torch.load().
    saved = os.path.join(directory, "saved.pt")
    torch.save({"weight": torch.randn(1_000_003)}, saved)
    weight = torch.load(saved)["weight"]
    tensor = torch.zeros_like(weight, device="cuda")
    file = gds.GdsFile(saved, os.O_RDONLY)
    file.load_storage(tensor.untyped_storage(), offset=data_offset(saved, "/data/0"))
    expect(torch.equal(tensor.cpu(), weight), "torch.load() gives another tensor")
    del file
    os.unlink(path)
    os.unlink(saved)
    return result


def bindings_program(directory, size):
    import torch
    from cuda.bindings import cufile
    path = os.path.join(directory, "bindings.bin")
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
    loaded = torch.zeros(size, dtype=torch.uint8, device="cuda")
    cufile.driver_open()
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600)
    description = cufile.Descr()
    description.type = cufile.FileHandleType.OPAQUE_FD
    description.handle.fd = fd
    description.fs_ops = 0
    handle = cufile.handle_register(description.ptr)
    cufile.buf_register(source.data_ptr(), size, 0)
    expect(cufile.write(handle, source.data_ptr(), size, 0, 0) == size, "a short write")
    cufile.buf_deregister(source.data_ptr())
    done = []
    result = {"read": rate(torch, size, lambda: done.append(cufile.read(handle, loaded.data_ptr(), size, 0, 0)))}
    expect(all(each == size for each in done), f"short reads: {done}")
    expect(torch.equal(loaded, source), "other bytes were read than written")
    cufile.handle_deregister(handle)
    os.close(fd)
    cufile.driver_close()
    os.unlink(path)
    return result


# ---- The test. ----

def run(which, directory, size, variables):
    """The output of the program: its rates, or why it failed."""
    environment = {**os.environ, "CUFILE_LOGFILE_PATH": "/dev/null", **variables}
    try:
        ran = subprocess.run([sys.executable, __file__, "--program", which, directory, str(size)], env=environment,
                             capture_output=True, text=True, timeout=100)
    except subprocess.TimeoutExpired as late:
        return {"failed": "not done after 100 s", "stderr": str(late.stderr)}
    try:
        said = json.loads(ran.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        said = {"failed": f"exit {ran.returncode}: {ran.stderr[-1500:]}"}
    said["stderr"] = ran.stderr
    return said


def program(which, directory, size):
    work = {"torch": torch_program, "bindings": bindings_program}[which]
    try:
        said = {"rates": work(directory, size)}
    except Exception as failure:  # pylint: disable=broad-except; said to the test, whatever it is
        said = {"failed": f"{type(failure).__name__}: {failure}".splitlines()[0]}
    print(json.dumps(said))


def show(title, said):
    rates = ", ".join(f"{name} {value:.1f} GB/s" for name, value in said.get("rates", {}).items())
    print(f"  {title:<42} {rates or said['failed']}")


def main():
    if sys.argv[1] == "--program":
        program(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    library, mounted, plain = os.path.realpath(sys.argv[1]), sys.argv[2], sys.argv[3]
    size = int(sys.argv[4]) if len(sys.argv) > 4 else 1 << 30
    try:
        import torch
        import torch.cuda.gds
    except ImportError as missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    if not torch.cuda.is_available() or not hasattr(torch.cuda.gds, "GdsFile"):
        print("skipped: PyTorch sees no GPU, or has no torch.cuda.gds")
        sys.exit(77)
    programs = ["torch"]
    try:
        import cuda.bindings.cufile  # noqa: F401
        programs.append("bindings")
    except ImportError as missing:
        print(f"without cuda.bindings.cufile: {missing}")

    preload, alone = {"LD_PRELOAD": library}, {"LD_PRELOAD": library, "SLUICE_CUFILE_REAL": NOWHERE}
    failures = []
    for which in programs:
        print(f"{which}, {size} bytes")
        without = {place: run(which, place, size, {}) for place in (mounted, plain)}
        with_it = {place: run(which, place, size, preload) for place in (mounted, plain)}
        by_itself = run(which, mounted, size, alone)
        show("mount, NVIDIA's libcufile", without[mounted])
        show("mount, ours", with_it[mounted])
        show("mount, ours without NVIDIA's", by_itself)
        show("plain directory, NVIDIA's libcufile", without[plain])
        show("plain directory, ours before it", with_it[plain])
        for title, said in (("ours", with_it[mounted]), ("ours alone", by_itself)):
            if "failed" in said:
                failures.append(f"{which} on the mount with {title}: {said['failed']}\n{said['stderr'][-2000:]}")
        if ("failed" in without[plain]) != ("failed" in with_it[plain]):
            failures.append(f"{which} in a plain directory is another with ours before NVIDIA's:"
                            f" {without[plain]} and {with_it[plain]}")
    if failures:
        sys.exit("FAILED: " + "\n".join(failures))
    print("all bytes are right")


if __name__ == "__main__":
    main()
