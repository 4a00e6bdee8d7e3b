# SPDX-License-Identifier: BSD-2-Clause
import asyncio
import concurrent.futures
import datetime
import gc
import os
import signal
import subprocess
import sys
import threading
from multiprocessing.shared_memory import SharedMemory

import pytest

import sluice
from sluice.integrations import hf3fs

BLOCK = 1 << 16


@pytest.fixture
def shm():
    memory = SharedMemory(size=16 * BLOCK, create=True)
    yield memory
    gc.collect()  # a traceback may hold a slice
    memory.close()
    memory.unlink()


def test_reading_and_writing(folder, shm):
    point = hf3fs.extract_mount_point(folder) or str(folder)
    iov = hf3fs.make_iovec(shm, point)
    reads, writes = hf3fs.make_ioring(point, 16), hf3fs.make_ioring(point, 16, for_read=False, timeout=1, numa=-1)
    fd = os.open(folder / "file", os.O_RDWR | os.O_CREAT)
    hf3fs.register_fd(fd)
    content = os.urandom(16 * BLOCK)
    shm.buf[:] = content
    for i in range(16):
        writes.prepare(iov[i * BLOCK:(i + 1) * BLOCK], False, fd, i * BLOCK, userdata=i)
    done = writes.submit().wait(min_results=16)
    assert [each.result for each in done] == [BLOCK] * 16
    assert sorted((each.userdata, each.base_off) for each in done) == [(i, i * BLOCK) for i in range(16)]
    assert (folder / "file").read_bytes() == content
    shm.buf[:] = bytes(len(content))
    for i in range(16):
        reads.prepare(iov[(15 - i) * BLOCK:][:BLOCK], True, fd, i * BLOCK)
    assert len(reads.submit().wait(max_results=99, min_results=16, timeout=datetime.timedelta(seconds=60))) == 16
    for i in range(16):
        assert shm.buf[(15 - i) * BLOCK:][:BLOCK] == content[i * BLOCK:][:BLOCK]
    reads.prepare(iov, True, fd, 15 * BLOCK)
    assert reads.submit().wait(min_results=1)[0].result == BLOCK  # the end of the file
    hf3fs.deregister_fd(fd)
    with pytest.raises(OSError, match="not registered"):
        reads.prepare(iov, True, fd, 0)
    os.close(fd)


def test_one_thread_prepares_while_another_waits(folder, shm):
    requests, flight = 3000, 3
    content = b"".join(i.to_bytes(4, "little") * 128 for i in range(requests))
    (folder / "file").write_bytes(content)
    iov, ring = hf3fs.make_iovec(shm, str(folder)), hf3fs.make_ioring(str(folder), flight + 1)
    fd = os.open(folder / "file", os.O_RDONLY)
    hf3fs.register_fd(fd)
    room, seen = threading.Semaphore(flight), []

    def wait():
        while len(seen) < requests:
            for each in ring.wait(min_results=1, timeout=60):
                seen.append((each.userdata, each.result, bytes(shm.buf[each.base_off:each.base_off + 512])))
                room.release()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(wait)
        for i in range(requests):
            while not room.acquire(timeout=1):
                assert not waiter.done(), waiter.result()
            ring.prepare(iov[i % 16 * 512:][:512], True, fd, i * 512, userdata=i).submit()
        waiter.result()
    assert sorted(seen) == [(i, 512, content[i * 512:(i + 1) * 512]) for i in range(requests)]
    hf3fs.deregister_fd(fd)
    os.close(fd)


def test_a_wait_that_a_signal_ends_loses_nothing(folder, shm):
    (folder / "file").write_bytes(bytes(4 * 512))
    iov, ring = hf3fs.make_iovec(shm, str(folder)), hf3fs.make_ioring(str(folder), 4)
    fd = os.open(folder / "file", os.O_RDONLY)
    hf3fs.register_fd(fd)

    class Alarm(Exception):
        pass

    def ring_it(*_):
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring_it)
    try:
        for i in range(2):
            ring.prepare(iov[i * 512:][:512], True, fd, 0, userdata=i)
        ring.submit()
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(Alarm):
            ring.wait(min_results=3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    ring.prepare(iov[1024:][:512], True, fd, 0, userdata=2).submit()
    done = ring.wait(min_results=1)  # one of those that the wait before had, if it had any
    assert len(done) == 1
    assert sorted(each.userdata for each in done + ring.wait(min_results=2)) == [0, 1, 2] and ring.wait() == []
    hf3fs.deregister_fd(fd)
    os.close(fd)


def test_mistakes(folder, shm):
    iov, ring = hf3fs.make_iovec(shm, str(folder)), hf3fs.make_ioring(str(folder), 2)
    fd = os.open(folder / "file", os.O_WRONLY | os.O_CREAT)
    hf3fs.register_fd(fd)
    with pytest.raises(OSError, match="already registered"):
        hf3fs.register_fd(fd)
    with pytest.raises(PermissionError):
        ring.prepare(iov, True, fd, 0)
    with pytest.raises(OSError, match="does not fit"):
        ring.prepare(iov, False, fd, 0)  # a ring for reading
    with pytest.raises(ValueError, match="step 1"):
        iov[::2]
    with pytest.raises(BufferError):
        shm.close()
    with pytest.raises(ValueError, match="not on a Sluice mount"):
        hf3fs.make_ioring(None, 2)
    with pytest.raises(OSError):
        hf3fs.register_fd(999)
    assert ring.wait(timeout=0) == [] and ring.submit().wait() == []
    assert ring.wait(min_results=1, timeout=0.3) == []
    hf3fs.deregister_fd(fd)
    hf3fs.deregister_fd(fd)
    os.close(fd)


def test_memory_outlives_requests_in_progress(folder, shm):
    ring = hf3fs.make_ioring(str(folder), 16)
    (folder / "file").write_bytes(os.urandom(16 * BLOCK))
    fd = os.open(folder / "file", os.O_RDONLY)
    hf3fs.register_fd(fd)
    for _ in range(100):
        iov = hf3fs.make_iovec(shm, str(folder))
        for i in range(16):
            ring.prepare(iov[i * BLOCK:(i + 1) * BLOCK], True, fd, i * BLOCK)
        ring.submit()
        del iov
        assert all(each.result == BLOCK for each in ring.wait(min_results=16))
    assert shm.buf == (folder / "file").read_bytes()
    ring.prepare(hf3fs.make_iovec(shm, str(folder)), True, fd, 0).submit()
    del ring
    hf3fs.deregister_fd(fd)
    os.close(fd)


def test_mount_points(mount, tmp_path):
    point = hf3fs.extract_mount_point(mount)
    assert os.path.ismount(point) and str(mount).startswith(point)
    assert hf3fs.extract_mount_point(point) == point
    assert hf3fs.extract_mount_point(tmp_path) is None


PROGRAM = """
import sluice.integrations.hf3fs as ours
try:
    import hf3fs_fuse.io
except ImportError:
    print("none")
ours.install()
ours.install()
from hf3fs_fuse.io import make_iovec
print(make_iovec is ours.make_iovec)
"""


def test_a_real_3fs_comes_first(tmp_path):
    def run():
        path = os.pathsep.join([os.path.dirname(os.path.dirname(sluice.__file__)), str(tmp_path)])
        return subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, "PYTHONPATH": path}, check=True,
                              capture_output=True, text=True).stdout.split()

    assert run() == ["none", "True"]
    (tmp_path / "hf3fs_fuse").mkdir()
    (tmp_path / "hf3fs_fuse" / "__init__.py").touch()
    (tmp_path / "hf3fs_fuse" / "io.py").write_text("make_iovec = None")
    assert run() == ["False"]


def test_sglang(mount):
    torch = pytest.importorskip("torch")
    hf3fs.install()
    theirs = pytest.importorskip("sglang.srt.mem_cache.storage.hf3fs.hf3fs_usrbio_client")
    client = theirs.Hf3fsUsrBioClient(str(mount / "pages"), 64 * BLOCK, BLOCK, 16, client_timeout=60)
    pages = [torch.randint(256, (BLOCK,), dtype=torch.uint8) for _ in range(16)]
    places = [(5 * i) % 64 * BLOCK for i in range(16)]
    assert client.batch_write(places, pages) == [BLOCK] * 16
    client.flush()
    read = [torch.zeros(BLOCK, dtype=torch.uint8) for _ in range(16)]
    assert client.batch_read(places, read) == [BLOCK] * 16
    assert all(torch.equal(*pair) for pair in zip(read, pages, strict=True))
    client.close()


def test_lmcache(mount):
    pytest.importorskip("torch")
    hf3fs.install()
    theirs = pytest.importorskip("lmcache.v1.storage_backend.connector.hf3fs_connector")
    assert theirs.HF3FS_AVAILABLE
    point = theirs.extract_mount_point(str(mount))
    config = theirs.Hf3fsClientConfig(point, iov_size=4 * BLOCK)

    def use():
        client = theirs.Hf3fsClient.get_instance(config)
        content = os.urandom(10 * BLOCK + 7)
        with theirs.Hf3fsFile(mount / "object", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, client) as file:
            assert file.write(content, len(content)) == len(content)
        back = bytearray(len(content))
        with theirs.Hf3fsFile(mount / "object", os.O_RDONLY, client) as file:
            assert file.read(memoryview(back), len(back)) == len(back)
        assert back == content
        client.close()

    asyncio.run(asyncio.to_thread(use))
