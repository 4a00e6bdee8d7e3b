# SPDX-License-Identifier: BSD-2-Clause
"""sluice.accelerate with the real torch.load: the same results as the original."""
import gzip
import io
import pickle

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from accelerated import read_bytes, reasons, same, some  # noqa: E402


class Own:
    """weights_only refuses it."""

    def __setstate__(self, state):
        self.total = float(state["tensor"].double().sum())  # reads the bytes while the file is unpickled


@pytest.fixture
def checkpoint(mount):
    base = torch.arange(5000.0)
    things = {"weight": some(torch.bfloat16, (300, 200)), "part": base[3:50], "rest": base[7:], "none": torch.zeros(0),
              "parameter": torch.nn.Parameter(torch.rand(30, 30)), "transposed": torch.rand(20, 30).T, "step": 7,
              "sparse": torch.eye(4).to_sparse(), "flag": torch.tensor(True), "nested": {"list": [torch.ones(2), "text"]}}
    torch.save(things, mount / "a.pt")
    return mount / "a.pt", things


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("place", ["gpu", "device", "dict", None, "cpu", "function", "meta"])
def test_torch_load(checkpoint, gpu, mmap, opened, place):
    path, things = checkpoint
    if mmap and opened:
        pytest.skip("torch maps only paths")
    places = {"gpu": str(gpu), "device": gpu, "dict": {"cpu": str(gpu)}, "function": lambda storage, location: storage}
    where = places.get(place, place)
    if place == "meta":  # torch can't load sparse tensors there
        torch.save({name: thing for name, thing in things.items() if name != "sparse"}, path)
        del things["sparse"]
    before = read_bytes()
    with open(path, "rb") as file:
        found = torch.load(file if opened else path, map_location=where, **({"mmap": True} if mmap else {}))
    assert found.keys() == things.keys() and found["step"] == 7
    for name in "weight", "part", "rest", "none", "parameter", "transposed", "flag":
        assert type(found[name]) is type(things[name])
        if place == "meta":
            assert found[name].is_meta
        else:
            same(found[name].data, things[name].data)
    if place != "meta":
        assert torch.equal(found["sparse"].to_dense().cpu(), torch.eye(4)) and found["nested"]["list"][1] == "text"
        assert found["part"].untyped_storage().data_ptr() == found["rest"].untyped_storage().data_ptr()
    assert (read_bytes() > before) == (place in ("gpu", "device", "dict"))
    assert not reasons()


@pytest.mark.parametrize("wrap", [lambda file: file, io.BufferedReader])
def test_torch_load_of_a_file_in_a_file(mount, gpu, wrap):
    """Nothing is compressed here, so the archive can be found in the outer file, too, but not at the offsets of the inner one."""
    things = {"first": torch.rand(1000), "second": torch.rand(1000)}
    inner = io.BytesIO()
    torch.save(things, inner)
    (mount / "a.pt.gz").write_bytes(gzip.compress(inner.getvalue(), compresslevel=0))
    before = read_bytes()
    with gzip.open(mount / "a.pt.gz") as file:
        found = torch.load(wrap(file), map_location=gpu)
    for name, tensor in things.items():
        same(found[name], tensor)
    assert read_bytes() == before
    with open(mount / "a.pt.gz", "wb", buffering=0) as file:
        file.write(inner.getvalue())
    with open(mount / "a.pt.gz", "rb", buffering=0) as file:
        same(torch.load(file, map_location=gpu)["second"], things["second"])
    assert read_bytes() > before


def test_torch_load_refuses_what_it_refused(checkpoint, mount, gpu):
    with pytest.raises(Exception, match="location of torch.storage.UntypedStorage .tagged with no"):
        torch.load(checkpoint[0], map_location="no")
    own = Own()
    own.tensor = torch.ones(100_000)
    torch.save({"own": own, "other": torch.ones(10)}, mount / "own.pt")
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        torch.load(mount / "own.pt", map_location=gpu)
    assert torch.load(mount / "own.pt", map_location=gpu, weights_only=False)["own"].total == 100_000
    (mount / "cut.pt").write_bytes(checkpoint[0].read_bytes()[:-30])
    with pytest.raises(RuntimeError, match="failed finding central directory"):
        torch.load(mount / "cut.pt", map_location=gpu)
    torch.save(torch.ones(7), mount / "old.pt", _use_new_zipfile_serialization=False)
    assert torch.equal(torch.load(mount / "old.pt").cpu(), torch.ones(7))
