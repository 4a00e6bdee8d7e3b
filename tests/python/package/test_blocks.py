# SPDX-License-Identifier: BSD-2-Clause
import concurrent.futures
import contextlib
import errno
import fcntl
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

import sluice
from sluice.integrations import _blocks
from sluice.integrations._blocks import Block, BlockStore, Piece, piece_of

LENGTH = 70_001
KEYS = 40


def key_of(number):
    return b"model/../\0" + number.to_bytes(4, "big")


def content_of(number, length=LENGTH):
    return random.Random(number).randbytes(length)


def blocks_of(numbers, length=LENGTH, fill=False):
    """Blocks of two pieces each, in one memory."""
    memory = bytearray(b"".join(content_of(number, length) for number in numbers) if fill else length * len(numbers))
    buffer = sluice.register(memory)
    half = length // 2
    return memory, [Block(key_of(number), [Piece(buffer, i * length, half), Piece(buffer, i * length + half, length - half)])
                    for i, number in enumerate(numbers)]


def put(store, numbers):
    return list(map(bool, store.store(blocks_of(numbers, fill=True)[1]).result()))


def get(store, numbers):
    """Returns which blocks were there, after comparing their bytes."""
    memory, blocks = blocks_of(numbers)
    loaded = store.load(blocks).result()
    for i, number in enumerate(numbers):
        assert not loaded[i] or memory[i * LENGTH:(i + 1) * LENGTH] == content_of(number), number
    return list(map(bool, loaded))


@pytest.fixture
def store(folder):
    store = BlockStore(folder / "kv", threads=3)
    yield store
    store.close()
    assert list((folder / "kv" / "tmp").iterdir()) == []


def test_storing_and_loading(store):
    numbers = list(range(KEYS))
    assert get(store, numbers) == [False] * KEYS
    assert store.store(blocks_of(numbers[:20], fill=True)[1]).result() == [_blocks.WRITTEN] * 20
    assert store.store(blocks_of(numbers[:20], fill=True)[1]).result() == [_blocks.THERE] * 20
    assert put(store, numbers) == [True] * KEYS
    random.shuffle(numbers)
    assert get(store, numbers) == [True] * KEYS
    assert store.contains(key_of(1), LENGTH)
    assert not store.contains(key_of(1), LENGTH - 1) and not store.contains(key_of(KEYS), LENGTH)
    assert store.delete(key_of(1)) == LENGTH and store.delete(key_of(1)) == 0
    assert get(store, [0, 1, 2]) == [True, False, True]
    assert store.load([]).result() == store.store([]).result() == []


def test_blocks_outlive_the_store(folder):
    for _ in range(2):
        store = BlockStore(folder / "kv")
        put(store, [7])
        store.close()
    store = BlockStore(folder / "kv")
    assert get(store, [7, 8]) == [True, False]
    store.close()


def test_blocks_of_many_pieces_and_files(store):
    memory = bytearray(random.Random(1).randbytes(40 * 300 * 16))
    buffer = sluice.register(memory)
    blocks = [Block(key_of(i), [Piece(buffer, (i * 300 + j) * 16, 16) for j in range(300)]) for i in range(40)]
    assert all(store.store(blocks).result())
    other = bytearray(len(memory))
    buffer = sluice.register(other)
    assert all(store.load([Block(block.key, [Piece(buffer, *piece[1:]) for piece in block.pieces]) for block in blocks]).result())
    assert other == memory


def damage(path, how):
    size = path.stat().st_size
    if how == "short":
        os.truncate(path, size - 1)
    elif how == "long":
        os.truncate(path, size + 1)
    elif how == "empty":
        os.truncate(path, 0)
    elif how == "zeros":  # as after a power failure: the size is right, the bytes were never written
        os.truncate(path, 0)
        os.truncate(path, size)
    else:
        with open(path, "r+b") as file:
            at = {"first": 0, "middle": size // 2, "last byte": LENGTH - 1, "trailer": LENGTH, "key": size - 1}[how]
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("how", ["short", "long", "empty", "zeros", "first", "middle", "last byte", "trailer", "key"])
def test_a_damaged_block_is_a_miss_and_can_be_stored_again(store, how):
    put(store, [1, 2, 3])
    damage(store._path(key_of(2)), how)
    assert get(store, [1, 2, 3]) == [True, False, True]
    assert put(store, [2]) == [True]
    assert get(store, [1, 2, 3]) == [True, True, True]


def test_the_block_of_another_key_is_a_miss(store):
    put(store, [1, 2])
    store._path(key_of(1)).rename(store._path(key_of(2)))
    assert get(store, [1, 2]) == [False, False]


def test_a_writer_that_was_killed_leaves_nothing(folder):
    program = f"""if True:
        import os, signal, sluice
        from sluice.integrations._blocks import Block, BlockStore, piece_of
        BlockStore._publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        BlockStore({str(folder / "kv")!r}).store([Block(b"key", [piece_of(bytearray({LENGTH}))])]).result()"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    assert len(list((folder / "kv" / "tmp").iterdir())) == 1
    other = folder / "kv" / "tmp" / "somebody's file"
    other.touch()
    store = BlockStore(folder / "kv")  # at once
    assert not store.contains(b"key")
    store.close()
    assert list((folder / "kv" / "tmp").iterdir()) == [other]


def test_the_start_of_another_server_disturbs_no_writer(store, monkeypatch):
    publish = store._publish

    def publish_late(block, temporary, *arguments):
        os.utime(temporary, (0, 0))
        BlockStore(store.directory).close()
        publish(block, temporary, *arguments)

    monkeypatch.setattr(store, "_publish", publish_late)
    assert put(store, [1, 2]) == get(store, [1, 2]) == [True, True]


def test_a_server_that_starts_while_a_file_is_made_disturbs_no_writer(store, monkeypatch):
    lock, locked = fcntl.flock, []

    def lock_late(*arguments):
        if not locked:
            locked.append(arguments)
            BlockStore(store.directory).close()
            assert list(store._incoming.iterdir()) == []
        lock(*arguments)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    assert put(store, [1]) == get(store, [1]) == [True]
    assert locked


def test_without_locks_old_files_are_taken_for_abandoned(folder, monkeypatch):
    def no_lock(*_):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", no_lock)
    store = BlockStore(folder / "kv")
    old, young = [store.directory / "tmp" / (digits * 16) for digits in ("ab", "cd")]
    for path in old, young:
        path.touch()
    os.utime(old, (0, 0))
    assert put(store, [1]) == [True]
    store.close()
    BlockStore(folder / "kv").close()
    assert list((folder / "kv" / "tmp").iterdir()) == [young]


def test_a_child_after_fork_is_told_to_make_its_own_store(store):
    put(store, [1])

    def use_in_child():
        _, blocks = blocks_of([1, 2])
        for use in (lambda: store.load(blocks), lambda: store.store(blocks), lambda: store.contains(key_of(1)),
                    lambda: store.delete(key_of(1))):
            with pytest.raises(ValueError, match="create it again after a fork"):
                use()
        store.close()
        own = BlockStore(store.directory)
        assert put(own, [2]) == get(own, [1]) == [True]
        own.close()

    child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 1
        with contextlib.suppress(BaseException):
            use_in_child()
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert get(store, [1, 2]) == [True, True]


def test_all_threads_start_with_the_store(folder, monkeypatch):
    store, start, left = BlockStore(folder / "kv", threads=3), threading.Thread.start, [4]

    def fail(thread):
        if left[0] == 0:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="can't start 6 threads .*: can't start new thread"):
        BlockStore(folder / "kv", threads=3)
    assert left == [0] and threading.active_count() == before
    assert put(store, list(range(KEYS))) == get(store, list(range(KEYS))) == [True] * KEYS
    store.close()


def test_an_idle_store_keeps_no_block_open(store):
    put(store, list(range(KEYS)))
    get(store, list(range(KEYS)))
    links = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    assert [link for link in links if link.startswith(str(store.directory))] == []


def test_what_can_not_be_written_fails_softly(folder, caplog):
    store = BlockStore(folder / "kv")
    put(store, [1])
    (store.directory / "tmp").rmdir()
    (store.directory / "tmp").touch()  # stands for every error of open()
    assert put(store, [1, 2, 3]) == [True, False, False]
    assert get(store, [1, 2]) == [True, False]
    assert len([record for record in caplog.records if "computed again" in record.message]) == 1
    store.close()


@pytest.mark.parametrize("what", ["content", "directory"])
def test_blocks_are_stored_after_the_cache_was_cleared(store, caplog, what):
    put(store, [1, 2])
    for path in store.directory.iterdir() if what == "content" else [store.directory]:
        shutil.rmtree(path)
    assert get(store, [1, 2]) == [False, False]
    assert put(store, [1, 2, 3]) == get(store, [1, 2, 3]) == [True] * 3
    assert not caplog.records


def test_a_cleared_cache_has_its_budget_again(mount):
    store = BlockStore(mount / "kv", budget="1MiB")
    shutil.rmtree(mount / "kv")
    assert put(store, [1]) == [True]
    assert os.getxattr(mount / "kv", "user.sluice.budget") == b"1048576"
    store.close()


def test_a_directory_that_is_made_again_is_as_private_as_before(folder):
    (folder / "kv").mkdir(0o700)
    store = BlockStore(folder / "kv")
    for mode in 0o700, 0o2750:
        store.close()
        (folder / "kv").chmod(mode)
        store = BlockStore(folder / "kv")
        shutil.rmtree(folder / "kv")
        assert put(store, [1]) == [True]
        assert (folder / "kv").stat().st_mode & 0o7777 == mode
    store.close()


@pytest.mark.parametrize("below", ["kv", "."])
def test_nothing_is_stored_below_a_mount_that_has_ended(tmp_path, below):
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path], check=False).returncode:
        pytest.skip("can't mount a tmpfs")
    try:
        store = BlockStore(tmp_path / below)
        assert put(store, [1]) == [True]
    finally:
        subprocess.run(["umount", tmp_path], check=True)
    assert put(store, [2]) == [False]
    assert list(tmp_path.iterdir()) == []
    store.close()


def test_a_file_that_can_not_be_read_does_not_affect_others(store, caplog):
    put(store, [1, 2, 3])
    store._path(key_of(2)).unlink()
    store._path(key_of(2)).mkdir()
    store._path(key_of(3)).unlink()
    store._path(key_of(3)).symlink_to(store._path(key_of(3)))  # ELOOP
    assert get(store, [1, 2, 3]) == [True, False, False]
    assert put(store, [2, 3, 4]) == [False, True, True]
    assert get(store, [1, 2, 3, 4]) == [True, False, True, True]


def test_a_directory_without_a_mount_has_no_budget(tmp_path):
    with pytest.raises(OSError, match="not on a Sluice mount"):
        BlockStore(tmp_path, budget="1GiB")


def test_a_full_budget_fails_softly(mount):
    with pytest.raises(OSError, match="a size such as"):
        BlockStore(mount / "kv", budget="much")
    store = BlockStore(mount / "kv", budget="1MiB")
    assert os.getxattr(mount / "kv", "user.sluice.budget") == b"1048576"
    stored, deadline = [], time.monotonic() + 120
    while all(stored) and time.monotonic() < deadline:  # writers are not held until the tree is counted
        stored += put(store, list(range(len(stored), len(stored) + 100)))
    # Nothing may be deleted in the first minute.
    assert stored[0] and not all(stored)
    assert get(store, list(range(len(stored)))) == stored
    store.close()
    assert list((mount / "kv" / "tmp").iterdir()) == []


def test_a_full_disk_fails_softly(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False).returncode:
        pytest.skip("can't mount a tmpfs")
    try:
        store = BlockStore(disk / "kv")
        stored = put(store, list(range(60)))
        assert any(stored) and not all(stored)
        assert get(store, list(range(60))) == stored
        store.close()
        assert list((disk / "kv" / "tmp").iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_an_error_of_the_ring_is_tried_again(store, monkeypatch):
    put(store, [1, 2])
    left = [1]

    class Failing(_blocks.Ring):
        def wait(self, *arguments):
            if left[0] > 0:
                left[0] -= 1
                raise OSError(errno.ESTALE, "the daemon has ended")
            return super().wait(*arguments)

    monkeypatch.setattr(_blocks, "Ring", Failing)
    other = BlockStore(store.directory, threads=1)
    assert get(other, [1, 2, 3]) == [True, True, False]
    left[0] = 1
    assert put(other, [3]) == [True]
    left[0] = 2
    assert get(other, [1, 2, 3]) == [False] * 3
    left[0] = 2
    assert put(other, [4]) == [False]
    assert get(other, [1, 2, 3]) == [True] * 3
    other.close()


@pytest.mark.parametrize("seed", range(4))
def test_random_operations_agree_with_a_model(store, seed):
    rng = random.Random(seed)
    there = set()
    for _ in range(60):
        numbers = rng.sample(range(KEYS), rng.randint(1, 20))
        match rng.randrange(5):
            case 0 | 1:
                assert put(store, numbers) == [True] * len(numbers)
                there |= set(numbers)
            case 2:
                assert get(store, numbers) == [number in there for number in numbers]
            case 3:
                for number in numbers[:5]:  # as a budget does
                    store._path(key_of(number)).unlink(missing_ok=True)
                    there.discard(number)
            case 4:
                assert [store.contains(key_of(number), LENGTH) for number in numbers] == [n in there for n in numbers]


@pytest.mark.parametrize("seed", range(2))
def test_threads_and_processes_at_once(folder, seed):
    """Two stores of one directory stand for two processes: they share nothing but the files."""
    stores = [BlockStore(folder / "kv", threads=2) for _ in range(2)]
    damaging = threading.Lock()  # the steps of two kinds of damage to one file would disturb each other

    def work(number):
        rng = random.Random(f"{seed} {number}")
        hits = 0
        for _ in range(40):
            store, numbers = rng.choice(stores), rng.sample(range(KEYS), rng.randint(1, 8))
            match rng.randrange(8):
                case 0 | 1 | 2:
                    assert put(store, numbers) == [True] * len(numbers)
                case 3 | 4 | 5:
                    hits += sum(get(store, numbers))
                case 6:
                    store._path(key_of(numbers[0])).unlink(missing_ok=True)
                case 7:
                    with damaging, contextlib.suppress(FileNotFoundError):
                        damage(store._path(key_of(numbers[0])), rng.choice(["short", "zeros", "middle"]))
                    store.delete(key_of(numbers[0])) if rng.random() < 0.5 else None
        return hits

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(work, range(6))) > 0
    get(stores[0], list(range(KEYS)))  # finds what is still damaged
    assert put(stores[0], list(range(KEYS))) == get(stores[1], list(range(KEYS))) == [True] * KEYS
    for store in stores:
        store.close()
    assert list((folder / "kv" / "tmp").iterdir()) == []


@pytest.fixture
def own_mount(tmp_path):
    """A mount of its own: (folder, program)."""
    program = os.environ.get("SLUICE_TEST_PROGRAM")
    if not program:
        pytest.skip("SLUICE_TEST_PROGRAM is not given")
    folder = pathlib.Path(tmp_path)
    for name in ("a", "mnt"):
        (folder / name).mkdir()
    subprocess.run([program, "mount", "--tier", f"a={folder}/a", "--state", folder / "state", folder / "mnt"], check=True)
    yield folder, program
    subprocess.run([program, "umount", folder / "mnt"], check=False)
    subprocess.run(["umount", "-l", folder / "mnt"], check=False, stderr=subprocess.DEVNULL)


def daemon_of(program, point):
    """None while there is none."""
    said = subprocess.run([program, "status", "--json", point], check=False, capture_output=True)
    return json.loads(said.stdout)["pid"] if said.returncode == 0 else None


def test_an_idle_store_does_not_keep_a_mount_busy(own_mount):
    folder, program = own_mount
    store = BlockStore(folder / "mnt" / "kv")
    assert put(store, list(range(KEYS))) == get(store, list(range(KEYS))) == [True] * KEYS
    subprocess.run([program, "umount", folder / "mnt"], check=True)
    assert put(store, [1]) == get(store, [1]) == [False]
    assert list((folder / "mnt").iterdir()) == []
    store.close()


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_another_daemon_takes_over(own_mount, how):
    folder, program = own_mount
    point = folder / "mnt"
    if [int(number) for number in os.uname().release.split(".")[:2]] < [6, 9]:
        pytest.skip("a mount survives its daemon from Linux 6.9 on")
    store = BlockStore(point / "kv", threads=2)
    put(store, list(range(KEYS)))
    stop = threading.Event()

    def work(number):
        rng, rounds = random.Random(number), 0
        while not stop.is_set():
            numbers = rng.sample(range(KEYS), 8)
            assert all(get(store, numbers))
            store.delete(key_of(1000 + number))
            assert put(store, [1000 + number]) == [True]
            rounds += 1
        return rounds

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(work, number) for number in range(3)]
        for _ in range(3):
            before = daemon_of(program, point)
            if how == "restart":
                subprocess.run([program, "restart", point], check=True)
            else:
                os.kill(before, signal.SIGKILL)
            while daemon_of(program, point) in (None, before):
                time.sleep(0.05)
        stop.set()
        assert all(worker.result() > 0 for worker in workers)
    assert all(get(store, list(range(KEYS))))
    store.close()
