# SPDX-License-Identifier: BSD-2-Clause
"""The daemon of the mount is killed while a program saves and reads. Another one takes over, and the program does not notice."""
import json
import os
import signal
import subprocess
import threading
import time

import numpy as np
import pytest
from conftest import MOUNT

import sluice
from sluice._ring import Ring, SharedBuffer

PROGRAM = os.environ.get("SLUICE_TEST_PROGRAM")
RECORD, COUNT = 512, 20_000


def status():
    return json.loads(subprocess.check_output([PROGRAM, "status", "--json", MOUNT]))


def read_all(path, content):
    """Reads the records in some order, 64 at once."""
    order = np.random.default_rng(1).permutation(COUNT)
    with sluice.open(path) as file, Ring(64) as ring, SharedBuffer(64 * RECORD) as buffer:
        source, target = ring.add_file(file), ring.add_buffer(buffer)
        for batch in np.split(order, range(64, COUNT, 64)):
            segments = [(place * RECORD, RECORD, int(number) * RECORD) for place, number in enumerate(batch)]
            assert ring.read_many(source, target, segments) == len(batch)
            ring.submit()
            assert {each.result for each in ring.wait(len(batch))} == {RECORD}
            for place, number in enumerate(batch):
                assert buffer.memory[place * RECORD:(place + 1) * RECORD] == content[number]


def test_a_killed_daemon(mount):
    if PROGRAM is None:
        pytest.skip("SLUICE_TEST_PROGRAM is not given")
    content = [np.random.default_rng(number).bytes(RECORD) for number in range(COUNT)]
    (mount / "records").write_bytes(b"".join(content))
    stopped, errors, saved = threading.Event(), [], []

    def repeat(work):
        try:
            while not stopped.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    def save():
        tensors = {f"t{i}": np.full(500_000 + i, len(saved)) for i in range(4)}
        sluice.save_safetensors(tensors, mount / "model.safetensors")
        saved.append(len(saved))

    threads = [threading.Thread(target=repeat, args=(work,)) for work in (save, lambda: read_all(mount / "records", content))]
    for thread in threads:
        thread.start()
    before = status()
    while not saved and not errors:
        time.sleep(0.01)
    os.kill(before["pid"], signal.SIGKILL)
    at_kill = len(saved)
    while (len(saved) < at_kill + 3 or status()["pid"] == before["pid"]) and not errors:
        time.sleep(0.01)
    stopped.set()
    for thread in threads:
        thread.join()
    assert not errors
    tensors = sluice.load_safetensors(mount / "model.safetensors", framework="np")
    assert {int(value) for tensor in tensors.values() for value in (tensor.min(), tensor.max())} == {saved[-1]}
