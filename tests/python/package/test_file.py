# SPDX-License-Identifier: BSD-2-Clause
import errno
import gc
import os
import signal
import threading

import pytest

import sluice


def test_reads_the_whole_file_and_returns_the_route(path, content):
    target = bytearray(len(content))
    with sluice.open(path) as file:
        result = file.read_into(target)
    assert target == content
    assert result == sluice.Result(len(content), "host", "the buffer is in host memory", True)


def test_offsets_need_no_alignment(path, content):
    target = bytearray(2_000_000)
    with sluice.open(path) as file:
        assert file.read_into(target, 777, 1_000_003, target_offset=13).bytes == 1_000_003
    assert target == bytes(13) + content[777:777 + 1_000_003] + bytes(2_000_000 - 13 - 1_000_003)


def test_a_read_is_short_only_at_the_end_of_the_file(path, content):
    target = bytearray(100)
    with sluice.open(path) as file:
        assert file.read_into(target, len(content) - 30).bytes == 30
        assert file.read_into(target, len(content) + 30).bytes == 0
    assert target[:30] == content[-30:]


def test_read_returns_bytes(path, content):
    with sluice.open(path) as file:
        assert file.size == len(content)
        assert file.read() == content
        assert file.read(5, 10) == content[5:15]
        assert file.read(len(content) - 1, 2**62) == content[-1:]
        assert file.read(2**62) == b""
        assert file.read(0, 0) == b""


def test_readv_reads_many_ranges(path, content):
    segments = [(i * 7919, i * 100, 99) for i in range(1000)]
    target = bytearray(100_000)
    with sluice.open(path) as file:
        assert file.readv(target, segments).bytes == 99_000
        assert file.readv(target, []).bytes == 0
    for source, to, length in segments:
        assert target[to:to + length] == content[source:source + length]


def test_readv_continues_after_a_range_at_the_end_of_the_file(path, content):
    target = bytearray(40)
    with sluice.open(path) as file:
        assert file.readv(target, [(len(content) - 5, 0, 20), (0, 20, 20)]).bytes == 25
    assert target == content[-5:] + bytes(15) + content[:20]


def test_written_bytes_are_in_the_file(folder, content):
    path = folder / "new"
    with sluice.open(path, "w") as file:
        assert file.write_from(content).bytes == len(content)
        assert file.write_from(memoryview(b"abc"), 10, 2, source_offset=1).bytes == 2
    assert path.read_bytes() == content[:10] + b"bc" + content[12:]


def test_short_write_is_continued_until_the_error(folder):
    written = bytearray()

    def halves(file, buffer, start, length, offset, result):
        """Like the daemon, which returns the bytes before an error, and the error in the next call."""
        done = length if length < 3 else length // 2
        written.extend(range(start, start + done))
        assert offset == 7 + start
        return done

    def none(*_):
        return 0

    with sluice.open(folder / "new", "w") as file:
        assert file._transfer(halves, bytearray(100), 7, None, 0, writable=False).bytes == 100
        assert written == bytes(range(100))
        with pytest.raises(sluice.Error, match="no bytes of 100"):
            file._transfer(none, bytearray(100), 0, None, 0, writable=False)


def test_modes(folder):
    path = folder / "new"
    with pytest.raises(sluice.Error) as error:
        sluice.open(path)
    assert error.value.errno == errno.ENOENT
    assert str(path) in str(error.value)
    sluice.open(path, "xb").close()
    with pytest.raises(sluice.Error) as error:
        sluice.open(path, "x")
    assert error.value.errno == errno.EEXIST
    with pytest.raises(ValueError, match="to append"):
        sluice.open(path, "a")
    with sluice.open(path, "r") as file, pytest.raises(sluice.Error) as error:
        file.write_from(b"abc")
    assert error.value.errno == errno.EBADF
    assert "open for writing" in str(error.value)


def test_a_directory_is_refused(folder):
    with pytest.raises(OSError) as error:
        sluice.open(folder)
    assert error.value.errno == errno.EISDIR


@pytest.mark.parametrize("arguments", [{"offset": -1}, {"length": -1}, {"offset": 2**63}, {"target_offset": -1},
                                       {"length": 101}, {"target_offset": 101}, {"target_offset": 50, "length": 51}])
def test_wrong_numbers_are_refused(path, arguments):
    with sluice.open(path) as file, pytest.raises(ValueError):
        file.read_into(bytearray(100), **arguments)


def test_misuse_says_what_to_do(path):
    with sluice.open(path) as file:
        with pytest.raises(TypeError, match="whole number"):
            file.read_into(bytearray(10), 1.5)
        with pytest.raises(ValueError, match="exceed its 10 bytes"):
            file.readv(bytearray(10), [(0, 5, 6)])
        with pytest.raises(ValueError, match="file_offset, target_offset, length"):
            file.readv(bytearray(10), [(0, 5)])


def test_a_closed_file_is_refused(path):
    file = sluice.open(path)
    file.close()
    file.close()
    assert file.closed
    for use in (lambda: file.size, lambda: file.read(), lambda: file.prefetch(), lambda: file.read_into(bytearray(1))):
        with pytest.raises(ValueError, match="is closed"):
            use()


def test_no_descriptor_stays_open(path):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        sluice.open(path).read(0, 10)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_registered_buffer_serves_many_requests(path, content):
    target = bytearray(1000)
    with sluice.open(path) as file, sluice.register(target) as buffer:
        assert len(buffer) == 1000
        for offset in range(0, 50_000, 5000):
            file.read_into(buffer, offset)
            assert target == content[offset:offset + 1000]
    with sluice.open(path) as file, pytest.raises(ValueError, match="the buffer is closed"):
        file.read_into(buffer)
    target.append(1)  # no longer locked


def test_a_bytearray_can_be_resized_after_a_read(path):
    target = bytearray(10)
    with sluice.open(path) as file:
        file.read_into(target)
        target.append(1)
        with sluice.register(target), pytest.raises(BufferError):
            target.append(1)


def test_empty_memory(path):
    with sluice.open(path) as file:
        assert file.read_into(bytearray()).bytes == 0
        assert file.readv(bytearray(), [(0, 0, 0)]).bytes == 0
        with sluice.register(bytearray()) as buffer:
            assert file.read_into(buffer).bytes == 0


def test_threads_share_a_file(path, content):
    failures = []
    with sluice.open(path) as file:
        def read(start):
            target = bytearray(1_000_000)
            for i in range(10):
                offset = start + i * 1000
                file.read_into(target, offset)
                if target != content[offset:offset + len(target)]:
                    failures.append(offset)
        threads = [threading.Thread(target=read, args=(i * 1_000_000,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_prefetch(path):
    with sluice.open(path) as file:
        file.prefetch()
        file.prefetch(1000, 5000)
        file.prefetch(0, 0)
    sluice.prefetch(path, 10, 20)


def test_promoting_needs_a_mount(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with sluice.open(path) as file, pytest.raises(sluice.Error) as error:
        file.prefetch(promote=True)
    assert error.value.errno == errno.EOPNOTSUPP


def test_route_predicts_a_read(path):
    with sluice.open(path) as file:
        route = file.route(bytearray(10))
    assert (route.route, route.why) == ("host", "the buffer is in host memory")
    assert "host" in route.reason


def test_child_opens_files_again_after_fork(path, content):
    with sluice.open(path) as file:
        assert file.read() == content
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(30)
                try:
                    file.read()
                except ValueError as error:
                    assert "after a fork" in str(error)
                    with sluice.open(path) as own:
                        code = 0 if own.read() == content else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert file.read() == content
