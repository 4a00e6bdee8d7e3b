# SPDX-License-Identifier: BSD-2-Clause
import contextlib
import gc
import json
import os
import pathlib
import pty
import random
import struct
import subprocess
import sys
import weakref

import numpy as np
import pytest

import sluice
from sluice import _safetensors

NUMPY_TYPES = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
               "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "F32": "float32", "F64": "float64",
               "C64": "complex64"}


def pack(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def save(path, arrays, pad=0):
    """Writes arrays in the given order; `pad` spaces shift the beginning of the data."""
    names = {value: key for key, value in NUMPY_TYPES.items()}
    header, data = {"__metadata__": {"format": "np"}}, b""
    for name, array in arrays.items():
        content = array.tobytes()
        header[name] = {"dtype": names[str(array.dtype)], "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    path.write_bytes(pack(json.dumps(header).encode() + b" " * pad, data))


def some(dtype, shape, seed=1):
    return (np.random.default_rng(seed).random(shape) * 100).astype(dtype)


def same(tensors, arrays):
    assert tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        assert tensors[name].dtype == array.dtype and tensors[name].shape == array.shape, name
        assert tensors[name].tobytes() == array.tobytes(), name


def load(path, **arguments):
    return sluice.load_safetensors(path, framework="np", **arguments)


@pytest.mark.parametrize("pad", range(9))
def test_all_types(folder, pad):
    arrays = {name: some(name, (3, 5)) for name in sorted(NUMPY_TYPES.values(), key=lambda n: -np.dtype(n).itemsize)}
    save(folder / "model.safetensors", arrays, pad)
    tensors = load(folder / "model.safetensors")
    same(tensors, arrays)
    # One arena without copies: neighbours in the file are neighbours in memory, each at a multiple
    # of 256.
    addresses = [tensors[name].ctypes.data for name in arrays]
    assert all(b - a == arrays[name].nbytes + -arrays[name].nbytes % 256 for a, b, name in zip(addresses, addresses[1:], arrays))


def test_what_cannot_be_shared_is_loaded(folder, caplog):
    arrays = {"a": some("float32", (3, 5))}
    save(folder / "model.safetensors", arrays)
    tensors = load(folder / "model.safetensors", share=True)
    same(tensors, arrays)
    assert not tensors.shared and "only torch tensors" in tensors.not_shared_because
    assert tensors.not_shared_because in caplog.text
    caplog.clear()
    assert load(folder / "model.safetensors").not_shared_because == "" and caplog.text == ""


def test_shared_tensors_are_views_of_the_memory_of_the_daemon(mount):
    cuda = os.environ.get("SLUICE_FAKE_CUDA")
    if not cuda:
        pytest.skip("SLUICE_FAKE_CUDA is not given")
    program = pathlib.Path(__file__).parent / "fake_gpu_share.py"
    save(mount / "model.safetensors", {"a": some("float32", (300, 500)), "b": some("uint8", (7,)), "c": some("uint8", (0, 3)),
                                       "d": some("float32", (5,))})
    done = subprocess.run([sys.executable, program, cuda, mount / "model.safetensors"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all bytes are right" in done.stdout


def test_unaligned_tensors_are_aligned_in_memory(folder):
    arrays = {"a": some("uint8", 3), "b": some("float64", 5), "c": some("int8", 1), "d": some("float32", 3),
              "e": some("float16", 3), "f": some("uint64", 1)}
    save(folder / "model.safetensors", arrays, pad=3)
    tensors = load(folder / "model.safetensors")
    same(tensors, arrays)
    assert all(tensor.flags.aligned for tensor in tensors.values())


def test_empty_tensors(folder):
    arrays = {"none": some("float32", (0, 4)), "scalar": some("float64", ()), "last": some("int64", 0)}
    save(folder / "model.safetensors", arrays)
    same(load(folder / "model.safetensors"), arrays)
    save(folder / "nothing.safetensors", {})
    assert load(folder / "nothing.safetensors") == {}


def test_large_tensor(folder):
    arrays = {f"layer.{i}": some("float32", (1000, 1000), i) for i in range(8)}
    save(folder / "model.safetensors", arrays)
    same(load(folder), arrays)


def one(dtype="F32", shape=(2,), offsets=(0, 8), **others):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **others}


@pytest.mark.parametrize("content, message", [
    (b"", "at least 8 bytes"),
    (b"1234567", "at least 8 bytes"),
    (struct.pack("<Q", 2**64 - 1) + b"{}", "is more than the 100000000"),
    (struct.pack("<Q", 100_000_001) + b"{}", "is more than the 100000000"),
    (struct.pack("<Q", 3) + b"{}", "only 2 follow"),
    (pack(b""), "does not begin with"),
    (pack(b" {}"), "does not begin with"),
    (pack(b"[]"), "does not begin with"),
    (pack(b"{"), "from byte 8 on"),
    (pack(b'{"a": \xff}'), "from byte 8 on"),
    (pack(b'{"a":' * 100_000), "tensor 'a': must be an object with"),
    (pack(b'{"a": ' + b"9" * 5000 + b"}"), "from byte 8 on"),
    (pack(b'{"a": {"dtype": "F32", "dtype": "F32"}}'), "'dtype' occurs twice"),
    (pack({"a": 5}), "tensor 'a': must be an object"),
    (pack({"a": {"dtype": "F32"}}), "must be an object with"),
    (pack({"a": one(more=1)}, bytes(8)), "must be an object with"),
    (pack({"a": one("F31")}, bytes(8)), "dtype 'F31' is unknown"),
    (pack({"a": one(["F32"])}, bytes(8)), "dtype must be a string"),
    (pack({"a": one(shape=[2.0])}, bytes(8)), "the shape must be"),
    (pack({"a": one(shape=[True, 2])}, bytes(8)), "the shape must be"),
    (pack({"a": one(shape=[-2])}, bytes(8)), "the shape must be"),
    (pack({"a": one(shape=[2**64])}, bytes(8)), "the shape must be"),
    (pack({"a": one(shape=[2**62] * 60)}, bytes(8)), "is not 8 bytes"),
    (pack({"a": one(shape=[3])}, bytes(8)), "is not 8 bytes"),
    (pack({"a": one("F64")}, bytes(8)), "F64 of shape \\[2\\] is not 8 bytes"),
    (pack({"a": one(offsets=[0, 8, 9])}, bytes(8)), "two whole numbers"),
    (pack({"a": one(offsets=[-8, 0])}, bytes(8)), "two whole numbers"),
    (pack({"a": one(offsets=[0, 8.0])}, bytes(8)), "two whole numbers"),
    (pack({"a": one(offsets=[8, 0])}, bytes(8)), "not within the 8 bytes"),
    (pack({"a": one(offsets=[0, 8])}, bytes(7)), "not within the 7 bytes"),
    (pack({"a": one(offsets=[0, 2**63 - 1])}, bytes(8)), "not within"),
    (pack({"a": one(), "b": one(offsets=[4, 12])}, bytes(12)), "'b' overlaps the one before it"),
    (pack({"a": one(), "b": one()}, bytes(8)), "overlaps the one before it"),
    (pack({"a": one(offsets=[1, 9])}, bytes(9)), "leaves a gap before it"),
    (pack({"a": one()}, bytes(9)), "the tensors end at byte"),
    (pack({"a": one("F32", [0, 2**62, 2**62], [0, 0])}), "tensor 'a' of shape"),
    (pack({"__metadata__": 5}), "__metadata__ must be"),
    (pack({"__metadata__": {"a": 5}}), "__metadata__ must be"),
])
def test_error_says_what_is_wrong(folder, content, message):
    path = folder / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        load(path)
    if "of shape" not in message:
        assert str(path) in str(error.value)


def test_any_wrong_byte_is_a_value_error_or_harmless(tmp_path):
    """The result is always a ValueError or arrays."""
    path = tmp_path / "model.safetensors"
    save(path, {"a": some("float32", (2, 3)), "b": some("int8", 5)})
    good = path.read_bytes()
    randomly = random.Random(1)
    refused = 0
    for _ in range(1000):
        bad = bytearray(good)
        for _ in range(randomly.randint(1, 3)):
            bad[randomly.randrange(len(bad))] = randomly.randrange(256)
        path.write_bytes(bad[:randomly.choice([len(bad), len(bad), randomly.randrange(len(bad))])])
        try:
            load(path)
        except ValueError:
            refused += 1
    assert refused > 500


@pytest.fixture
def sharded(folder):
    arrays, names = {}, {}
    for shard in range(6):
        file = f"model-{shard}.safetensors"
        own = {f"model.layers.{shard * 2 + i}.weight": some("float32", (50, 50), shard * 2 + i) for i in range(2)}
        if shard == 0:
            own["model.embed.weight"] = some("float16", (10, 10))
        save(folder / file, own)
        arrays |= own
        names |= dict.fromkeys(own, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return folder, arrays


def test_an_index_loads_all_its_files(sharded):
    folder, arrays = sharded
    same(load(folder / "model.safetensors.index.json"), arrays)
    same(load(folder), arrays)


@pytest.mark.parametrize("index, message", [
    ("{", "index.json: "), ("[]", "weight_map is missing"), ('{"weight_map": []}', "weight_map is missing"),
    ('{"weight_map": {"a": "../model-0.safetensors"}}', "not the name of a file beside the index"),
    ('{"weight_map": {"a": "/etc/passwd"}}', "not the name of a file"), ('{"weight_map": {"a": 5}}', "not the name of a file"),
    ('{"weight_map": {"a": "model-0.safetensors"}}', "'a' is not in model-0.safetensors")])
def test_wrong_index_is_refused(sharded, index, message):
    path = sharded[0] / "model.safetensors.index.json"
    path.write_text(index)
    with pytest.raises(ValueError, match=message):
        load(path)


def test_missing_shard_is_refused(sharded):
    os.unlink(sharded[0] / "model-3.safetensors")
    with pytest.raises(sluice.Error, match="model-3"):
        load(sharded[0])


def test_misuse_says_what_to_do(sharded):
    with pytest.raises(ValueError, match="use framework='pt'"):
        load(sharded[0], device="cuda")
    with pytest.raises(ValueError, match="'pt' .* or 'np'"):
        sluice.load_safetensors(sharded[0], framework="tf")
    with pytest.raises(ValueError, match="ahead"):
        sluice.stream_layers(sharded[0], ahead=-1, framework="np")


def test_types_that_numpy_does_not_have(folder):
    path = folder / "model.safetensors"
    path.write_bytes(pack({"a": one("BF16", [4])}, bytes(range(8))))
    try:
        import ml_dtypes
    except ImportError:
        with pytest.raises(ValueError, match="install ml_dtypes, or use framework='pt'"):
            load(path)
    else:
        assert load(path)["a"].dtype == ml_dtypes.bfloat16


def test_layers_come_in_order(sharded):
    folder, arrays = sharded
    seen = {}
    keys = []
    for key, tensors in sluice.stream_layers(folder, framework="np"):
        keys.append(key)
        seen |= tensors
    assert keys == ["", *(f"model.layers.{i}" for i in range(12))]
    same(seen, arrays)


def test_layers_by_a_function(sharded):
    folder, arrays = sharded

    def half(name):
        return None if "embed" in name else int(name.split(".")[2]) // 6

    groups = {key: sorted(tensors) for key, tensors in sluice.stream_layers(folder, half, framework="np", ahead=0)}
    assert groups == {0: sorted(f"model.layers.{i}.weight" for i in range(6)),
                      1: sorted(f"model.layers.{i}.weight" for i in range(6, 12))}


@pytest.mark.parametrize("ahead", [0, 1, 2, 100])
def test_no_more_layers_in_memory_than_promised(sharded, monkeypatch, ahead):
    make = _safetensors._Framework.arena
    living, most = [], 0

    def arena(self, length):
        nonlocal most
        made = make(self, length)
        living.append(1)
        weakref.finalize(made.memory, living.pop)
        most = max(most, len(living))
        return made

    monkeypatch.setattr(_safetensors._Framework, "arena", arena)
    for _, tensors in sluice.stream_layers(sharded[0], framework="np", ahead=ahead):
        assert len(living) <= ahead + 1
    assert tensors == {}
    assert most == min(ahead + 1, 13)
    assert living == []


def test_stopping_early_closes_everything(sharded):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in sluice.stream_layers(sharded[0], framework="np"):
        break
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_load_can_be_interrupted(sharded, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_safetensors._Progress, "show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load(sharded[0])


def test_progress_is_shown_only_on_terminals_for_long_loads(sharded, monkeypatch, capsys):
    monkeypatch.setattr(_safetensors._Progress, "PATIENCE_S", 0)
    load(sharded[0])
    assert capsys.readouterr().err == ""
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        load(sharded[0])
    shown = ""
    with contextlib.suppress(OSError):  # EIO: everything was read
        while True:
            shown += os.read(controller, 65536).decode()
    os.close(controller)
    assert "[##############################] 0.0 of 0.0 GB" in shown
    assert shown.endswith("\r\033[K")
