# SPDX-License-Identifier: BSD-2-Clause
import array
import os
import pathlib
import random
import subprocess
import sys

import numpy as np
import pytest

import sluice

ROWS, DIM, HEADER = 3000, 96, 40


@pytest.fixture
def table():
    return np.random.default_rng(1).random((ROWS, DIM), np.float32)


@pytest.fixture
def rows(folder, table):
    path = folder / "rows"
    path.write_bytes(bytes(HEADER) + table.tobytes() + b"tail")
    return path


@pytest.fixture
def index():
    chosen = random.Random(2)
    return [0, ROWS - 1, 5, 5, 6, 7, *(chosen.randrange(ROWS) for _ in range(2000))]


def test_rows_come_in_the_order_of_the_index(rows, table, index):
    for numbers in (np.array(index), np.array(index, np.uint64), np.array(index, np.int16), np.array(index, ">i4")):
        got = sluice.gather(rows, numbers, DIM, np.float32, HEADER)
        assert isinstance(got, np.ndarray) and got.shape == (len(index), DIM) and got.dtype == np.float32
        assert np.array_equal(got, table[index])


def test_index_may_be_any_iterable_of_integers(rows, table, index):
    for numbers in (index, tuple(index), iter(index), array.array("i", index)):
        assert np.array_equal(sluice.gather(rows, numbers, dim=DIM, dtype="float32", offset=HEADER), table[index])
    assert np.array_equal(sluice.gather(rows, range(10, 20), DIM, "<f4", HEADER), table[10:20])
    assert np.array_equal(sluice.gather(rows, np.array(index)[::2], DIM, "f4", HEADER), table[index[::2]])


def test_bytes_are_an_index_of_small_numbers(rows, table):
    for kind in bytes, bytearray, memoryview:
        numbers = kind(bytes([7, 255, 7, 0, 1, 2, 3, 4]))
        assert np.array_equal(sluice.gather(rows, numbers, DIM, "float32", HEADER), table[list(numbers)])


def test_rows_of_bytes_need_no_library(rows, table):
    assert sluice.gather(rows, [7, 3], 4 * DIM, offset=HEADER) == table[[7, 3]].tobytes()
    got = sluice.gather(rows, np.array([7, 3]), dim=4 * DIM, offset=HEADER)
    assert got.dtype == np.uint8 and got.tobytes() == table[[7, 3]].tobytes()


def test_odd_sizes_and_offsets(rows):
    content = rows.read_bytes()
    got = sluice.gather(rows, [1000, 3, 1000], 3, offset=1)
    assert got == b"".join(content[1 + 3 * i:4 + 3 * i] for i in (1000, 3, 1000))


def test_rows_of_more_dimensions(rows, table, index):
    with sluice.open(rows) as file:
        got = file.gather(np.array(index), (8, 12), "float32", HEADER)
    assert got.shape == (len(index), 8, 12)
    assert np.array_equal(got, table[index].reshape(-1, 8, 12))


def test_an_index_of_more_dimensions(rows, table):
    numbers = np.arange(12).reshape(3, 4)[:, ::-1]
    assert np.array_equal(sluice.gather(rows, numbers, DIM, "float32", HEADER, device="cpu"), table[numbers])


def test_out_is_filled(rows, table, index):
    out = np.zeros((len(index), DIM), np.float32)
    with sluice.open(rows) as file:
        assert file.gather(index, offset=HEADER, out=out) is out
        assert np.array_equal(out, table[index])
        plain = bytearray(2 * 4 * DIM)
        assert sluice.gather(file, [9, 8], offset=HEADER, out=plain) is plain
        assert plain == table[[9, 8]].tobytes()
        with sluice.register(plain) as buffer:
            assert file.gather([1, 2], offset=HEADER, out=buffer) is buffer
            assert plain == table[[1, 2]].tobytes()
        with pytest.raises(ValueError, match="not a multiple of the 3 rows"):
            file.gather([1, 2, 3], out=bytearray(10))
        with pytest.raises(ValueError, match="dim and dtype say 400"):
            file.gather(index, 100, "float32", HEADER, out=out)
        with pytest.raises(ValueError, match="read-only"):
            file.gather([1], out=b"four")
        with pytest.raises(TypeError, match="pass device or out"):
            file.gather([1], out=plain, device="cpu")


def test_empty_index_gives_no_rows(rows):
    assert sluice.gather(rows, [], DIM, "float32").shape == (0, DIM)
    assert sluice.gather(rows, np.array([], np.int64), DIM, "float32").shape == (0, DIM)
    assert sluice.gather(rows, [], 4) == b""
    assert sluice.scatter(rows, [], b"").bytes == 0


def test_missing_row_raises_an_index_error(rows):
    with pytest.raises(IndexError, match=r"index\[1\] is 3000, but the file has 3000 whole records of 384 bytes"):
        sluice.gather(rows, [0, ROWS, ROWS + 1], DIM, "float32", HEADER)
    for numbers in ([3, -1], np.array([3, -1]), np.array([3, -1], np.int32)):
        with pytest.raises(IndexError, match=r"index\[1\] is -1: row numbers must not be negative"):
            sluice.gather(rows, numbers, DIM, "float32", HEADER)
    with pytest.raises(IndexError, match=r"index\[1\] is -1: row numbers must not be negative"):
        sluice.gather(rows, iter([3, -1]), DIM, "float32", HEADER)


def test_misuse_says_what_to_do(rows):
    with sluice.open(rows) as file:
        for numbers, message in (([1.5], "integers"), (np.array([1.5]), "astype"), (np.array([True]), "astype"),
                                   (None, "iterable"), (5, "iterable"), (["1"], "integers")):
            with pytest.raises(TypeError, match=message):
                file.gather(numbers, DIM)
        with pytest.raises(TypeError, match="pass dim"):
            file.gather([1])
        with pytest.raises(ValueError, match="at least one byte"):
            file.gather([1], 0)
        with pytest.raises(ValueError, match="dim must be"):
            file.gather([1], -4)
        with pytest.raises(ValueError, match="offset must be"):
            file.gather([1], 4, offset=-1)
    with pytest.raises(ValueError, match="closed"):
        file.gather([1], 4)
    with pytest.raises(sluice.Error, match="No such file"):
        sluice.gather(str(rows) + "-missing", [1], 4)


def test_rows_are_written(rows, table, index):
    values = np.random.default_rng(3).random((len(index), DIM), np.float32)
    result = sluice.scatter(rows, np.array(index), values, HEADER)
    assert result.bytes == values.nbytes and result.route == "host" and result.in_process
    for number, value in zip(index, values, strict=True):
        table[number] = value
    assert rows.read_bytes() == bytes(HEADER) + table.tobytes() + b"tail"
    with sluice.open(rows, "r+") as file:
        file.scatter([2, 1], b"twoone", offset=0)
        assert file.read(0, 9) == b"\0\0\0onetwo"
        with pytest.raises(IndexError, match=r"index\[0\] is 100000"):
            file.scatter([100_000], values[0], HEADER)
        with pytest.raises(ValueError, match="not a multiple"):
            file.scatter([1, 2], b"abc")
    with sluice.open(rows) as file, pytest.raises(sluice.Error, match="not open for writing"):
        file.scatter([1], b"abc")


def test_torch(rows, table, index):
    torch = pytest.importorskip("torch")
    for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
        for numbers in (torch.tensor(index, device=device), torch.tensor(index, device=device, dtype=torch.int32)):
            got = sluice.gather(rows, numbers, DIM, torch.float32, HEADER)
            assert got.device == numbers.device and got.dtype == torch.float32
            assert torch.equal(got.cpu(), torch.from_numpy(table[index]))
        got = sluice.gather(rows, index, DIM, "float32", HEADER, device=device)
        assert torch.equal(got.cpu(), torch.from_numpy(table[index])) and got.device.type == device
        out = torch.empty((len(index), DIM), device=device)
        assert sluice.gather(rows, np.array(index), offset=HEADER, out=out) is out
        assert torch.equal(out.cpu(), torch.from_numpy(table[index]))
        sluice.scatter(rows, torch.arange(ROWS, device=device), torch.from_numpy(table).to(device), HEADER)
        assert rows.read_bytes() == bytes(HEADER) + table.tobytes() + b"tail"
        with pytest.raises(TypeError, match="index.long"):
            sluice.gather(rows, torch.ones(3, device=device), DIM)
        with pytest.raises(IndexError, match=r"index\[0\] is -1"):
            sluice.gather(rows, torch.tensor([-1], device=device), DIM)


def test_types_of_python_are_those_of_torch(rows):
    torch = pytest.importorskip("torch")
    for kind in (float, int, complex, bool, np.float32, np.dtype("float64"), "bfloat16"):
        got = sluice.gather(rows, torch.tensor([3, 1]), 4, kind)
        if isinstance(kind, type) and not issubclass(kind, np.generic):
            assert got.dtype == torch.empty(0, dtype=kind).dtype == torch.from_numpy(np.empty(0, kind)).dtype
        raw = sluice.gather(rows, [3, 1], 4 * got.dtype.itemsize)
        assert bytes(got.flatten().view(torch.uint8).tolist()) == raw


def test_memory_of_a_gpu(rows):
    fake = os.environ.get("SLUICE_FAKE_CUDA")
    if not fake:
        pytest.skip("SLUICE_FAKE_CUDA, the path of the fake libcuda.so.1, is not given")
    program = pathlib.Path(__file__).parent / "fake_gpu_gather.py"
    done = subprocess.run([sys.executable, program, fake, rows], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all rows are right" in done.stdout
