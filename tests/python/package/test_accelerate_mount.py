# SPDX-License-Identifier: BSD-2-Clause
"""sluice.accelerate while files move, the daemon is replaced and the mount ends. Mounts a pool of its own."""
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from accelerated import open_on, reasons, same, save, tensors_of  # noqa: E402

SLUICE = os.environ.get("SLUICE_TEST_PROGRAM", "")


def sluice(*arguments):
    subprocess.run([SLUICE, *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture
def pool():
    if not SLUICE or os.geteuid() != 0:
        pytest.skip("SLUICE_TEST_PROGRAM is not given, or mounting needs root")
    with tempfile.TemporaryDirectory(prefix="accelerate-", dir=os.environ.get("SLUICE_TEST_DIR")) as folder:
        for name in "a", "b", "mnt":
            os.mkdir(f"{folder}/{name}")
        sluice("mount", "--tier", f"a={folder}/a", "--tier", f"b={folder}/b", "--state", f"{folder}/state", f"{folder}/mnt")
        try:
            yield pathlib.Path(folder) / "mnt"
        finally:
            subprocess.run([SLUICE, "umount", f"{folder}/mnt"], capture_output=True)
            subprocess.run(["umount", "-l", f"{folder}/mnt"], capture_output=True)


def test_moves_and_new_daemons_during_loads(pool, originals, gpu, monkeypatch):
    from sluice.integrations import _bulk
    monkeypatch.setattr(_bulk, "GROUP_BYTES", 1 << 20)
    tensors = tensors_of()
    path = save(tensors, pool / "m.safetensors")
    torch.save(tensors["layers.0.weight"], pool / "a.pt")
    stopped, disturbed = threading.Event(), []

    def disturb():
        while not stopped.is_set():
            for arguments in ("move", "--to", "b", path), ("restart", pool), ("move", "--to", "a", path):
                sluice(*arguments)
                disturbed.append(arguments[0])

    thread = threading.Thread(target=disturb)
    thread.start()
    loads = 0
    try:
        while (len(disturbed) < 6 or loads < 3) and thread.is_alive():
            with open_on(gpu, originals, path) as file:
                for name, tensor in file.get_tensors().items():
                    same(tensor, tensors[name])
            same(torch.load(pool / "a.pt", map_location=gpu), tensors["layers.0.weight"])
            loads += 1
    finally:
        stopped.set()
        thread.join()
    assert loads >= 3 and len(disturbed) >= 6
    assert not reasons()


PROGRAM = """
import subprocess, sys
sys.path.insert(0, sys.argv[2])
import torch
from accelerated import a_gpu, accelerated, open_on, same, tensors_of
from sluice.integrations import _bulk

_bulk.GROUP_BYTES = 1 << 20
tensors = tensors_of()
with accelerated() as originals, a_gpu() as gpu:
    file = open_on(gpu, originals, sys.argv[1] + "/m.safetensors")
    names = file.offset_keys()
    file.bulk.want(names, gpu)
    for i, name in enumerate(names):
        if i == len(names) // 2:
            subprocess.run(["umount", "-f", sys.argv[1]], capture_output=True)
        try:
            same(file.get_tensor(name), tensors[name])
        except OSError as error:
            print("OSError", error.errno)
            break
    try:
        torch.load(sys.argv[1] + "/a.pt", map_location=gpu)
    except OSError as error:
        print("OSError", error.errno)
"""


def test_the_end_of_the_mount_is_an_error_and_no_crash(pool):
    """The original has mapped the file, and would end by SIGBUS."""
    tensors = tensors_of()
    save(tensors, pool / "m.safetensors")
    torch.save(tensors["layers.0.weight"], pool / "a.pt")
    done = subprocess.run([sys.executable, "-c", PROGRAM, pool, pathlib.Path(__file__).parent], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    # The mount may be gone by then (2) or dead (107). What the page cache has can still be read.
    assert done.stdout and set(done.stdout.splitlines()) <= {"OSError 2", "OSError 107"}, done.stdout + done.stderr
