# SPDX-License-Identifier: BSD-2-Clause
"""The plugin for NIXL, in NIXL's own agent. Skipped where NIXL is not installed, or the build has no plugin."""
import gc
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest

PLUGIN = pathlib.Path(os.environ.get("SLUICE_LIBRARY", "")).parent / "nixl" / "libplugin_SLUICE.so"
PROGRAM = os.environ.get("SLUICE_TEST_PROGRAM")
if not PLUGIN.is_file():
    pytest.skip("the build has no plugin for NIXL (SLUICE_NIXL_HEADERS)", allow_module_level=True)
os.environ["NIXL_PLUGIN_DIR"] = str(PLUGIN.parent)
os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")
try:
    import nixl
except ImportError as error:
    pytest.skip(f"no NIXL: {error}", allow_module_level=True)

from nixl_agent import Agent, pieces, threaded  # noqa: E402

SIZE = 3_000_001


class Memory:
    """Memory with the bytes 7, and what should be in it."""

    def __init__(self, agent, size=SIZE):
        self.array = numpy.full(size, 7, dtype=numpy.uint8)
        self.model = bytearray(self.array.tobytes())
        self.address = self.array.ctypes.data
        self.registered = agent.register("DRAM", self.address, size, 0)

    def is_right(self):
        return self.array.tobytes() == self.model


@pytest.fixture
def agent():
    return Agent()


@pytest.fixture
def opened(folder):
    """Opens files; all of them are closed at the end."""
    made = []

    def open_it(name, data=None, flags=os.O_RDWR):
        if data is not None:
            (folder / name).write_bytes(data)
        made.append(os.open(folder / name, flags))
        return made[-1]
    yield open_it
    for fd in made:
        try:
            os.close(fd)
        except OSError:
            pass  # the test has closed it


def test_random_lists_give_the_bytes_of_a_model(agent, opened):
    rng = random.Random(5)
    memory = Memory(agent)
    files = {}
    for name in "abc":
        data = bytearray(rng.randbytes(rng.randrange(SIZE // 2, SIZE)))
        fd = opened(name, data)
        files[fd] = data
        agent.register("FILE", 0, len(data), fd)
    for _ in range(40):
        count = rng.choice([1, 2, 30, 400])
        blocks = []
        if rng.random() < 0.6:
            for at, length in pieces(rng, SIZE, count):
                fd = rng.choice(list(files))
                length = min(length, len(files[fd]))
                offset = rng.randrange(len(files[fd]) - length + 1)
                blocks.append((memory.address + at, offset, length, fd))
                memory.model[at:at + length] = files[fd][offset:offset + length]
            assert agent.run("READ", blocks) == "DONE"
            assert memory.is_right()
        else:
            fd = rng.choice(list(files))
            for offset, length in pieces(rng, len(files[fd]), count):
                at = rng.randrange(SIZE - length + 1)
                blocks.append((memory.address + at, offset, length, fd))
                files[fd][offset:offset + length] = memory.model[at:at + length]
            assert agent.run("WRITE", blocks) == "DONE"
            assert os.pread(fd, SIZE, 0) == files[fd]


def test_more_blocks_than_a_ring_has(agent, opened, content):
    fd = opened("file", content)
    memory = Memory(agent, 10_000 * 300)
    agent.register("FILE", 0, len(content), fd)
    blocks = [(memory.address + i * 300, (9_999 - i) * 900, 300) for i in range(10_000)]
    assert agent.run("READ", blocks, fd) == "DONE"
    assert memory.array.tobytes() == b"".join(content[i * 900:i * 900 + 300] for i in reversed(range(10_000)))


def test_a_file_that_is_too_short_is_an_error_until_it_has_grown(agent, opened):
    fd = opened("file", b"x" * 5000)
    memory = Memory(agent)
    agent.register("FILE", 0, 8192, fd)
    handle = agent.prepare("READ", [(memory.address, 0, 4096), (memory.address + 4096, 4096, 4096)], fd)
    with pytest.raises(nixl._bindings.nixlBackendError):
        agent.wait(handle, agent.nixl.transfer(handle))
    os.pwrite(fd, b"y" * 8192, 0)
    assert agent.wait(handle, agent.nixl.transfer(handle)) == "DONE"
    assert memory.array.tobytes()[:8192] == b"y" * 8192
    handle.release()


def test_a_replaced_file_keeps_its_bytes(agent, opened, folder):
    old = opened("file", b"old" * 1000)
    memory = Memory(agent)
    agent.register("FILE", 0, 3000, old)
    (folder / "new").write_bytes(b"new" * 1000)
    os.rename(folder / "new", folder / "file")
    new = opened("file")
    agent.register("FILE", 0, 3000, new)
    assert agent.run("READ", [(memory.address, 0, 3000, old), (memory.address + 3000, 0, 3000, new)]) == "DONE"
    assert memory.array.tobytes()[:6000] == b"old" * 1000 + b"new" * 1000


def test_a_descriptor_that_was_closed_does_not_become_another_file(agent, opened):
    fd = opened("one", b"1" * 4096)
    memory = Memory(agent)
    registered = agent.register("FILE", 0, 4096, fd)
    os.close(fd)
    assert opened("two", b"2" * 4096) == fd
    with pytest.raises(Exception):
        agent.register("FILE", 0, 4096, fd)
    assert agent.run("READ", [(memory.address, 0, 4096)], fd) == "DONE"
    assert memory.array.tobytes()[:4096] == b"1" * 4096
    agent.nixl.deregister_memory(registered)
    agent.register("FILE", 0, 4096, fd)
    assert agent.run("READ", [(memory.address, 0, 4096)], fd) == "DONE"
    assert memory.array.tobytes()[:4096] == b"2" * 4096


def test_parts_of_a_file_are_registered_separately(agent, opened, content):
    fd = opened("file", content)
    memory = Memory(agent)
    parts = [agent.register("FILE", i * 4096, 4096, fd) for i in range(20)]
    agent.nixl.deregister_memory(parts.pop(3))
    assert agent.run("READ", [(memory.address, 4 * 4096, 4096), (memory.address + 4096, 0, 4096)], fd) == "DONE"
    assert memory.array.tobytes()[:8192] == content[4 * 4096:5 * 4096] + content[:4096]
    with pytest.raises(Exception):
        agent.prepare("READ", [(memory.address, 3 * 4096, 4096)], fd)


def test_files_are_registered_by_path(agent, folder, content):
    (folder / "file").write_bytes(content)
    memory = Memory(agent)
    agent.register("FILE", 0, len(content), 1000, f"ro,direct:{folder}/file")
    agent.register("FILE", 0, 4096, 1001, f"rw,create:{folder}/made")
    assert agent.run("READ", [(memory.address, 5, 4096, 1000)]) == "DONE"
    assert agent.run("WRITE", [(memory.address, 0, 4096, 1001)]) == "DONE"
    assert (folder / "made").read_bytes() == content[5:4101]
    with pytest.raises(nixl._bindings.nixlNotAllowedError):
        agent.run("WRITE", [(memory.address, 0, 4096, 1000)])
    assert (folder / "file").read_bytes() == content
    refused = [(1000, f"ro:{folder}/made"), (1002, f"ro:{folder}/none"), (1003, f"ro:{folder}"),
               (1004, f"rw,sync:{folder}/made"), (1005, f"rw,fast:{folder}/made"), (2**40, "")]
    for device, metadata in refused:
        with pytest.raises(Exception):
            agent.register("FILE", 0, 4096, device, metadata)
    asked = agent.nixl.get_reg_descs([(0, 0, 0, f"{folder}/made"), (0, 0, 0, f"{folder}/none")], "FILE")
    made, none = agent.nixl.query_memory(asked, "SLUICE")
    assert made["size"] == "4096" and none is None


def is_partly_there(memory, content, count):
    """Whether each of `count` blocks of 1000 bytes is there or was not begun, and nothing is written any more."""
    before = memory.array.tobytes()
    time.sleep(0.01)
    return memory.array.tobytes() == before and all(
        before[i:i + 1000] in (content[i:i + 1000], b"\7" * 1000) for i in range(0, count * 1000, 1000))


@pytest.mark.parametrize("count", [1, 300, 9000])
def test_handles_are_released_while_blocks_are_in_progress(agent, opened, content, count):
    fd = opened("file", content)
    agent.register("FILE", 0, len(content), fd)
    memory = Memory(agent, 9_000_000)
    handle = agent.prepare("READ", [(memory.address + i * 1000, i * 1000, 1000) for i in range(count)], fd)
    assert agent.nixl.transfer(handle) in ("PROC", "DONE")
    handle.release()
    agent.nixl.deregister_memory(memory.registered)
    assert is_partly_there(memory, content, count)


@pytest.mark.parametrize("end", ["memory", "file", "agent"])
def test_memory_files_and_agents_end_while_blocks_are_in_progress(agent, opened, content, end):
    fd = opened("file", content)
    memory = Memory(agent, 9_000_000)
    file = agent.register("FILE", 0, len(content), fd)
    blocks = [(memory.address + i * 1000, i * 1000, 1000) for i in range(9000)]
    if end == "agent":
        agent = Agent()
        agent.register("FILE", 0, len(content), fd)
        agent.register("DRAM", memory.address, 9_000_000, 0)
    handle = agent.prepare("READ", blocks, fd)
    assert agent.nixl.transfer(handle) in ("PROC", "DONE")
    if end == "agent":
        del agent, handle
        gc.collect()
    else:
        agent.nixl.deregister_memory(memory.registered if end == "memory" else file)
        with pytest.raises(nixl._bindings.nixlNotFoundError):
            agent.wait(handle)
        with pytest.raises(nixl._bindings.nixlNotFoundError):
            agent.nixl.transfer(handle)
    assert is_partly_there(memory, content, 9000)


def test_threads_and_agents_do_not_disturb_each_other(opened, content):
    fd = opened("file", content)
    shared = Agent(**threaded())
    shared.register("FILE", 0, len(content), fd)
    memories = [Memory(shared) for _ in range(3)]
    failures = []

    def work(number):
        rng = random.Random(number)
        try:
            agent, memory = (shared, memories[number]) if number < 3 else (Agent(), None)
            if memory is None:
                memory = Memory(agent)
                agent.register("FILE", 0, len(content), fd)
            for _ in range(15):
                blocks = []
                for at, length in pieces(rng, SIZE, rng.choice([1, 50])):
                    offset = rng.randrange(len(content) - length)
                    blocks.append((memory.address + at, offset, length))
                    memory.model[at:at + length] = content[offset:offset + length]
                assert agent.run("READ", blocks, fd) == "DONE"
                assert memory.is_right()
        except BaseException as error:
            failures.append(error)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_prepared_lists(agent, opened, content):
    fd = opened("file", content)
    memory = Memory(agent, 64 * 4096)
    agent.register("FILE", 0, len(content), fd)
    to = agent.nixl.prep_xfer_dlist("NIXL_INIT_AGENT", [(memory.address + i * 4096, 4096, 0) for i in range(64)], "DRAM")
    files = agent.nixl.prep_xfer_dlist(agent.name, [(i * 4096, 4096, fd) for i in range(64)], "FILE")
    order = random.Random(1).sample(range(64), 64)
    handle = agent.nixl.make_prepped_xfer("READ", to, list(range(64)), files, order)
    assert agent.wait(handle, agent.nixl.transfer(handle)) == "DONE"
    assert memory.array.tobytes() == b"".join(content[i * 4096:i * 4096 + 4096] for i in order)


def status_of(path):
    return json.loads(subprocess.run([PROGRAM, "status", "--json", path], capture_output=True, text=True, check=True).stdout)


def start(fake, *arguments):
    """Starts fake_gpu_nixl.py, in a process of its own because CUDA can't be unloaded, and returns when it has begun."""
    program = pathlib.Path(__file__).parent / "fake_gpu_nixl.py"
    child = subprocess.Popen([sys.executable, program, fake, *arguments], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
    line = child.stdout.readline()
    assert line == "begun\n", line + child.communicate()[0]
    return child


def assert_right(child):
    output = child.communicate(timeout=120)[0]
    assert child.returncode == 0, output
    assert "all bytes are right" in output
    return output


@pytest.fixture
def fake():
    path = os.environ.get("SLUICE_FAKE_CUDA")
    if not path:
        pytest.skip("SLUICE_FAKE_CUDA, the path of the fake libcuda.so.1, is not given")
    return path


@pytest.fixture
def own_mount(tmp_path, content):
    """The folder of a mount whose daemon has the fake GPU, with a file. The mount can be ended."""
    if not PROGRAM:
        pytest.skip("SLUICE_TEST_PROGRAM is not given")
    for name in ("tier", "mnt"):
        (tmp_path / name).mkdir()
    folder = os.path.dirname(os.environ.get("SLUICE_FAKE_CUDA", ""))
    subprocess.run([PROGRAM, "mount", "--tier", f"a={tmp_path}/tier", "--state", tmp_path / "state", tmp_path / "mnt"],
                   env={**os.environ, "LD_LIBRARY_PATH": folder}, check=True)
    (tmp_path / "mnt/file").write_bytes(content)
    yield tmp_path / "mnt"
    subprocess.run(["umount", "-l", tmp_path / "mnt"], stderr=subprocess.DEVNULL, check=False)


def test_memory_of_a_gpu(folder, content, fake):
    (folder / "file").write_bytes(content)
    assert_right(start(fake, folder / "file", "0"))


@pytest.mark.parametrize("gpu", [False, True])
def test_the_daemon_is_killed_during_transfers(own_mount, gpu, fake):
    child = start(fake if gpu else "", own_mount / "file", "8")
    for _ in range(2):
        time.sleep(2)
        status = status_of(own_mount)
        assert status["gpu"]["rings"] > 0 or not gpu
        os.kill(status["pid"], signal.SIGKILL)
        (own_mount / "file").stat()  # waits for the next daemon
        assert status_of(own_mount)["pid"] != status["pid"]
    assert_right(child)


@pytest.mark.parametrize("gpu", [False, True])
def test_the_mount_ends_during_transfers(own_mount, content, gpu, fake):
    (own_mount.parent / "plain").write_bytes(content)
    child = start(fake if gpu else "", own_mount / "file", "6", own_mount.parent / "plain")
    time.sleep(2)
    subprocess.run(["umount", "-f", own_mount], check=False)
    assert "the first file has failed" in assert_right(child)


def test_a_mount_without_registered_files_can_be_unmounted(own_mount):
    agent = Agent()
    memory = Memory(agent)
    registered = agent.register("FILE", 0, 4096, 1000, f"ro:{own_mount}/file")
    assert agent.run("READ", [(memory.address, 0, 4096, 1000)]) == "DONE"
    agent.nixl.deregister_memory(registered)
    subprocess.run([PROGRAM, "umount", own_mount], check=True)
