# SPDX-License-Identifier: BSD-2-Clause
import errno
import os
import random
import select
import threading

import pytest

import sluice
from sluice._ring import Ring, SharedBuffer

RECORD = 4096


def buffers():
    memory = bytearray(64 * RECORD)
    yield sluice.register(memory), memoryview(memory)
    shared = SharedBuffer(64 * RECORD)
    yield shared, shared.memory


def test_reads(path, content):
    for buffer, memory in buffers():
        with sluice.open(path) as file, Ring(64) as ring:
            source, target = ring.add_file(file), ring.add_buffer(buffer)
            offsets = [random.randrange(len(content) - RECORD) for _ in range(64)]
            for i, offset in enumerate(offsets):
                ring.read(source, target, i * RECORD, RECORD, offset, user_data=i)
            with pytest.raises(BlockingIOError, match="full"):
                ring.read(source, target, 0, RECORD, 0)
            assert ring.submit() == 64
            done = ring.wait(64)
            assert sorted(each.user_data for each in done) == list(range(64))
            assert {each.result for each in done} == {RECORD}
            for i, offset in enumerate(offsets):
                assert memory[i * RECORD:(i + 1) * RECORD] == content[offset:offset + RECORD]


def test_the_daemon_reads_into_shared_memory(mount, content):
    (mount / "file").write_bytes(content)
    with sluice.open(mount / "file") as file, Ring() as ring:
        source, target = ring.add_file(file), ring.add_buffer(SharedBuffer(RECORD))
        ring.read(source, target, 0, RECORD, 5)
        ring.submit()
        (done,) = ring.wait()
        assert done.result == RECORD and not done.in_process


def test_writes(folder, content):
    for buffer, memory in buffers():
        memory[:] = content[:len(memory)]
        with sluice.open(folder / "new", "w+") as file, Ring(64) as ring:
            to, source = ring.add_file(file), ring.add_buffer(buffer)
            for i in range(64):
                ring.write(to, source, i * RECORD, RECORD, i * RECORD)
            ring.submit()
            assert {each.result for each in ring.wait(64)} == {RECORD}
            assert file.read() == content[:len(memory)]


def test_the_end_of_the_file_and_errors(path, content):
    with sluice.open(path) as file, Ring(4) as ring:
        source, target = ring.add_file(file), ring.add_buffer(SharedBuffer(RECORD))
        ring.read(source, target, 0, RECORD, len(content) - 10, user_data=1)
        ring.read(source, target, 0, RECORD, len(content), user_data=2)
        ring.write(source, target, 0, RECORD, 0, user_data=3)
        ring.submit()
        assert {each.user_data: each.result for each in ring.wait(3)} == {1: 10, 2: 0, 3: -errno.EBADF}
        with pytest.raises(sluice.Error, match="no such file"):
            ring.read(7, target, 0, 1, 0)
        ring.drop_file(source)
        with pytest.raises(sluice.Error, match="no such file"):
            ring.read(source, target, 0, 1, 0)


def test_waiting(path):
    with sluice.open(path) as file, Ring(4) as ring:
        assert ring.wait(0) == []
        with pytest.raises(TimeoutError):
            ring.wait(timeout=0.01)
        source, target = ring.add_file(file), ring.add_buffer(SharedBuffer(RECORD))
        ring.read(source, target, 0, RECORD, 0)
        event = ring.eventfd()
        ring.submit()
        assert select.select([event], [], [], 30)[0]
        assert len(ring.wait(2, timeout=0.01)) == 1


def test_the_ring_keeps_what_it_uses(path, content):
    with Ring(4) as ring:
        with sluice.open(path) as file, SharedBuffer(RECORD) as buffer:
            memory = buffer.memory
            source, target = ring.add_file(file), ring.add_buffer(buffer)
        ring.read(source, target, 0, RECORD, 0)
        ring.submit()
        ring.wait()
    assert memory == content[:RECORD]
    with pytest.raises(ValueError, match="the ring is closed"):
        ring.submit()


def test_descriptors(path, content):
    descriptor = os.open(path, os.O_RDONLY)
    with sluice.File.of_descriptor(descriptor) as file:
        assert file.path == str(path) and file.read() == content
    os.close(descriptor)
    with pytest.raises(sluice.Error, match="not open"):
        sluice.File.of_descriptor(descriptor)


def test_threads_share_a_ring(path, content):
    with sluice.open(path) as file, Ring(256) as ring:
        shared = SharedBuffer(8 * RECORD)
        source, target = ring.add_file(file), ring.add_buffer(shared)

        def read(place):
            for i in range(20):
                ring.read(source, target, place * RECORD, RECORD, (place * 20 + i) * RECORD)
                ring.submit()

        threads = [threading.Thread(target=read, args=(place,)) for place in range(8)]
        for thread in threads:
            thread.start()
        assert len(ring.wait(160, 160, timeout=60)) == 160
        for thread in threads:
            thread.join()
