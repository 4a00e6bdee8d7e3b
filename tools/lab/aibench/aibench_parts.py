# SPDX-License-Identifier: BSD-2-Clause
"""The parts of aibench. Each creates its files, measures its ways in turn, and checks every byte."""
import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
import time

import numpy

import sluice
from aibench_report import Row
from aibench_site import BLOCK, Skip, say, text_of_size, torch


LARGEST_BATCH = 64  # larger ones can hang in cuFile's compatibility mode
QUIET = 11  # seconds after 'sluice gpu release', in which nothing is kept


class Runner:
    """Measures several ways of doing the same: one sample of each per round, starting with a different one each time."""

    def __init__(self, rounds):
        self.rows, self._rounds = [], rounds

    def compare(self, ways, rounds=None):
        """`ways` is (row, sample, warm-ups); sample() adds to its row, or raises Skip."""
        say(f"{ways[0][0].part}: {ways[0][0].case}")
        self.rows += [row for row, _, _ in ways]
        for row, sample, warm_ups in ways:
            for _ in range(warm_ups):
                self._sample(row, sample)
            row.samples.clear()
            row.cpu.clear()
        for turn in range(rounds or self._rounds):
            for row, sample, _ in ways[turn % len(ways):] + ways[:turn % len(ways)]:
                self._sample(row, sample)

    @staticmethod
    def _sample(row, sample):
        if row.skipped:
            return
        say(f"{row.part}: {row.case}: {row.way}", is_step=True)
        try:
            sample(row)
        except Exception as error:  # from another library: that way is skipped, and the others continue
            row.samples.clear()
            row.cpu.clear()
            row.skipped = (str(error).strip() or type(error).__name__).splitlines()[-1]


def _timed(site, row, size, work, check):
    """Adds one sample in GB/s of `work`. `check` counts the errors in its result."""
    site.synchronize()
    cpu, begin = site.cpu_seconds(), time.perf_counter()
    made = work()
    site.synchronize()
    seconds, cpu = time.perf_counter() - begin, site.cpu_seconds() - cpu
    row.samples.append(size / seconds / 1e9)
    row.cpu.append(cpu / (size / 1e9))
    row.wrong += check(made)


# Loading models


def load(site, runner, options):
    for case, model in (("one file", options.single), ("several files", options.sharded)):
        case += f", {text_of_size(model.size)}"
        ours = Row("load", case, "sluice.load_safetensors", "GB/s", ours=True)
        theirs = Row("load", case, "safetensors load_file", "GB/s")
        mapped = Row("load", case, "torch.load(mmap=True)", "GB/s")
        framework = "pt" if torch else "np"

        def load_ours(row, model=model):
            _timed(site, row, model.size, lambda: sluice.load_safetensors(model.folder, site.device, framework),
                   lambda tensors: model.wrong(site.content, tensors))
            if not row.note:
                row.note = f"the first load {row.samples[0]:.3g}"
            with sluice.open(model.files[0]) as file:
                target = torch.empty(BLOCK, dtype=torch.uint8, device=site.device) if torch else bytearray(BLOCK)
                row.note = f"{file.route(target).route}; {row.note.rpartition('; ')[2]}"

        def load_theirs(row, model=model):
            _timed(site, row, model.size, lambda: _load_file(model, site.device),
                   lambda tensors: model.wrong(site.content, tensors))

        # The first load copies, the second registers; the third is like all later ones.
        ways = [(ours, load_ours, 3), (theirs, load_theirs, 1)]
        if model is options.single:
            ways.append((mapped, lambda row: _torch_load(site, row, options), 1))
        runner.compare(ways)


def _load_file(model, device):
    if torch is None:
        import safetensors.numpy
        parts = [safetensors.numpy.load_file(path) for path in model.files]
    else:
        import safetensors.torch
        parts = [safetensors.torch.load_file(path, device=device) for path in model.files]
    return {name: tensor for part in parts for name, tensor in part.items()}


def _torch_load(site, row, options):
    if torch is None:
        raise Skip("no PyTorch")
    path, model = options.folder / "model.pt", options.saved
    if not path.exists():
        say("making model.pt")
        tensors = sluice.load_safetensors(options.single.folder)
        torch.save({name: tensors[name].clone() for name in model.tensors}, path)
    row.note = f"of a file of {text_of_size(model.size)}"

    def work():
        tensors = torch.load(path, mmap=True, map_location=site.device, weights_only=True)
        # On the host nothing has been read so far.
        return tensors if site.gpu else {name: tensor.clone() for name, tensor in tensors.items()}

    _timed(site, row, model.size, work, lambda tensors: model.wrong(site.content, tensors))


# Gathering records


def gather(site, runner, options):
    model = options.single
    for size in (512, 4096, 65536):
        count = min(1 << 21, options.gathered // size)
        _gather_case(site, runner, model.files[0], model.data_offset, model.size, size, count, f"{text_of_size(size)}, warm")
    if options.quick:
        return
    path = options.folder / "cold"
    with open(path, "wb", buffering=0) as file:
        say("creating the file for cold reads")
        site.content.write(file, 0, options.cold // BLOCK)
        os.fsync(file.fileno())
    _gather_case(site, runner, path, 0, options.cold, 4096, 16384, "4 KiB, cold", cold=True)


def _gather_case(site, runner, path, offset, size, record, count, case, cold=False):
    words = record // 8
    index = numpy.random.default_rng(record).integers(0, size // record, count)
    on_device = torch.from_numpy(index).to(site.device) if torch else index
    rows = [Row("gather", case, way, "M records/s", ours=way.startswith("sluice"))
            for way in ("sluice.gather, index on the GPU", "sluice.gather, index on the host", "numpy memmap and a copy",
                        "cuFile, 16 threads")]

    def sample(row, work):
        if cold:
            part = site.make_cold(path)
            row.note = f"{part:.0%} still cached" if part > 0.01 else ""
        site.synchronize()
        begin = time.perf_counter()
        records = work()
        site.synchronize()
        row.samples.append(count / (time.perf_counter() - begin) / 1e6)
        row.wrong += site.content.wrong_records(records, on_device)

    def ours(row, chosen):
        if not hasattr(sluice, "gather"):
            raise Skip("this version of the package sluice has no gather")
        dtype = torch.int64 if torch else numpy.int64
        sample(row, lambda: sluice.gather(path, chosen, dim=words, dtype=dtype, offset=offset, device=site.device))

    def by_memmap(row):
        below = site.below(path)

        def work():
            records = numpy.memmap(below, numpy.int64, "r", offset, (size // record, words))[index]
            return torch.from_numpy(records).to(site.device) if torch else records

        sample(row, work)

    def by_cufile(row):
        if cold:
            site.make_cold(path)
        _cufile(site, row, path, record, min(count, 1 << 16, (256 << 20) // record), 16, 0, cold)

    ways = [(rows[1], lambda row: ours(row, index), 0 if cold else 2), (rows[2], by_memmap, 0 if cold else 1),
            (rows[3], by_cufile, 0)]
    if site.gpu:
        ways.insert(0, (rows[0], lambda row: ours(row, on_device), 0 if cold else 2))
    runner.compare(ways, rounds=1 if cold else None)


def _cufile(site, row, path, size, reads, threads, batch, direct=False):
    command = [site.program("sluice-lab"), "cufilebench", site.below(path), "--size", size, "--reads", reads, "--threads", threads,
               "--batch", batch, *(["--direct"] if direct else [])]
    answer = run(command, 60)
    row.wrong += answer.get("wrong", 0)
    row.samples.append(answer["reads/s"] / 1e6)


def run(command, limit, **arguments):
    """The JSON that a program prints as its last line."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=limit, **arguments)
    except subprocess.TimeoutExpired:
        raise Skip(f"not finished after {limit} s") from None
    lines = done.stdout.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else {}
    except ValueError:
        answer = {}
    if done.returncode != 0:
        raise Skip(answer.get("skipped") or answer.get("failed") or (done.stderr.strip() or f"exit {done.returncode}"))
    return answer if isinstance(answer, dict) and answer else {"text": done.stdout}


# First loads

_LOAD_PROGRAM = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import sluice
from aibench_site import Content, Model, torch
device = "cuda" if torch and torch.cuda.is_available() else "cpu"
content, model = Content(device), Model(sys.argv[2], int(sys.argv[3]), 1)
if device == "cuda":
    torch.cuda.synchronize()
begin = time.perf_counter()
tensors = sluice.load_safetensors(model.folder, device, "pt" if torch else "np", **json.loads(sys.argv[4]))
if device == "cuda":
    torch.cuda.synchronize()
seconds = time.perf_counter() - begin
print(json.dumps({"GB/s": model.size / seconds / 1e9, "wrong": model.wrong(content, tensors)}))
"""


def new_process_environment():
    """For a Python that finds the same packages."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}


def _load_in_new_process(row, options, **arguments):
    answer = run([sys.executable, "-c", _LOAD_PROGRAM, os.path.dirname(__file__), options.single.folder, options.single.size,
                  json.dumps(arguments)], 300, env=new_process_environment())
    if "GB/s" not in answer:
        raise Skip(answer.get("text", "no answer"))
    row.samples.append(answer["GB/s"])
    row.wrong += answer["wrong"]


def first(site, runner, options):
    """Loads of new processes: after a start of the daemon, after a pause, and from the disk."""
    def load(row):
        _load_in_new_process(row, options)

    def row(case, way="sluice, new process"):
        return Row("first", case, way, "GB/s", ours=True)

    def after_start(row):
        row.note = f"ready after {site.restart():.1f} s"
        load(row)

    def after_pause(row):
        time.sleep(options.idle)
        load(row)

    size = text_of_size(options.single.size)
    runner.compare([(row(f"load after a start of the daemon, {size}"), after_start, 0)], rounds=1 if options.quick else 3)
    # The load after the start copies, the next registers.
    runner.compare([(row(f"load of a model in use, {size}"), load, 2)])
    runner.compare([(row(f"pause: load after {options.idle:g} s without reads, {size}"), after_pause, 0)], rounds=1)
    if options.quick:
        return
    cold, second = row(f"cold load, {size}"), row(f"second load after a cold one, {size}")

    def from_disk(row):
        site.restart()  # the kernel can't drop page cache that the daemon has registered
        row.note = f"{site.make_cold(options.single.files[0]):.0%} were cached"
        load(row)

    def from_disk_and_again(row):
        from_disk(row)
        load(second)

    runner.compare([(cold, from_disk_and_again, 0)], rounds=2)
    second.skipped = cold.skipped
    runner.rows.append(second)


# Files in GPU memory


def hbm(site, runner, options):
    """Loads and gathers of a file that the mount keeps in GPU memory. The mount needs the option hbm."""
    size, model = text_of_size(options.single.size), options.single
    needed = model.size + (1 << 30)

    def row(case, way="sluice, new process", unit="GB/s"):
        return Row("hbm", case, way, unit, ours=True)

    def need_tier():
        if not site.gpu:
            raise Skip("there is no GPU")
        if site.hbm().get("limit", 0) < needed:
            raise Skip(f"the mount keeps no file of {size} in GPU memory (option hbm)")

    def without(row):
        need_tier()
        site.release_hbm()  # nothing goes in during the next seconds
        _load_in_new_process(row, options)
        row.note = "page cache, nothing is kept"

    def fill(row):
        need_tier()
        site.release_hbm()
        time.sleep(QUIET)
        for _ in range(3):  # the file goes in when it is read a second time
            attempt = Row(row.part, row.case, row.way, row.unit)
            _load_in_new_process(attempt, options)
            row.wrong += attempt.wrong
            if site.hbm()["bytes"] >= model.size:
                row.samples += attempt.samples
                return
        raise Skip("the file did not go in")

    case = f"fill: load that also fills the tier, {size}"
    plain, filling = row(case, "sluice, without filling"), row(case, "sluice, filling")
    runner.compare([(plain, without, 1), (filling, fill, 0)], rounds=2)
    if plain.value and filling.value:
        filling.note = f"costs {plain.value / filling.value - 1:.0%}"

    def in_tier(row, **arguments):
        need_tier()
        _load_in_new_process(row, options, **arguments)

    runner.compare([(row(f"copied from GPU memory, {size}"), in_tier, 1)])
    for record in (512, 4096):
        count = 1 << 21
        index = torch.randint(model.size // record, (count,), device=site.device) if site.gpu else None

        def gathered(row, record=record, index=index):
            need_tier()
            site.synchronize()
            begin = time.perf_counter()
            records = sluice.gather(model.files[0], index, dim=record // 8, dtype=torch.int64, offset=model.data_offset, device=site.device)
            site.synchronize()
            row.samples.append(count / (time.perf_counter() - begin) / 1e6)
            row.wrong += site.content.wrong_records(records, index)

        runner.compare([(row(f"gather of {text_of_size(record)} records", "sluice.gather, index on the GPU", "M records/s"), gathered, 2)])

    # The last of these: a shared copy is not used to gather.
    runner.compare([(row(f"shared in GPU memory, {size}"), lambda row: in_tier(row, share=True), 1)])

    def given_back(row):
        need_tier()
        reserve = site.hbm()["reserve"]
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        begin = time.perf_counter()
        taken = torch.empty(free - reserve // 2, dtype=torch.uint8, device=site.device)
        while torch.cuda.mem_get_info()[0] < reserve and time.perf_counter() - begin < 5:
            time.sleep(0.001)
        row.samples.append(1 / (time.perf_counter() - begin))
        row.note = f"{1000 / row.samples[-1]:.0f} ms"
        del taken
        torch.cuda.empty_cache()

    runner.compare([(row("memory is back after hbm_reserve was undercut", "sluice", "times a second"), given_back, 0)], rounds=1)


# Rings


def rings(site, runner, options):
    path = options.single.files[0]
    for threads in (1, 8):
        many = "1 thread" if threads == 1 else f"{threads} threads"
        # Threads that wait for each read have no queue depth: measured once, shown at every depth.
        sync = Row("rings", "", f"cuFile, {many}", "M reads/s")
        for depth in (8, 128) if options.quick else (1, 8, 32, 128, 256):
            case = f"depth {depth}, {many}"
            ours = Row("rings", case, "sluice ring", "M reads/s", ours=True)
            batch = Row("rings", case, "cuFile, batches", "M reads/s")
            ways = [(ours, lambda row, d=depth, t=threads: _ring(site, row, path, d, t), 0)]
            if depth <= LARGEST_BATCH:
                ways.append((batch, lambda row, d=depth, t=threads: _cufile(site, row, path, 4096, 4096 * t, t, d), 0))
            if sync.case:
                runner.compare(ways, rounds=1)
                runner.rows.append(dataclasses.replace(sync, case=case))
            else:
                sync.case = case
                runner.compare([*ways, (sync, lambda row, t=threads: _cufile(site, row, path, 4096, 16384 * t, t, 0), 0)], rounds=1)


def _ring(site, row, path, depth, threads):
    memory = ["--gpu"] if site.gpu else []
    answer = run([site.program("example_ring_read"), *memory, "--depth", depth, "--threads", threads, "--size", 4096, path], 60)
    row.samples.append(_reads_a_second(answer) / 1e6)


def _reads_a_second(answer):
    """The rate, from JSON with such a key or from text like '1.25 M reads/s'."""
    for key, value in answer.items():
        if re.fullmatch(r"reads(/s|_per_s(econd)?)", key) and isinstance(value, (int, float)):
            return float(value)
    found = re.search(r"([\d.,]+)\s*([kM]?)\s*reads/s|reads/s\W+([\d.,]+)", answer.get("text", ""))
    if not found:
        raise Skip("the output has no reads/s")
    scale = {"k": 1e3, "M": 1e6}.get(found[2], 1)
    return float((found[1] or found[3]).replace(",", "")) * scale


# torch.cuda.gds

_GDS_PROGRAM = """
import json, os, sys, time
folder, path, offset, size, rounds = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
sys.path.insert(0, folder)
import torch.cuda.gds
from aibench_site import Content
content = Content("cuda")
words = torch.empty(size // 8, dtype=torch.int64, device="cuda")
storage = words.untyped_storage()
file = torch.cuda.gds.GdsFile(path, os.O_RDONLY)
rates = []
for _ in range(rounds):
    words.zero_()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    file.load_storage(storage, offset)
    torch.cuda.synchronize()
    rates.append(size / (time.perf_counter() - begin) / 1e9)
print(json.dumps({"GB/s": rates, "wrong": content.wrong(words, 0)}))
"""


def gds(site, runner, options):
    case = f"load_storage, {text_of_size(options.gds)}"
    ours = Row("gds", case, "sluice drop-in", "GB/s", ours=True)
    theirs = Row("gds", case, "NVIDIA's libcufile", "GB/s")
    library = site.build / "lib" / "dropin" / "libcufile.so.0"

    def sample(row, path, environment, rounds):
        if site.gpu is None:
            raise Skip("no GPU")
        if importlib.util.find_spec("torch.cuda.gds") is None:
            raise Skip(f"PyTorch {torch.__version__} has no torch.cuda.gds")
        answer = run([sys.executable, "-c", _GDS_PROGRAM, os.path.dirname(__file__), path, options.single.data_offset,
                      options.gds, rounds], 120, env={**os.environ, **environment})
        if "GB/s" not in answer:
            raise Skip(answer.get("text", "no answer"))
        # The first samples include the setup.
        row.samples += answer["GB/s"][rounds // 2:]
        row.wrong += answer["wrong"]

    def with_dropin(row):
        if not library.exists():
            raise Skip(f"{library} is not built")
        sample(row, options.single.files[0], {"LD_PRELOAD": str(library)}, 6)

    def without(row):
        # NVIDIA's library does not accept files of the mount.
        row.note = "on the tier itself" if site.mount else ""
        sample(row, site.below(options.single.files[0]), {}, 2)

    runner.compare([(ours, with_dropin, 0), (theirs, without, 0)], rounds=1)


PARTS = {"load": load, "gather": gather, "rings": rings, "gds": gds, "first": first, "hbm": hbm}
