# SPDX-License-Identifier: BSD-2-Clause
"""sluice.accelerate with the real safetensors and torch: the same results as the originals."""
import copy
import errno
import gc
import inspect
import os
import pickle
import random
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
import safetensors.numpy  # noqa: E402
import safetensors.torch  # noqa: E402

import sluice  # noqa: E402
from accelerated import accelerated, content_of, open_on, read_bytes, reasons, same, save, some, tensors_of  # noqa: E402

def test_files_elsewhere_are_opened_by_the_original(tmp_path, originals):
    path = save(tensors_of(), tmp_path / "m.safetensors")
    before = read_bytes()
    assert type(safetensors.safe_open(path, "pt")) is originals["safe_open"]
    assert isinstance(safetensors.safe_open(path, "pt"), safetensors.safe_open)
    torch.save({"a": torch.ones(3)}, tmp_path / "a.pt")
    with open(tmp_path / "a.pt", "rb") as file:
        assert type(torch.serialization._open_zipfile_reader(file).file_like) is torch._C.PyTorchFileReader
    assert torch.equal(torch.load(tmp_path / "a.pt")["a"], torch.ones(3))
    assert read_bytes() == before


def test_another_replacement_stays_in_force(tmp_path, mount, monkeypatch):
    """A program has replaced safe_open before: it gets every call."""
    asked = []
    real = safetensors.safe_open

    def theirs(*arguments, **options):
        asked.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(safetensors, "safe_open", theirs)
    with accelerated():
        for folder in tmp_path, mount:
            path = save(tensors_of(), folder / "m.safetensors")
            same(safetensors.safe_open(path, "pt").get_tensor("float16"), tensors_of()["float16"])
            assert asked.pop() == (path, "pt") and not isinstance(3, safetensors.safe_open)
    assert safetensors.safe_open is theirs


def test_an_attribute_of_the_user_does_not_make_a_mount(tmp_path, originals):
    path = save(tensors_of(), tmp_path / "m.safetensors")
    try:
        os.setxattr(path, "user.sluice.tier", b"fast")
    except OSError as error:
        pytest.skip(f"no attributes here: {error}")
    assert type(safetensors.safe_open(path, "pt")) is originals["safe_open"]


def test_everything_but_the_bytes_is_the_originals(mount, originals, gpu):
    path = save(tensors_of(), mount / "m.safetensors")
    theirs = originals["safe_open"](path, "pt")
    for ours in safetensors.safe_open(path, "pt"), open_on(gpu, originals, path):
        assert isinstance(ours, safetensors.safe_open)
        assert ours.keys() == theirs.keys() and ours.offset_keys() == theirs.offset_keys()
        assert ours.metadata() == theirs.metadata() == {"format": "pt", "a": "b"}
        assert ours.get_slice("float16").get_shape() == [6, 8] and ours.get_slice("float16").get_dtype() == "F16"
        with ours as same_object:
            assert same_object is ours
            with pytest.raises(safetensors.SafetensorError, match="does not contain tensor no"):
                ours.get_tensor("no")
        for call in ours.keys, lambda: ours.get_tensor("one"), lambda: ours.get_slice("one"):
            with pytest.raises(safetensors.SafetensorError, match="closed"):
                call()


@pytest.mark.parametrize("arguments", [("none", "pt"), ("m", "no"), ("m", "pt", "no"), ("m", "np", "cuda"), ("m",),
                                       (3, "pt"), ("m", "pt", "cpu", "extra"), ("empty", "pt"), ("short", "pt")])
def test_errors_are_the_originals(mount, originals, arguments, monkeypatch):
    monkeypatch.chdir(mount)
    save(tensors_of(), "m")
    (mount / "empty").write_bytes(b"")
    (mount / "short").write_bytes((mount / "m").read_bytes()[:-1])
    errors = []
    for function in originals["safe_open"], safetensors.safe_open:
        with pytest.raises(Exception) as info:
            function(*arguments)
        errors.append((info.type, str(info.value)))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("order", ["keys", "offset_keys", "backwards", "random", "twice"])
def test_tensors_one_by_one(mount, originals, gpu, order):
    tensors = tensors_of()
    path = save(tensors, mount / "m.safetensors")
    ours = open_on(gpu, originals, path)
    names = ours.offset_keys() if order != "keys" else ours.keys()
    names = names[::-1] if order == "backwards" else names * 2 if order == "twice" else names
    if order == "random":
        random.Random(1).shuffle(names)
    for name in names:
        found = ours.get_tensor(name)
        # As from the original: memory of its own, and no view.
        assert found._base is None and found.storage_offset() == 0
        assert found.untyped_storage().nbytes() == tensors[name].numel() * tensors[name].element_size()
        assert found.untyped_storage().resizable()
        same(found, originals["safe_open"](path, "pt").get_tensor(name))
    ours.__exit__(None, None, None)
    assert not ours.bulk._ready and not reasons()


def test_all_tensors(mount, originals, gpu, monkeypatch):
    from sluice.integrations import _bulk
    path = save(tensors_of(), mount / "m.safetensors")
    expected = safetensors.torch.load_file(path)
    assert list(expected) == list(originals["safe_open"](path, "pt").get_tensors())
    for limit in _bulk.GROUP_BYTES, 1_000_000, 1:
        monkeypatch.setattr(_bulk, "GROUP_BYTES", limit)
        before = read_bytes()
        found = open_on(gpu, originals, path).get_tensors()
        assert list(found) == list(expected)
        for name in expected:
            same(found[name], expected[name])
        # Every byte is read once.
        assert read_bytes() - before == sum(tensor.untyped_storage().nbytes() for tensor in found.values())
    assert len({tensor.untyped_storage().data_ptr() for tensor in found.values() if tensor.numel()}) == len(found) - 1


def test_neighbours_are_loaded_without_a_copy(mount, originals, gpu, monkeypatch):
    """torch's allocator for GPUs cuts tensors off one piece of memory. Here, NumPy's memory plays that piece."""
    import numpy as np
    from sluice.integrations import _place
    tensors = {f"{i}": some(torch.bfloat16, (1000, size), i) for i, size in enumerate((2048, 600, 1024, 768, 1))}
    tensors["odd"] = some(torch.uint8, (1, (1 << 20) + 3))
    path = save(tensors, mount / "m.safetensors")
    copied = []
    monkeypatch.setattr(_place, "_load_and_copy", lambda *_: copied.append(1) or {})
    gap = 0

    def allocate(lengths, _):
        piece, made = np.empty(sum(length + 511 & ~511 for length in lengths) + 256 + 3 * gap, np.uint8), []
        at = -piece.ctypes.data % 256
        for length in lengths:
            made.append(torch.from_numpy(piece[at:at + length]))
            at += (length + 511 & ~511) + (gap if len(made) % 2 else 0)
        return made

    if gpu.type == "cuda":
        pytest.skip("this GPU's memory may be in pieces already")
    monkeypatch.setattr(_place, "allocate", allocate)
    for gap in 0, 512:  # one piece, and several
        found = open_on(gpu, originals, path).get_tensors()
        for name, tensor in tensors.items():
            same(found[name], tensor)
            assert found[name].untyped_storage().nbytes() == tensor.nbytes
        assert not copied and not reasons()
    monkeypatch.undo()
    monkeypatch.setattr(_place, "_MOST_RUNS", 0)
    for name, tensor in open_on(gpu, originals, path).get_tensors().items():
        same(tensor, tensors[name])


def test_too_little_memory_for_many(mount, originals, gpu, monkeypatch):
    from sluice.integrations import _place
    tensors = tensors_of()
    path = save(tensors, mount / "m.safetensors")

    class OutOfMemoryError(RuntimeError):
        pass

    def fail(*_):
        raise OutOfMemoryError("no memory")

    monkeypatch.setattr(_place, "_load_in_place", fail)
    monkeypatch.setattr(_place, "_load_and_copy", fail)
    for name, tensor in open_on(gpu, originals, path).get_tensors().items():
        same(tensor, tensors[name])
    assert len(reasons()) == 1 and "memory is short" in next(iter(reasons()))


def test_tensors_on_the_cpu_are_the_originals(mount, originals):
    tensors = tensors_of()
    path = save(tensors, mount / "m.safetensors")
    before = read_bytes()
    loaded = safetensors.torch.load_file(path)
    with safetensors.safe_open(path, "pt") as file:
        for name, tensor in tensors.items():
            same(file.get_tensor(name), tensor)
            same(loaded[name], tensor)
        same(file.get_slice("layers.1.weight")[3:5], tensors["layers.1.weight"][3:5])
    assert read_bytes() == before
    assert torch.equal(pickle.loads(pickle.dumps(loaded["one"])), tensors["one"])


def random_index(chance, shape):
    def one(size):
        kind = chance.random()
        if kind < 0.35:
            return chance.choice([slice(None), ..., None, chance.randint(-size - 1, size), [0, 1], True])
        ends = [chance.choice([None, chance.randint(-size - 3, size + 3)]) for _ in range(2)]
        return slice(*ends, chance.choice([None, None, None, 1, 2, 7, -1]))
    index = tuple(one(size) for size in shape[:chance.randint(1, len(shape))])
    return index[0] if len(index) == 1 and chance.random() < 0.5 else index


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
def test_slices(mount, originals, gpu):
    """Random ones, with the same error if it is one, on tensors whose rows are long and short."""
    tensors = {"wide": some(torch.float32, (7, 30_000)), "tall": some(torch.bfloat16, (3000, 7)),
               "deep": some(torch.int8, (5, 6, 900)), "one": torch.tensor(5.0)}
    path = save(tensors, mount / "m.safetensors")
    ours, theirs = open_on(gpu, originals, path), originals["safe_open"](path, "pt")
    chance, read = random.Random(7), 0
    for _ in range(400):
        name = chance.choice(list(tensors))
        index = random_index(chance, tensors[name].shape or (1,))
        try:
            expected = theirs.get_slice(name)[index]
        except Exception as error:
            with pytest.raises(type(error)) as info:
                ours.get_slice(name)[index]
            assert str(info.value) == str(error)
            continue
        found = ours.get_slice(name)[index]
        assert found.dtype == expected.dtype and found.shape == expected.shape, index
        assert content_of(found) == content_of(expected), index
        read += 1
    assert read > 100 and not reasons()
    kept = ours.get_slice("wide")
    ours.__exit__(None, None, None)
    same(kept[...], tensors["wide"])  # a slice outlives its file, as the original's
    before = read_bytes()
    same(kept[:, 1000:6000], tensors["wide"][:, 1000:6000].contiguous())
    assert read_bytes() - before == 7 * 5000 * 4


def test_numpy(mount, originals):
    tensors = {name: tensor for name, tensor in tensors_of().items() if tensor.numel()
               and tensor.dtype in (torch.float32, torch.int64, torch.bool, torch.uint16, torch.complex64, torch.float16)}
    path = save(tensors, mount / "m.safetensors")
    before = read_bytes()
    found = safetensors.numpy.load_file(path)
    assert read_bytes() - before == sum(tensor.untyped_storage().nbytes() for tensor in tensors.values())
    expected = originals["safe_open"](path, "np").get_tensors()
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes() and found[name].flags.writeable
    with safetensors.safe_open(path, "np") as file:
        assert file.get_tensor("int64").tobytes() == expected["int64"].tobytes()
        assert file.get_slice("int64")[1:3].tobytes() == expected["int64"][1:3].tobytes()
    # Types that NumPy does not have give the error of the original.
    save({"a": torch.zeros(3, dtype=torch.float8_e4m3fn)}, path)
    errors = []
    for function in safetensors.numpy.load_file, lambda path: originals["safe_open"](path, "np").get_tensors():
        with pytest.raises(Exception) as info:
            function(path)
        errors.append((info.type, str(info.value)))
    assert errors[0] == errors[1]


def test_a_failed_load_falls_back_and_is_logged_once(mount, originals, gpu, monkeypatch, caplog):
    from sluice.integrations import _place
    tensors = tensors_of()
    path = save(tensors, mount / "m.safetensors")
    torch.save(tensors["layers.0.weight"], mount / "a.pt")

    def fail(*_):
        raise sluice.Error(22, "it can't be done")

    monkeypatch.setattr(_place, "load", fail)
    ours = open_on(gpu, originals, path)
    for name in "one", "float16", "layers.3.weight":
        same(ours.get_tensor(name), tensors[name])
        same(ours.get_slice(name)[...], tensors[name])
    assert ours.get_tensors().keys() == tensors.keys()
    same(torch.load(mount / "a.pt", map_location=gpu), tensors["layers.0.weight"])
    assert len([line for line in caplog.records if "it can't be done" in line.message]) == 1
    assert [count for reason, count in reasons().items() if "it can't be done" in reason][0] > 6


@pytest.mark.parametrize("code, is_raised", [(errno.ENOTCONN, True), (errno.ECONNABORTED, True), (errno.EIO, False),
                                             (errno.ENOMEM, False)])
def test_the_end_of_the_mount_is_raised(mount, originals, gpu, monkeypatch, code, is_raised):
    """Not so an error that the original does not have."""
    from sluice.integrations import _place
    tensors = tensors_of()
    ours = open_on(gpu, originals, save(tensors, mount / "m.safetensors"))

    def fail(*_):
        raise sluice.Error(code, "it ended")

    monkeypatch.setattr(_place, "load", fail)
    for read in lambda: ours.get_tensor("one"), lambda: ours.get_slice("one")[...], lambda: ours.get_tensors()["one"]:
        if is_raised:
            with pytest.raises(OSError, match="it ended"):
                read()
        else:
            same(read(), tensors["one"])


def test_files_are_closed(mount, originals, gpu):
    path = save(tensors_of(), mount / "m.safetensors")
    torch.save(tensors_of()["one"], mount / "a.pt")

    def opened():
        return [link for each in os.listdir("/proc/self/fd") if (link := os.path.realpath(f"/proc/self/fd/{each}")) in
                (str(path), str(mount / "a.pt"))]

    gc.disable()
    try:
        for mmap in False, True:
            torch.load(mount / "a.pt", map_location=gpu, mmap=mmap)
        assert opened() == []
        ours = open_on(gpu, originals, path)
        with ours:
            one, part = ours.get_tensor("one"), ours.get_slice("one")
        assert [link for link in opened() if link == str(path)] == []
        same(one, tensors_of()["one"])
        del part
    finally:
        gc.enable()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOTDIR, errno.EISDIR])
def test_a_path_that_cannot_be_opened_again(mount, originals, gpu, monkeypatch, code):
    """The original has the file open."""
    from sluice.integrations import _bulk, _place
    tensors = tensors_of()
    ours = open_on(gpu, originals, save(tensors, mount / "m.safetensors"))

    def fail(*_, **__):
        raise sluice.Error(code, os.strerror(code))

    monkeypatch.setattr(_place, "load", fail)
    monkeypatch.setattr(_bulk, "open", fail, raising=False)
    same(ours.get_tensor("one"), tensors["one"])


def test_the_class_has_what_the_original_has(originals):
    original = originals["safe_open"]
    assert inspect.signature(safetensors.safe_open) == inspect.signature(original)
    assert hasattr(safetensors.safe_open, "get_tensors") == hasattr(original, "get_tensors")
    assert not hasattr(safetensors.safe_open, "get_anything") and "get_tensor" in dir(safetensors.safe_open)


def test_copies_of_open_files(mount, originals, gpu):
    ours = open_on(gpu, originals, save(tensors_of(), mount / "m.safetensors"))
    assert copy.copy(ours.get_slice("one")).get_shape() == ours.get_slice("one").get_shape()
    assert copy.copy(ours).keys() == ours.keys()


@pytest.mark.parametrize("is_damaged", [True, False])
def test_the_original_does_not_map_what_cannot_be_read(mount, originals, monkeypatch, is_damaged):
    from sluice.integrations import patch_safetensors
    path = save({"first": torch.rand(500), "second": torch.rand(2 << 20)}, mount / "m.safetensors")
    pread = os.pread

    def fail(*_):
        raise sluice.Error(errno.EIO, "a bad block")

    monkeypatch.setattr(patch_safetensors, "_read_piece", fail)
    if is_damaged:
        monkeypatch.setattr(os, "pread", lambda file, length, at: fail() if at > 4 << 20 else pread(file, length, at))
        with pytest.raises(OSError, match="a bad block"):
            safetensors.numpy.load_file(path)
    else:
        assert sorted(safetensors.numpy.load_file(path)) == ["first", "second"]


def test_replaced_and_moved_while_open(mount, originals, gpu, monkeypatch):
    """Threads open, read and close while the file is replaced and moves between tiers: each handle gives what the file had
    when it was opened."""
    from sluice.integrations import _bulk
    monkeypatch.setattr(_bulk, "GROUP_BYTES", 1 << 20)
    versions = [tensors_of(seed, layers=6) for seed in range(3)]
    path = mount / "m.safetensors"
    save(versions[0], path)
    lock, stopped, failures = threading.Lock(), threading.Event(), []
    current = [0]

    def replace_and_move():
        chance = random.Random(1)
        while not stopped.wait(0.01):
            if chance.random() < 0.3:
                with lock:
                    current[0] = chance.randrange(len(versions))
                    save(versions[current[0]], path)
            else:
                sluice.pin(path, chance.choice("ab"))

    def read(seed):
        chance = random.Random(seed)
        try:
            for _ in range(25):
                with lock:
                    ours, expected = open_on(gpu, originals, path), versions[current[0]]
                for _ in range(chance.randrange(4)):
                    name = chance.choice(list(expected))
                    same(ours.get_tensor(name), expected[name])
                    same(ours.get_slice("layers.1.weight")[5:9], expected["layers.1.weight"][5:9])
                if chance.random() < 0.5:
                    for name, tensor in ours.get_tensors().items():
                        same(tensor, expected[name])
                ours.__exit__(None, None, None)
        except BaseException as error:
            failures.append(error)

    mover = threading.Thread(target=replace_and_move)
    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in mover, *readers:
        thread.start()
    for thread in readers:
        thread.join()
    stopped.set()
    mover.join()
    assert not failures, failures
    assert all("was changed or replaced" in reason for reason in reasons())


def test_report(mount):
    """A program of its own: SLUICE_ACCELERATE=verbose prints at its end what was done."""
    path = save({"a": torch.ones(1000)}, mount / "m.safetensors")
    code = "import sys, safetensors.numpy; print(safetensors.numpy.load_file(sys.argv[1])['a'].sum())"
    (mount / "program.py").write_text(code)
    done = subprocess.run([sys.executable, "-m", "sluice.accelerate", mount / "program.py", path], capture_output=True,
                          text=True, env={**os.environ, "SLUICE_ACCELERATE": "verbose"})
    assert done.stdout == "1000.0\n", done.stderr
    assert "sluice.accelerate: 1 files read" in done.stderr and f"{path}: 4000 bytes" in done.stderr


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_child_after_a_fork_gets_the_originals(mount, originals, gpu, monkeypatch):
    from sluice.integrations import _bulk
    if gpu.type == "cuda":
        pytest.skip("CUDA does not survive a fork")
    monkeypatch.setattr(_bulk, "GROUP_BYTES", 500_000)
    tensors = tensors_of()
    ours = open_on(gpu, originals, save(tensors, mount / "m.safetensors"))
    ours.bulk.want(list(tensors), gpu)
    same(ours.get_tensor("layers.0.weight"), tensors["layers.0.weight"])  # the next ones are being loaded
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for name in "one", "layers.1.weight", "layers.11.weight":
                same(ours.get_tensor(name), tensors[name])
                same(ours.get_slice(name)[...], tensors[name])
            ours.__exit__(None, None, None)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    for name in tensors:
        same(ours.get_tensor(name), tensors[name])


def test_nothing_is_kept(mount, originals, gpu):
    path = save(tensors_of(), mount / "m.safetensors")
    gc.collect()
    open_files = set(os.listdir("/proc/self/fd"))
    ours = open_on(gpu, originals, path)
    ours.get_tensors()
    del ours
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= open_files
