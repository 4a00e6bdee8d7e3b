# SPDX-License-Identifier: BSD-2-Clause
import concurrent.futures
import contextlib
import ctypes
import errno
import json
import os
import pathlib
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import sluice
from sluice import _aio, _replace


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(_replace, "_BLOCK", 64 << 10)


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    made = {f"layers.{i}.{dtype}": rng.integers(0, 100, (i * 100, 37)).astype(dtype)
            for i in range(4) for dtype in ("float32", "float16", "int64", "uint8", "bool", "complex64", "int8")}
    return made | {"scalar": np.array(5.0), "large": rng.integers(0, 255, 1_000_003).astype("uint8")}


def same(loaded, saved):
    return loaded.keys() == saved.keys() and all(np.array_equal(loaded[name], saved[name]) for name in saved)


def names(folder):
    return sorted(os.listdir(folder))


def test_arrays(folder):
    path = folder / "model.safetensors"
    for seed in range(2):  # the second time it replaces the first
        saved = arrays(seed)
        sluice.save_safetensors(saved, path, {"format": "np", "é": "\"\n"})
        assert same(sluice.load_safetensors(path, framework="np"), saved)
    assert names(folder) == ["model.safetensors"]
    text = path.read_bytes()
    header = json.loads(text[8:8 + int.from_bytes(text[:8], "little")])
    assert header["__metadata__"] == {"format": "np", "é": "\"\n"}


def test_nothing(folder):
    sluice.save_safetensors({}, folder / "none")
    assert (folder / "none").read_bytes() == b"\x08" + bytes(7) + b"{}      "
    assert sluice.load_safetensors(folder / "none", framework="np") == {}


def test_arrays_in_another_order(folder):
    square = np.arange(100_000, dtype=">i4").reshape(100, 1000)
    sluice.save_safetensors({"a": square.T, "b": square[::2, 1:]}, folder / "f")
    assert same(sluice.load_safetensors(folder / "f", framework="np"), {"a": square.T, "b": square[::2, 1:]})


def test_the_same_bytes_as_the_package(folder):
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("safetensors.torch")
    types = [dtype for name in sluice._safetensors._DTYPES.values() if (dtype := getattr(torch, name, None))]
    words = random.Random(3).sample(["a", "Z", "é.x", "q\"u\\o\n", "ü", "~", "b.0", "\x7f\x01", "\u2028", "\U0001f600"] +
                                    [f"layer.{i}" for i in range(20)], len(types))
    saved = {f"{word}{i}": (torch.rand(3, i * 5) * 100).to(dtype) for i in range(3)
             for word, dtype in zip(words, types, strict=True)}
    saved["parameter"] = torch.nn.Parameter(torch.rand(300, 300))
    if hasattr(torch, "float4_e2m1fn_x2"):
        for name, shape in ("pairs", (5, 7)), ("more", (3,)), ("none", (3, 0)):
            saved[name] = torch.randint(0, 256, shape, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    for metadata in (None, {}, {"format": "pt"}):
        library.save_file(saved, folder / "theirs", metadata)
        sluice.save_safetensors(saved, folder / "ours", metadata)
        assert (folder / "ours").read_bytes() == (folder / "theirs").read_bytes()
    for name, tensor in sluice.load_safetensors(folder / "ours").items():
        assert tensor.dtype == saved[name].dtype and tensor.shape == saved[name].shape
        assert tensor.numel() == 0 or torch.equal(tensor.view(torch.uint8), saved[name].data.view(torch.uint8))


def test_elements_of_half_a_byte(folder):
    torch = pytest.importorskip("torch", minversion="2.8")
    for shape, message in ([3, 2], None), ([2, 3], "'a' of shape .* in pairs only"), ([], "not"):
        header = json.dumps({"a": {"dtype": "F4", "shape": shape, "data_offsets": [0, 3]}}).encode()
        (folder / "f").write_bytes(len(header).to_bytes(8, "little") + header + bytes([1, 2, 3]))
        if message is None:
            found = sluice.load_safetensors(folder / "f")["a"]
            assert found.shape == (3, 1) and found.view(torch.uint8).tolist() == [[1], [2], [3]]
        else:
            with pytest.raises(ValueError, match=message):
                sluice.load_safetensors(folder / "f")
    header = header.replace(b"[]", b"[6]")
    (folder / "f").write_bytes(len(header).to_bytes(8, "little") + header + bytes([1, 2, 3]))
    with pytest.raises(ValueError, match="NumPy has no dtype for F4; use framework='pt'"):
        sluice.load_safetensors(folder / "f", framework="np")
    with pytest.raises(ValueError, match="'a' is a scalar"):
        sluice.save_safetensors({"a": torch.zeros((), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}, folder / "g")


def test_tensors_that_the_package_refuses(folder):
    torch = pytest.importorskip("torch")
    square = torch.rand(10, 10)
    for tensors, error, message in (({"a": square.T}, ValueError, "'a' is not contiguous"),
                                    ({"a": square, "b": square}, RuntimeError, "'a' and 'b' share memory"),
                                    ({"a": square[:6], "b": square[5:]}, RuntimeError, "share memory"),
                                    ({"a": square.to_sparse()}, ValueError, "to_dense"),
                                    ({"a": square.to("meta")}, ValueError, "'meta'"),
                                    ({"a": square.to(torch.complex128)}, ValueError, "complex128"),
                                    ({"a": [1, 2]}, TypeError, "'a' is a list"),
                                    ({"__metadata__": square}, ValueError, "__metadata__")):
        with pytest.raises(error, match=message):
            sluice.save_safetensors(tensors, folder / "f")
    with pytest.raises(TypeError, match="strings"):
        sluice.save_safetensors({}, folder / "f", {"a": 1})
    sluice.save_safetensors({"a": square[:5], "b": square[5:]}, folder / "f")
    assert torch.equal(sluice.load_safetensors(folder / "f")["b"], square[5:])
    assert names(folder) == ["f"]


def test_links_and_modes_stay(folder):
    (folder / "there").write_bytes(b"old")
    (folder / "there").chmod(0o640)
    if os.geteuid() == 0:
        os.chown(folder / "there", 12, 34)
    (folder / "link").symlink_to("there")
    sluice.save_safetensors({"a": np.ones(3)}, folder / "link")
    assert (folder / "link").is_symlink() and names(folder) == ["link", "there"]
    assert (folder / "there").stat().st_mode & 0o777 == 0o640
    if os.geteuid() == 0:
        assert ((folder / "there").stat().st_uid, (folder / "there").stat().st_gid) == (12, 34)
    assert same(sluice.load_safetensors(folder / "there", framework="np"), {"a": np.ones(3)})


def acl(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


USER_OBJ, USER, GROUP_OBJ, MASK, OTHER, NOBODY = 1, 2, 4, 16, 32, 0xffffffff


def test_an_acl_stays(folder):
    path, name = folder / "private", "system.posix_acl_access"
    path.write_bytes(b"old")
    one_more = acl((USER_OBJ, 6, NOBODY), (USER, 6, 1234), (GROUP_OBJ, 0, NOBODY), (MASK, 6, NOBODY), (OTHER, 0, NOBODY))
    try:
        os.setxattr(path, name, one_more)
    except OSError:
        pytest.skip("this filesystem has no ACLs")
    # What new files have.
    os.setxattr(folder, "system.posix_acl_default", acl((USER_OBJ, 7, NOBODY), (USER, 7, 99), (GROUP_OBJ, 7, NOBODY),
                                                        (MASK, 7, NOBODY), (OTHER, 7, NOBODY)))
    sluice.save_safetensors(arrays(), path)
    assert os.getxattr(path, name) == one_more and path.stat().st_mode & 0o7777 == 0o660
    os.removexattr(path, name)
    path.chmod(0o640)
    sluice.save_safetensors(arrays(), path)
    assert name not in os.listxattr(path) and path.stat().st_mode & 0o7777 == 0o640


def test_an_acl_stays_if_the_group_does_not(folder, monkeypatch):
    path, name = folder / "private", "system.posix_acl_access"
    path.write_bytes(b"old")

    def with_group(rights):
        return acl((USER_OBJ, 6, NOBODY), (USER, 0, 1234), (GROUP_OBJ, rights, NOBODY), (MASK, 6, NOBODY), (OTHER, 4, NOBODY))

    try:
        os.setxattr(path, name, with_group(6))
    except OSError:
        pytest.skip("this filesystem has no ACLs")

    def refuse(*arguments):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", refuse)
    sluice.save_safetensors(arrays(), path)
    assert os.getxattr(path, name) == with_group(4)


@pytest.mark.parametrize("before, after", [(0o2664, 0o644), (0o660, 0o600), (0o606, 0o666)])
def test_a_group_that_is_not_the_old_one_has_no_more_rights_than_others(folder, monkeypatch, before, after):
    (folder / "shared").write_bytes(b"old")
    (folder / "shared").chmod(before)

    def refuse(*arguments):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", refuse)
    sluice.save_safetensors(arrays(), folder / "shared")
    assert (folder / "shared").stat().st_mode & 0o7777 == after


def meanwhile(monkeypatch, change):
    """Calls `change` once during a save."""
    start, calls = _aio.Writer.start, iter([change])

    def started(self, *arguments):
        next(calls, lambda: None)()
        return start(self, *arguments)

    monkeypatch.setattr(_aio.Writer, "start", started)


def test_the_mode_is_changed_meanwhile(folder, monkeypatch):
    path = folder / "now private"
    path.write_bytes(b"old")
    path.chmod(0o644)
    seen = []

    def change():
        path.chmod(0o640)
        seen.extend((folder / name).stat().st_mode & 0o777 for name in names(folder) if name.endswith(".saving"))

    meanwhile(monkeypatch, change)
    sluice.save_safetensors(arrays(), path)
    assert path.stat().st_mode & 0o777 == 0o640 and seen == [0o600]


@pytest.mark.parametrize("fails", [False, True])
def test_the_folder_is_renamed_meanwhile(folder, monkeypatch, fails):
    (folder / "before").mkdir()
    (folder / "before" / "f").write_bytes(b"old")

    def change():
        (folder / "before").rename(folder / "after")
        if fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    meanwhile(monkeypatch, change)
    with pytest.raises(sluice.Error) if fails else contextlib.nullcontext():
        sluice.save_safetensors(arrays(), folder / "before" / "f")
    assert names(folder) == ["after"] and names(folder / "after") == ["f"]
    assert ((folder / "after" / "f").read_bytes() == b"old") == fails


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_nothing_is_written_through_a_link(folder, monkeypatch, link):
    """Who may write to the folder puts a link in the place of the new file."""
    (folder / "other").write_bytes(b"of another user")
    (folder / "f").write_bytes(b"old")
    original, calls = _replace._open_direct, iter([True])

    def open_direct(opened, name):
        if next(calls, False):
            (folder / name).unlink()
            link(folder / "other", folder / name)
        return original(opened, name)

    monkeypatch.setattr(_replace, "_open_direct", open_direct)
    with pytest.raises(sluice.Error, match="symbolic") if link is os.symlink else contextlib.nullcontext():
        sluice.save_safetensors(arrays(), folder / "f")
    assert (folder / "other").read_bytes() == b"of another user"
    assert ((folder / "f").read_bytes() == b"old") == (link is os.symlink)
    sluice.save_safetensors(arrays(), folder / "f")
    assert same(sluice.load_safetensors(folder / "f", framework="np"), arrays())
    assert (folder / "other").read_bytes() == b"of another user" and names(folder) == ["f", "other"]


def test_long_names(folder):
    name = "ü" * 127 + "x"
    (folder / f".{'ü' * 119}.01234567.saving").write_bytes(b"a leftover")
    for seed in range(2):
        sluice.save_safetensors(arrays(seed), folder / name)
        assert same(sluice.load_safetensors(folder / name, framework="np"), arrays(seed)) and names(folder) == [name]


def test_a_thread_that_nobody_waits_for_writes_to_no_other_file(folder, monkeypatch):
    """As after a second Ctrl-C."""
    fill, filling, go_on, pools = _replace._Block.fill, threading.Event(), threading.Event(), []

    def slow(self, *arguments):
        filling.set()
        go_on.wait(60)
        return fill(self, *arguments)

    class Interrupted(concurrent.futures.ThreadPoolExecutor):
        def shutdown(self, *arguments, **options):
            pools.append(self)
            filling.wait(60)
            raise KeyboardInterrupt

    monkeypatch.setattr(_replace._Block, "fill", slow)
    monkeypatch.setattr(_replace, "ThreadPoolExecutor", Interrupted)
    monkeypatch.setattr(concurrent.futures.Future, "result", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        sluice.save_safetensors(arrays(), folder / "f")
    others = [open(folder / f"other{i}", "x+b") for i in range(4)]  # one has the number of the closed descriptor
    go_on.set()
    concurrent.futures.ThreadPoolExecutor.shutdown(pools[0])
    assert all(os.fstat(other.fileno()).st_size == 0 for other in others)
    for other in others:
        other.close()
    assert names(folder) == [f"other{i}" for i in range(4)]


def test_only_files_are_replaced(folder):
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "link").symlink_to("pipe")
    for name, why in ("pipe", "not a regular file"), ("link", "not a regular file"), ("folder", "Is a directory"):
        with pytest.raises(sluice.Error, match=f"save .*/{name}: {why}; the file was not changed"):
            sluice.save_safetensors(arrays(), folder / name)
    assert names(folder) == ["folder", "link", "pipe"] and (folder / "pipe").is_fifo()


def test_saving_when_the_interpreter_ends(folder):
    program = """
import atexit, sys
import numpy, sluice
atexit.register(lambda: sluice.save_safetensors({"a": numpy.arange(5_000_000)}, sys.argv[1]))
"""
    done = subprocess.run([sys.executable, "-c", program, folder / "last"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert same(sluice.load_safetensors(folder / "last", framework="np"), {"a": np.arange(5_000_000)})


def test_a_pin_is_there_as_soon_as_the_new_file(mount, monkeypatch):
    path = mount / "pinned"
    sluice.save_safetensors(arrays(0), path)
    sluice.pin(path, "b")
    rename, pins = os.rename, []

    def look(*arguments, **options):
        rename(*arguments, **options)
        pins.append(sluice.stat(path).pin)

    monkeypatch.setattr(os, "rename", look)
    sluice.save_safetensors(arrays(1), path)
    assert pins == ["b"]


def test_pins_stay(mount):
    path = mount / "model.safetensors"
    for seed in range(2):
        sluice.save_safetensors(arrays(seed), path)
        assert sluice.stat(path).pin == ("b" if seed else None)
        sluice.pin(path, "b")
    sluice.unpin(path)
    sluice.pin(mount, "a")
    sluice.save_safetensors({}, path)
    assert sluice.stat(path).pin == "a"
    sluice.unpin(mount)  # the pin of the folder did not become one of the file
    assert sluice.stat(path).pin is None


def test_a_pin_to_gpu_memory_stays(mount):
    path = mount / "model.safetensors"
    sluice.save_safetensors(arrays(0), path)
    sluice.pin(path, "hbm")
    sluice.save_safetensors(arrays(1), path)
    assert os.getxattr(path, "user.sluice.hbm") == b"pinned"
    os.removexattr(path, "user.sluice.hbm")
    sluice.save_safetensors(arrays(2), path)
    with pytest.raises(OSError):
        os.getxattr(path, "user.sluice.hbm")


def test_types_of_ml_dtypes(folder):
    types = pytest.importorskip("ml_dtypes")
    saved = {name: np.arange(100).astype(getattr(types, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}
    sluice.save_safetensors(saved, folder / "f")
    assert same(sluice.load_safetensors(folder / "f", framework="np"), saved)


def test_errors_leave_the_old_file(folder, monkeypatch):
    path = folder / "model.safetensors"
    path.write_bytes(b"old")
    with pytest.raises(FileNotFoundError, match="save .*/none/x"):
        sluice.save_safetensors(arrays(), folder / "none" / "x")
    counter = iter(range(1000))

    def fails(*arguments, **options):
        if next(counter) == failing:
            raise OSError(code, os.strerror(code))
        return original(*arguments, **options)

    for owner, name, code, last in ((_aio.Writer, "start", errno.EIO, 20), (_aio.Writer, "finish", errno.EIO, 20),
                                    (os, "fsync", errno.EIO, 1), (os, "rename", errno.EXDEV, 1), (os, "ftruncate", errno.EDQUOT, 1),
                                    (_replace, "_open_direct", errno.EMFILE, 1)):
        original = getattr(owner, name)
        with monkeypatch.context() as context:
            context.setattr(owner, name, fails)
            for failing in range(last):
                counter = iter(range(1000))
                with pytest.raises(sluice.Error, match="the file was not changed") as raised:
                    sluice.save_safetensors(arrays(), path)
                assert raised.value.errno == code and raised.value.filename == str(path)
                assert names(folder) == ["model.safetensors"] and path.read_bytes() == b"old"


def _refuse():
    ctypes.set_errno(errno.EAGAIN)
    return -1


def write(writer, content, offset):
    writer.finish(writer.start(memoryview(content), offset))


@pytest.mark.parametrize("has_calls", [True, False])
def test_writes_that_do_not_wait(folder, monkeypatch, has_calls):
    if not has_calls:
        monkeypatch.setattr(_aio, "_CALLS", {})
    content, at = bytearray(random.Random(1).randbytes(1 << 20)), 4096
    with open(folder / "f", "w+b", buffering=0) as file, _aio.Writer(file.fileno(), 4) as writer:
        assert bool(writer._calls) == has_calls
        write(writer, content, at)
        file.seek(at)
        assert file.read() == content
        # The first 100 bytes can be written, and the second attempt tells why the others can't.
        file.truncate(0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (at + 100, old_limit := resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        try:
            with pytest.raises(OSError) as raised:
                write(writer, content, at)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (old_limit, old_limit))
        assert raised.value.errno == errno.EFBIG
        file.seek(at)
        assert file.read() == content[:100]
    if has_calls:  # the kernel may refuse a single one
        with open(folder / "f", "r+b") as file, _aio.Writer(file.fileno(), 4) as writer:
            call = writer._call
            monkeypatch.setattr(writer, "_call", lambda number, *rest: _refuse() if number == writer._calls.submit else call(number, *rest))
            write(writer, content, 0)
            assert file.read() == content
    with open(folder / "f", "rb") as file, _aio.Writer(file.fileno(), 4) as writer, pytest.raises(OSError) as raised:
        write(writer, content, 0)
    assert raised.value.errno == errno.EBADF


@pytest.mark.parametrize("has_calls", [True, False])
def test_a_filesystem_that_refuses_direct_writes(tmp_path, monkeypatch, has_calls):
    if not has_calls:
        monkeypatch.setattr(_aio, "_CALLS", {})
    content = bytearray(random.Random(1).randbytes(100_001))  # it refuses this length
    try:
        descriptor = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    except OSError:
        pytest.skip("the filesystem has no O_DIRECT")
    with _aio.Writer(descriptor, 4) as writer:
        write(writer, content, 0)
    os.close(descriptor)
    assert (tmp_path / "f").read_bytes() == content


def test_a_writer_does_not_end_during_a_write(tmp_path):
    content = bytearray(random.Random(1).randbytes(4 << 20))
    with open(tmp_path / "f", "w+b", buffering=0) as file:
        with _aio.Writer(file.fileno(), 4) as writer:
            writer.start(memoryview(content), 0)
        assert not writer._under_way and file.read() == content


@pytest.mark.parametrize("has_calls", [True, False])
def test_several_writes_at_a_time(folder, monkeypatch, has_calls):
    """They are finished in any order. One that fails does not harm the others."""
    if not has_calls:
        monkeypatch.setattr(_aio, "_CALLS", {})
    rng, size = random.Random(1), 256 << 10
    for turn in range(20):
        contents = [bytearray(rng.randbytes(size)) for _ in range(6)]
        failing = rng.randrange(6) if turn % 2 else None
        with open(folder / "f", "w+b", buffering=0) as file, open(folder / "f", "rb") as read_only, _aio.Writer(file.fileno(), 6) as writer:
            writes = []
            for i, content in enumerate(contents):
                writer._descriptor = read_only.fileno() if i == failing else file.fileno()
                writes.append(writer.start(memoryview(content), i * size))
            for i in rng.sample(range(6), rng.randint(0, 6)):  # the others are waited for by the end of the writer
                if i == failing:
                    with pytest.raises(OSError) as raised:
                        writer.finish(writes[i])
                    assert raised.value.errno == errno.EBADF
                else:
                    writer.finish(writes[i])
        written = (folder / "f").read_bytes().ljust(6 * size, b"\0")
        for i, content in enumerate(contents):
            assert written[i * size:(i + 1) * size] == (bytes(size) if i == failing else content), (turn, i)


def test_a_save_has_several_writes_under_way(folder, monkeypatch):
    most, start, blocks, block = 0, _aio.Writer.start, [], _replace._Block

    def counted(writer, *arguments):
        nonlocal most
        if not writer._calls:
            pytest.skip("this machine has no asynchronous writes")
        write = start(writer, *arguments)
        most = max(most, len(writer._under_way))
        return write

    monkeypatch.setattr(_aio.Writer, "start", counted)
    monkeypatch.setattr(_replace, "_Block", lambda *arguments: blocks.append(0) or block(*arguments))
    saved = {"a": np.random.default_rng(1).integers(0, 255, 40 * _replace._BLOCK, "uint8")}
    sluice.save_safetensors(saved, folder / "f")
    # A thread waits for no write before it needs the memory.
    assert most == _replace._BLOCKS and len(blocks) <= _replace._THREADS * _replace._BLOCKS
    assert same(sluice.load_safetensors(folder / "f", framework="np"), saved)


def test_nobody_waits_for_the_end_of_a_writer(monkeypatch):
    calls, original = [], _aio.Writer._call

    def call(self, number, *arguments):
        calls.append((number, threading.current_thread()))
        return original(self, number, *arguments)

    monkeypatch.setattr(_aio.Writer, "_call", call)
    with open("/dev/null", "wb") as file, _aio.Writer(file.fileno(), 4) as writer:
        if not writer._calls:
            pytest.skip("this machine has no asynchronous writes")
        setup, destroy = writer._calls.setup, writer._calls.destroy
    for thread in threading.enumerate():
        if thread.name == "sluice-save-end":
            thread.join()
    (first, here), (last, elsewhere) = calls
    assert (first, last) == (setup, destroy) and here is threading.current_thread() and elsewhere is not here
    assert original(writer, destroy, writer._context) == -1 and ctypes.get_errno() == errno.EINVAL  # there is no such context any more


def test_a_writer_ends_without_a_thread(monkeypatch):
    def refuse(*arguments):
        raise RuntimeError("can't start new thread")

    with open("/dev/null", "wb") as file, _aio.Writer(file.fileno(), 4) as writer:
        if not writer._calls:
            pytest.skip("this machine has no asynchronous writes")
        monkeypatch.setattr(threading.Thread, "start", refuse)
    assert writer._call(writer._calls.destroy, writer._context) == -1 and ctypes.get_errno() == errno.EINVAL


def test_memory_may_have_huge_pages():
    memory, begin = _replace._huge_memory(1 << 20)
    address = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
    assert (address + begin) % _replace._HUGE_PAGE == 0 and begin + (1 << 20) <= len(memory)
    inside, flags = False, []
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        if mapping := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(mapping[1], 16) <= address < int(mapping[2], 16)
        elif inside and line.startswith("VmFlags:"):
            flags = line.split()
    assert "sh" not in flags  # shared memory has huge pages only if the administrator says so
    if os.path.exists("/sys/kernel/mm/transparent_hugepage"):
        assert "hg" in flags


@pytest.mark.parametrize("reserves", [True, False])
def test_a_full_disk(tmp_path, monkeypatch, reserves):
    (tmp_path / "small").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", tmp_path / "small"], capture_output=True).returncode:
        pytest.skip("mounting needs root")
    try:
        path = tmp_path / "small" / "model.safetensors"
        sluice.save_safetensors(arrays(1), path)
        if not reserves:
            monkeypatch.setattr(_replace, "_reserve", lambda *_: None)
        with pytest.raises(sluice.Error, match="bytes are needed, and .* are free; the file was not changed") as raised:
            sluice.save_safetensors({"a": np.zeros(5_000_000, "uint8")}, path)
        assert raised.value.errno == errno.ENOSPC
        assert names(path.parent) == ["model.safetensors"]
        assert same(sluice.load_safetensors(path, framework="np"), arrays(1))
    finally:
        subprocess.run(["umount", tmp_path / "small"], check=True)


SAVER = """
import sys, numpy, sluice
path, number = sys.argv[1], int(sys.argv[2])
while True:
    number += 1
    print(number, flush=True)
    sluice.save_safetensors({f"t{i}": numpy.full(300_000 + i, number) for i in range(8)}, path)
"""


def test_a_killed_process_leaves_the_old_file_or_the_new_one(folder):
    path = folder / "model.safetensors"
    last, left = 0, 0
    for attempt in range(200):
        if attempt >= 12 and left > 0:
            break
        saver = subprocess.Popen([sys.executable, "-c", SAVER, path, str(last)], stdout=subprocess.PIPE, text=True)
        first = int(saver.stdout.readline())
        time.sleep(random.Random(attempt).uniform(0, 0.15))
        saver.send_signal(signal.SIGKILL)
        begun = [first, *map(int, saver.communicate()[0].split())]
        left += len(names(folder)) - path.exists()
        if path.exists():
            tensors = sluice.load_safetensors(path, framework="np")
            found = {int(value) for tensor in tensors.values() for value in (tensor.min(), tensor.max())}
            assert len(tensors) == 8 and found <= {last, begun[-1] - 1, begun[-1]} and len(found) == 1
            last = found.pop()
        assert len(names(folder)) <= 2  # what the killed one left was removed by the next
    assert left > 0, "no process was killed while it saved"
    sluice.save_safetensors({}, path)
    assert names(folder) == ["model.safetensors"]


def test_threads_that_save_the_same_file(folder):
    path = folder / "model.safetensors"

    def save(seed):
        for _ in range(10):
            sluice.save_safetensors(arrays(seed), path)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        for done in [pool.submit(save, seed) for seed in range(3)]:
            done.result()
    assert names(folder) == ["model.safetensors"]
    loaded = sluice.load_safetensors(path, framework="np")
    assert any(same(loaded, arrays(seed)) for seed in range(3))
