#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""hbm_test.py SLUICE FOLDER [SIZE]: a model is loaded by one new process after another, first from the page cache and then
from the tier in GPU memory, copied and shared. Then a program changes the file: the next process gets the new bytes.

FOLDER is on a mount with the option hbm. Each load prints a line with its milliseconds. Exit 77: no PyTorch, or no GPU.
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import time

LOAD = """
import json, sys, time, torch, sluice
path, share = sys.argv[1], sys.argv[2] == "shared"
torch.zeros(1, device="cuda")  # the context of this process
torch.cuda.synchronize()
begin = time.perf_counter()
tensors = sluice.load_safetensors(path, device="cuda", share=share)
torch.cuda.synchronize()
seconds = time.perf_counter() - begin
sums = [int(tensor.view(torch.int64).sum()) for tensor in tensors.values()]
print(json.dumps({"ms": seconds * 1e3, "shared": tensors.shared, "why": tensors.not_shared_because, "sums": sums}))
"""
TENSOR = 32 << 20


def write_model(path, count, word):
    """Tensor i is full of the word `word` + i."""
    header = json.dumps({f"w{i}": {"dtype": "F32", "shape": [TENSOR // 4], "data_offsets": [i * TENSOR, (i + 1) * TENSOR]}
                         for i in range(count)}).encode()
    header += b" " * (-(8 + len(header)) % 4096)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for i in range(count):
            file.write(struct.pack("<q", word + i) * (TENSOR // 8))
    return 8 + len(header)


def load(path, how, words):
    """Loads the model in a new process, and compares it with the words of its tensors."""
    done = subprocess.run([sys.executable, "-c", LOAD, str(path), how], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit(f"FAILED: {how}: {done.stderr}")
    answer = json.loads(done.stdout.splitlines()[-1])
    expected = [word * (TENSOR // 8) for word in words]
    if answer["sums"] != expected:
        wrong = [i for i, (got, want) in enumerate(zip(answer["sums"], expected, strict=True)) if got != want]
        sys.exit(f"FAILED: {how}: tensors {wrong} have other bytes than the file")
    print(f"{how}: {answer['ms']:.1f} ms{' ' + answer['why'] if how == 'shared' and not answer['shared'] else ''}", flush=True)
    return answer


def in_gpu_memory(sluice, folder):
    said = subprocess.run([sluice, "status", "--json", folder], capture_output=True, text=True, timeout=20, check=True)
    status = json.loads(said.stdout)
    status = status[0] if isinstance(status, list) else status
    return status["gpu"]["devices"][0]["hbm"]["bytes"]


def wait_for(what, condition):
    end = time.monotonic() + 30
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"FAILED: {what}")
        time.sleep(0.1)


def main():
    sluice, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    count = (int(sys.argv[3]) if len(sys.argv) > 3 else 1 << 30) // TENSOR
    try:
        import torch
    except ImportError as error:
        print(error)
        return 77
    if not torch.cuda.is_available():
        print("no GPU")
        return 77
    path = folder / "hbm.safetensors"
    begin = write_model(path, count, 1)
    words = [1 + i for i in range(count)]
    os.sync()
    time.sleep(3)  # files that have just been changed are not kept
    mount = folder
    while not os.path.ismount(mount):
        mount = mount.parent
    before = in_gpu_memory(sluice, mount)
    for _ in range(2):
        load(path, "copied", words)
    wait_for("the model is not kept in GPU memory after two loads", lambda: in_gpu_memory(sluice, mount) >= before + count * TENSOR)
    for _ in range(3):
        load(path, "copied", words)
    for _ in range(3):
        if not load(path, "shared", words)["shared"]:
            sys.exit("FAILED: not shared")
    with open(path, "r+b") as file:
        file.seek(begin + TENSOR)
        file.write(struct.pack("<q", 7) * (TENSOR // 8))
    words[1] = 7
    for how in ("copied", "shared", "copied"):
        load(path, how, words)
    path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
