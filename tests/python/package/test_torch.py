# SPDX-License-Identifier: BSD-2-Clause
import json
import os
import struct

import pytest

torch = pytest.importorskip("torch")

import sluice  # noqa: E402
from sluice.torch import RecordDataset  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def bytes_of(tensor):
    return bytes(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).tolist())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64])
def test_tensors_of_all_types(path, content, device, dtype):
    target = torch.zeros((3, 100), dtype=dtype, device=device)
    with sluice.open(path) as file:
        result = file.read_into(target[1], 77)
        assert result.bytes == 100 * dtype.itemsize
        assert file.route(target).route == result.route or device == "cuda"
    assert bytes_of(target[1]) == content[77:77 + 100 * dtype.itemsize]
    assert not any(bytes_of(target[0])) and not any(bytes_of(target[2]))


@pytest.mark.parametrize("device", DEVICES)
def test_read_waits_for_work_in_the_stream(path, content, device):
    with sluice.open(path) as file:
        for _ in range(20):
            target = torch.empty(len(content), dtype=torch.uint8, device=device).fill_(7)
            file.read_into(target)
            assert target.sum(dtype=torch.int64).item() == sum(content)


def test_parameters(path, content):
    parameter = torch.nn.Parameter(torch.zeros(10))
    with sluice.open(path) as file:
        file.read_into(parameter)
    assert bytes_of(parameter) == content[:40]


@pytest.mark.parametrize("device", DEVICES)
def test_writing(folder, device):
    source = torch.arange(1000, dtype=torch.int32, device=device)
    with sluice.open(folder / "new", "w+") as file:
        assert file.write_from(source).bytes == 4000
        assert file.read() == bytes_of(source)


def test_unusable_tensors_are_refused(path):
    square = torch.zeros(10, 10)
    with sluice.open(path) as file:
        for target, message in ((square.T, "not contiguous"), (square[:, 1:], "not contiguous"),
                                  (square.to_sparse(), "to_dense"), (torch.zeros(3, device="meta"), "'meta'"),
                                  (torch.zeros(3, dtype=torch.complex64).conj(), "resolve_conj")):
            with pytest.raises(ValueError, match=message):
                file.read_into(target)


def test_tensors_without_memory_are_refused(path):
    class Wrapper(torch.Tensor):  # like a DTensor
        def __new__(cls):
            return torch.Tensor._make_wrapper_subclass(cls, (3,))

        @classmethod
        def __torch_dispatch__(cls, *_):
            raise NotImplementedError

    with sluice.open(path) as file, pytest.raises(ValueError, match="no memory of its own"):
        file.read_into(Wrapper())


def test_registered_tensor_that_moves_is_detected(path):
    tensor = torch.zeros(10)
    with sluice.open(path) as file, sluice.register(tensor) as buffer:
        file.read_into(buffer)
        tensor.data = torch.zeros(20)
        with pytest.raises(ValueError, match="moved to other memory"):
            file.read_into(buffer)


TYPES = {"F64": torch.float64, "I64": torch.int64, "C64": torch.complex64, "F32": torch.float32, "BF16": torch.bfloat16,
         "F16": torch.float16, "I16": torch.int16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
         "U8": torch.uint8, "BOOL": torch.bool}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pad", [0, 1, 4])
@pytest.mark.parametrize("backwards", [False, True])
def test_safetensors_of_all_types(folder, device, pad, backwards):
    order = list(TYPES.items())[::-1 if backwards else 1]
    header, data, expected = {}, b"", {}
    for name, dtype in order:
        tensor = (torch.rand(3, 5) * 10).to(dtype)
        raw = bytes_of(tensor)
        header[name] = {"dtype": name, "shape": [3, 5], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
        expected[name] = tensor
    text = json.dumps(header).encode() + b" " * pad
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    tensors = sluice.load_safetensors(folder, device=device)
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert tensors[name].dtype == tensor.dtype and tensors[name].shape == tensor.shape
        assert tensors[name].device.type == device
        assert bytes_of(tensors[name]) == bytes_of(tensor)
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == 1


def test_files_of_the_safetensors_package(folder):
    library = pytest.importorskip("safetensors.torch")
    saved = {"a": torch.rand(100, 10), "b": torch.rand(7).to(torch.bfloat16), "c": torch.arange(5), "d": torch.ones(3) > 0,
             "e": torch.zeros(0, 3), "f": torch.tensor(5.0)}
    library.save_file(saved, folder / "model.safetensors", {"format": "pt"})
    loaded = sluice.load_safetensors(folder / "model.safetensors")
    assert loaded.keys() == saved.keys()
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)


@pytest.mark.parametrize("device", DEVICES)
def test_layers(folder, device):
    library = pytest.importorskip("safetensors.torch")
    saved = {f"model.layers.{i}.{name}": torch.rand(100, 100) for i in range(12) for name in ("up", "down")}
    library.save_file(saved, folder / "model.safetensors")
    seen = 0
    for key, tensors in sluice.stream_layers(folder, device=device):
        assert key == f"model.layers.{seen}"
        for name, tensor in tensors.items():
            assert torch.equal(tensor.cpu(), saved[name])
        seen += 1
    assert seen == 12


@pytest.fixture
def records(folder):
    path = folder / "records"
    path.write_bytes(torch.arange(1000 * 16, dtype=torch.int32).numpy().tobytes())
    return path


def test_records(records):
    dataset = RecordDataset(records, dtype=torch.int32, shape=(4, 4))
    assert len(dataset) == 1000
    assert torch.equal(dataset[7], torch.arange(7 * 16, 8 * 16, dtype=torch.int32).reshape(4, 4))
    assert torch.equal(dataset[-1], dataset[999])
    assert dataset.batch([5, 3, 5]).shape == (3, 4, 4)
    assert dataset.batch([]).shape == (0, 4, 4)
    assert len(RecordDataset(records, 64)) == 1000
    for index in (1000, -1001):
        with pytest.raises(IndexError):
            dataset[index]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_with_workers(records, workers):
    dataset = RecordDataset(records, dtype=torch.int32, shape=(16,))
    dataset.batch(range(1000))  # used before the workers are forked
    loader = torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=workers, timeout=30 * (workers > 0))
    rows = torch.cat(list(loader))
    assert torch.equal(rows[rows[:, 0].argsort()].flatten(), torch.arange(16_000, dtype=torch.int32))


def test_wrong_records_are_refused(records):
    with pytest.raises(ValueError, match="not a multiple of the record size"):
        RecordDataset(records, 7)
    with pytest.raises(ValueError, match="at least one byte"):
        RecordDataset(records, 0)
    for arguments in ({}, {"record_bytes": 4, "dtype": torch.int8, "shape": (4,)}, {"dtype": torch.int8}):
        with pytest.raises(TypeError, match="pass record_bytes, or dtype and shape"):
            RecordDataset(records, **arguments)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_that_are_read_ahead(records, workers, shuffle):
    batches = RecordDataset(records, dtype=torch.int32, shape=(4, 4)).batches(64, shuffle=shuffle)
    loader = torch.utils.data.DataLoader(batches, batch_size=None, num_workers=workers, timeout=60 * (workers > 0),
                                         persistent_workers=workers > 0)
    assert len(loader) == 16
    orders = []
    for epoch in (0, 1, 0):
        batches.set_epoch(epoch)
        found = list(loader)  # all are in use at once
        assert [len(batch) for batch in found] == [64] * 15 + [40]
        rows = torch.cat(found).flatten(1)
        assert torch.equal(rows[rows[:, 0].argsort()].flatten(), torch.arange(16_000, dtype=torch.int32))
        orders.append(rows[:, 0] // 16)
    assert torch.equal(orders[0], orders[2])
    assert torch.equal(orders[0], orders[1]) != shuffle
    assert torch.equal(orders[0], torch.arange(1000)) != shuffle


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ahead", [0, 1, 20])
def test_memory_of_batches_is_used_again_when_they_are_gone(records, device, ahead):
    batches = RecordDataset(records, 64, device=device).batches(7, shuffle=True, ahead=ahead)
    kept, seen = [], 0
    for number, batch in enumerate(batches):
        assert batch.device.type == device
        kept += [(batch[3:5], batch[3:5].clone())] if number % 3 == 0 and len(batch) == 7 else []
        seen += len(batch)
        batch.fill_(99) if number % 3 else None
        del batch
    assert seen == 1000
    assert all(torch.equal(view, copy) for view, copy in kept)


def test_a_program_may_keep_any_number_of_batches(records):
    """Without a descriptor for each."""
    before = len(os.listdir("/proc/self/fd"))
    kept = list(RecordDataset(records, dtype=torch.int32, shape=(16,)).batches(1, ahead=3))
    assert len(os.listdir("/proc/self/fd")) < before + 100
    assert torch.equal(torch.cat(kept).flatten(), torch.arange(16_000, dtype=torch.int32))
    del kept
    assert len(os.listdir("/proc/self/fd")) < before + 10


def test_batches_larger_than_a_ring(folder):
    content = torch.randint(0, 255, (40_000, 3), dtype=torch.uint8)
    (folder / "many").write_bytes(content.numpy().tobytes())
    (batch,) = RecordDataset(folder / "many", 3).batches(50_000, shuffle=True)
    assert torch.equal(batch.sort(0)[0], content.sort(0)[0])


def test_shares_of_ranks(records):
    dataset = RecordDataset(records, 64)
    for drop_last, length in ((False, 334), (True, 333)):
        shares = [torch.cat(list(dataset.batches(50, shuffle=True, seed=3, drop_last=drop_last, rank=rank, ranks=3)))
                  for rank in range(3)]
        assert {len(share) for share in shares} == {length // 50 * 50 if drop_last else length}
        firsts = torch.cat(shares)[:, :4].contiguous().view(torch.int32).flatten().tolist()
        assert len(set(firsts)) == (900 if drop_last else 1000)
    with pytest.raises(ValueError, match="rank 3 is not one of 3"):
        dataset.batches(5, rank=3, ranks=3)


def test_batches_that_are_left_early(records):
    dataset = RecordDataset(records, 64)
    for _ in range(5):
        for batch in dataset.batches(10, ahead=8):
            break
        assert batch.shape == (10, 64)
    for wrong in ({"batch_size": 0}, {"batch_size": 1, "ahead": -1}):
        with pytest.raises(ValueError, match="batch_size must be 1 or more"):
            dataset.batches(**wrong)


def test_a_file_that_becomes_shorter(records):
    batches = iter(RecordDataset(records, 64).batches(10, ahead=1))
    next(batches)
    with open(records, "r+b") as file:
        file.truncate(1000)
    with pytest.raises(ValueError, match="became shorter"):
        list(batches)
