# SPDX-License-Identifier: BSD-2-Clause
"""The copier for the package fastsafetensors, with the loaders of the package."""
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("fastsafetensors")
save_file = pytest.importorskip("safetensors.torch").save_file

from fastsafetensors import SingleGroup  # noqa: E402
from fastsafetensors.copier import registry  # noqa: E402
from fastsafetensors.loader import BaseSafeTensorsFileLoader, SafeTensorsFileLoader  # noqa: E402
from fastsafetensors.parallel_loader import ParallelLoader  # noqa: E402
from fastsafetensors.st_types import Device  # noqa: E402

from sluice.integrations import fastsafetensors as ours  # noqa: E402

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.float8_e4m3fn, torch.bool]


@pytest.fixture(autouse=True)
def small_reads(monkeypatch):
    monkeypatch.setattr(ours, "READ_BYTES", 100_000)


@pytest.fixture
def enabled():
    before = dict(registry._copier_registry)
    ours.enable()
    yield before
    registry._copier_registry.update(before)


@pytest.fixture
def files(folder):
    """Two files with tensors of many types and sizes."""
    saved = {}
    for part in range(2):
        tensors = {f"{part}.{i}": (torch.rand(37 * (i + 1), 211) * 100).to(dtype) for i, dtype in enumerate(TYPES)}
        tensors[f"{part}.none"] = torch.zeros(0, 5)
        save_file(tensors, folder / f"{part}.safetensors")
        saved[str(folder / f"{part}.safetensors")] = tensors
    return saved


def same(found, expected):
    return found.dtype == expected.dtype and torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


class Used:
    """Counts the copiers that were made."""

    def __init__(self, monkeypatch):
        self.count, original = 0, ours.Copier.__init__

        def init(copier, *arguments):
            self.count += 1
            original(copier, *arguments)

        monkeypatch.setattr(ours.Copier, "__init__", init)


def load(loader, files):
    loader.add_filenames({0: list(files)})
    buffers = loader.copy_files_to_device()
    for tensors in files.values():
        for name, expected in tensors.items():
            assert same(buffers.get_tensor(name), expected), name
    buffers.close()
    loader.close()


def test_the_copier_by_its_name(files, monkeypatch):
    used = Used(monkeypatch)
    load(BaseSafeTensorsFileLoader(None, Device.from_str("cpu"), "sluice", set_numa=False), files)
    assert used.count == 2


@pytest.mark.parametrize("nogds", [True, False])
def test_only_files_on_a_mount_are_read_by_sluice(files, folder, tmp_path, enabled, monkeypatch, nogds):
    used = Used(monkeypatch)
    load(SafeTensorsFileLoader(None, "cpu", nogds=nogds, set_numa=False), files)
    assert used.count == (0 if folder == tmp_path else 2)


def test_as_vllm_loads(files, enabled):
    loader = ParallelLoader(pg=SingleGroup(), hf_weights_files=list(files), queue_size=0, use_tqdm_on_load=False,
                            device="cpu", nogds=True)
    found = dict(loader.iterate_weights())
    loader.close()
    expected = {name: tensor for tensors in files.values() for name, tensor in tensors.items()}
    assert found.keys() == expected.keys()
    assert all(same(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("options", [{"max_batch_bytes": 400_000}, {"tensor_filter": lambda name: name.endswith(("3", "5"))},
                                     {"device_memory_budget": 10_000_000}])
def test_parts_of_files(files, enabled, options):
    loader = BaseSafeTensorsFileLoader(None, Device.from_str("cpu"), "sluice", set_numa=False)
    if not hasattr(loader, "_set_chunk_plan"):
        pytest.skip("this version of fastsafetensors can't load parts of files")
    from fastsafetensors.parallel_loader import PipelineParallel
    pipeline = PipelineParallel(SingleGroup(), loader, list(files), use_tqdm_on_load=False, **options)
    keep = options.get("tensor_filter", lambda _: True)
    expected = {name: tensor for tensors in files.values() for name, tensor in tensors.items() if keep(name)}
    found = {name: tensor.clone() for name, tensor in pipeline.iterate_weights()}
    pipeline.close()
    assert found.keys() == expected.keys()
    assert all(same(found[name], expected[name]) for name in expected)


def test_a_tensor_can_be_used_when_its_bytes_are_there(files):
    loader = BaseSafeTensorsFileLoader(None, Device.from_str("cpu"), "sluice", set_numa=False)
    loader.add_filenames({0: list(files)})
    try:
        buffers = loader.copy_files_to_device(allow_inflight=True)
    except TypeError:
        pytest.skip("this version of fastsafetensors waits for whole files")
    for tensors in files.values():
        for name, expected in reversed(tensors.items()):
            assert same(buffers.get_tensor(name), expected), name
    buffers.close()


@pytest.mark.parametrize("change", ["replaced", "shorter"])
def test_a_file_that_changes_is_refused(files, change):
    loader = BaseSafeTensorsFileLoader(None, Device.from_str("cpu"), "sluice", set_numa=False)
    loader.add_filenames({0: list(files)})
    path = list(files)[1]
    if change == "replaced":
        save_file({"other": torch.rand(1000)}, path)
    else:
        with open(path, "r+b") as file:
            file.truncate(1000)
    with pytest.raises(ValueError, match="was replaced after its header was read"):
        loader.copy_files_to_device()


def test_a_read_that_fails_is_an_error(files, monkeypatch):
    loader = BaseSafeTensorsFileLoader(None, Device.from_str("cpu"), "sluice", set_numa=False)
    loader.add_filenames({0: list(files)})
    original = ours.Copier._submit

    def submit(copier, *arguments):
        with open(copier.metadata.src, "r+b") as file:
            file.truncate(file.seek(0, 2) - 10)
        original(copier, *arguments)

    monkeypatch.setattr(ours.Copier, "_submit", submit)
    with pytest.raises(ValueError, match="became shorter while it was read"):
        loader.copy_files_to_device()


def test_without_libsluice_files_are_read_as_before(files):
    program = ("import sys; from sluice.integrations import fastsafetensors as f; f.enable(); f.enable()\n"
               "from fastsafetensors.loader import SafeTensorsFileLoader as L\n"
               "l = L(None, 'cpu', nogds=True, set_numa=False); l.add_filenames({0: [sys.argv[1]]})\n"
               "print(l.copy_files_to_device().get_tensor('0.0').shape)")
    done = subprocess.run([sys.executable, "-c", program, next(iter(files))], capture_output=True, text=True,
                          env={**os.environ, "SLUICE_LIBRARY": "/nonexistent"})
    assert "torch.Size([37, 211])" in done.stdout, done.stderr
