# SPDX-License-Identifier: BSD-2-Clause
"""Checkpoints of torch.distributed.checkpoint, also of two processes."""
import itertools
import os
import pathlib
import pickle
import random
import subprocess
import sys
import tempfile
import time

import pytest
from conftest import MOUNT

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

from torch.distributed.checkpoint import CheckpointException  # noqa: E402

import sluice  # noqa: E402
from sluice.integrations import checkpoint  # noqa: E402
from sluice.integrations.checkpoint import Reader, Writer  # noqa: E402

RANKS = pathlib.Path(__file__).parent / "checkpoint_ranks.py"
numbers = itertools.count()


def start(tmp_path, folder, ranks, *command):
    """Starts the ranks of a program. They find each other by a file."""
    rendezvous = tmp_path / f"rendezvous.{next(numbers)}"
    return [subprocess.Popen([sys.executable, RANKS, str(rank), str(ranks), rendezvous, folder, *command],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(ranks)]


def run(tmp_path, folder, ranks, *command):
    processes = start(tmp_path, folder, ranks, *command)
    outputs = [process.communicate(timeout=120) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return outputs[0][0]


@pytest.fixture
def place(tmp_path):
    """On the mount if there is one: starting processes takes long, so not in both."""
    if not MOUNT:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="python-", dir=MOUNT) as path:
        yield pathlib.Path(path)


def state(number=0):
    return {"a": torch.rand(100, 30) + number, "b": {"c": torch.arange(50) + number, "d": [number, "text"]}}


def empty():
    return {"a": torch.zeros(100, 30), "b": {"c": torch.zeros(50, dtype=torch.int64), "d": None}}


def same(one, other):
    return torch.equal(one["a"], other["a"]) and torch.equal(one["b"]["c"], other["b"]["c"]) and one["b"]["d"] == other["b"]["d"]


def files(folder):
    return sorted(name for name in os.listdir(folder) if name != ".metadata")


def test_one_process(folder):
    for number in range(3):
        saved, found = state(number), empty()
        dcp.save(saved, storage_writer=Writer(folder / "c"))
        dcp.load(found, storage_reader=Reader(folder / "c"))
        assert same(found, saved)
        assert len(files(folder / "c")) == 1  # those of the checkpoint before are gone
    (name,) = files(folder / "c")
    assert torch.equal(sluice.load_safetensors(folder / "c" / name)["0:a"], saved["a"])


def test_checkpoint_id_and_async(folder):
    saved, found = state(), empty()
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    try:
        dcp.async_save(saved, checkpoint_id=folder / "c", storage_writer=Writer(folder / "unused")).result()
    finally:
        torch.distributed.destroy_process_group()
    dcp.load(found, checkpoint_id=folder / "c", storage_reader=Reader(folder / "unused"))
    assert same(found, saved)


def test_checkpoints_of_torch_can_be_read(folder):
    saved, found = state(), empty()
    dcp.save(saved, storage_writer=dcp.FileSystemWriter(folder / "c"))
    dcp.load(found, storage_reader=Reader(folder / "c"))
    assert same(found, saved)
    dcp.save(saved, storage_writer=Writer(folder / "c"))
    assert not [name for name in files(folder / "c") if name.endswith(".distcp")]


def test_conjugates_and_negatives(folder):
    numbers = [torch.rand(5, 4, dtype=each) for each in (torch.complex64, torch.complex128)]
    saved = {f"{number}": view for number, view in enumerate(
        view for each in numbers for view in (each.conj(), each.conj().imag, each.conj()[1:3], each.conj().T))}
    assert saved["0"].is_conj() and saved["1"].is_neg()
    dcp.save(saved, storage_writer=Writer(folder / "c"))
    plain = {name: torch.zeros(each.shape, dtype=each.dtype) for name, each in saved.items()}
    views = {name: torch.zeros(each.shape, dtype=each.dtype).conj() if each.is_complex() else
             torch.zeros(each.shape, dtype=torch.complex64 if each.dtype == torch.float32 else torch.complex128).conj().imag
             for name, each in saved.items()}
    for found in (plain, views):
        dcp.load(found, storage_reader=Reader(folder / "c"))
        assert all(torch.equal(found[name], each) for name, each in saved.items())


def test_the_folder_of_another_checkpoint_can_be_refused(folder):
    dcp.save(state(), storage_writer=Writer(folder / "c"))
    with pytest.raises(CheckpointException, match="has a checkpoint"):
        dcp.save(state(), storage_writer=Writer(folder / "c", overwrite=False))
    save_alone(state(), folder / "alone")
    with pytest.raises(CheckpointException, match="has a checkpoint"):
        dcp.save(state(), storage_writer=Writer(folder / "alone", overwrite=False))
    with pytest.raises(RuntimeError, match="has a checkpoint"):
        dcp.save(state(), storage_writer=Writer(folder / "alone", overwrite=False), use_collectives=False)


def save_alone(saved, folder):
    """As one of many ranks that have a .metadata each."""
    dcp.save(saved, storage_writer=Writer(folder), use_collectives=False)


def test_a_rank_that_saves_alone(folder):
    for number in range(2):
        saved, found = state(number), empty()
        save_alone(saved, folder / "c")
        dcp.load(found, storage_reader=Reader(folder / "c"))
        assert same(found, saved)
        assert len(files(folder / "c")) == 2  # with __0.metadata
    dcp.save(saved, storage_writer=Writer(folder / "c"))
    assert len(files(folder / "c")) == 1


def test_a_rank_that_saves_alone_does_not_replace_the_checkpoint_of_all_ranks(folder):
    saved, found = state(1), empty()
    dcp.save(saved, storage_writer=Writer(folder / "c"))
    before = files(folder / "c")
    with pytest.raises(RuntimeError, match="all ranks saved together"):
        save_alone(state(2), folder / "c")
    assert files(folder / "c") == before
    dcp.load(found, storage_reader=Reader(folder / "c"))
    assert same(found, saved)


def test_a_save_that_fails_leaves_the_checkpoint_before(folder, monkeypatch):
    saved = state(1)
    dcp.save(saved, storage_writer=Writer(folder / "c"))
    before = files(folder / "c")

    def fails(path, *_):
        raise sluice.Error(28, f"save {path}: No space left on device", str(path))

    for where in ("write_pieces", "pickle.dumps"):
        with monkeypatch.context() as context:
            context.setattr(checkpoint.pickle if "." in where else checkpoint, where.rpartition(".")[2], fails)
            with pytest.raises(CheckpointException, match="No space left"):
                dcp.save(state(2), storage_writer=Writer(folder / "c"))
        found = empty()
        dcp.load(found, storage_reader=Reader(folder / "c"))
        assert same(found, saved)
    dcp.save(saved, storage_writer=Writer(folder / "c"))
    assert len(files(folder / "c")) == len(before)


@pytest.mark.parametrize("save", [lambda saved, folder: dcp.save(saved, storage_writer=Writer(folder)), save_alone])
@pytest.mark.parametrize("has_one_before", [True, False])
def test_saves_that_fail_do_not_pile_up(folder, monkeypatch, save, has_one_before):
    saved = state(1)
    (folder / "c").mkdir()
    others = {"__0_notes.safetensors", "__x_0123.safetensors", "0_0123.safetensors", "__1_0.distcp"}
    for name in others:
        (folder / "c" / name).write_bytes(b"of somebody else")
    if has_one_before:
        save(saved, folder / "c")
        others &= set(files(folder / "c"))
    before = files(folder / "c")

    def fails(_):
        raise OSError(28, "No space left on device")

    for _ in range(3):
        (folder / "c" / ".__0_0123_4567.safetensors.89ab.saving").write_bytes(b"of a rank that was killed")
        with monkeypatch.context() as context:
            context.setattr(checkpoint.pickle, "dumps", fails)
            with pytest.raises((CheckpointException, OSError), match="No space left"):
                save(state(2), folder / "c")
        assert len(files(folder / "c")) == len(before) + 1
        assert set(before) <= set(files(folder / "c"))
    if has_one_before:
        found = empty()
        dcp.load(found, storage_reader=Reader(folder / "c"))
        assert same(found, saved)


def test_a_rank_that_saves_alone_leaves_the_files_of_others(folder):
    (folder / "c").mkdir()
    names = {"__0_0123_4567.safetensors", "__1_0123_4567.safetensors", "__01_0123_4567.safetensors"}
    for name in names:
        (folder / "c" / name).write_bytes(b"in progress")
    save_alone(state(), folder / "c")
    assert names - set(files(folder / "c")) == {"__0_0123_4567.safetensors"}


def test_a_damaged_checkpoint_is_refused(folder):
    dcp.save(state(), storage_writer=Writer(folder / "c"))
    metadata = pickle.loads((folder / "c" / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        info.offset += 8
    (folder / "c" / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointException, match="as .metadata says"):
        dcp.load(empty(), storage_reader=Reader(folder / "c"))
    (name,) = files(folder / "c")
    os.truncate(folder / "c" / name, 5000)
    with pytest.raises(CheckpointException, match="data_offsets|bytes"):
        dcp.load(empty(), storage_reader=Reader(folder / "c"))


def test_two_processes_save_and_others_load(tmp_path, place):
    run(tmp_path, place / "c", 2, "save", "7")
    assert len(files(place / "c")) == 2
    run(tmp_path, place / "c", 2, "load", "7")
    run(tmp_path, place / "c", 1, "save", "8")
    assert len(files(place / "c")) == 1
    run(tmp_path, place / "c", 2, "load", "8")


def test_killed_processes_leave_a_checkpoint_to_restart_from(tmp_path, place):
    run(tmp_path, place / "c", 2, "save", "0")
    last = 0
    for attempt in range(2):
        processes = start(tmp_path, place / "c", 2, "save-forever", str(last))
        begun = [int(processes[0].stdout.readline()) for _ in range(2)][1]  # so the first was saved
        assert begun == last + 2
        time.sleep(random.Random(attempt).uniform(0, 0.3))
        processes[attempt % 2].kill()  # the other one may wait for it for ever, or save its part
        time.sleep(0.05)
        processes[1 - attempt % 2].kill()
        begun = max([begun, *map(int, processes[0].communicate()[0].split())])
        processes[1].communicate()
        found = int(run(tmp_path, place / "c", 2, "load-any"))
        assert found in {begun - 1, begun} and found > last
        last = found
    run(tmp_path, place / "c", 2, "save", "99")
    assert len(files(place / "c")) == 2  # nothing is left of the killed ones
