# SPDX-License-Identifier: BSD-2-Clause
"""The parts of aibench. Each creates its files, measures its ways in turn, and checks every byte."""
import json
import os
import subprocess
import sys
import time

import sluice
from aibench_report import Row
from aibench_site import BLOCK, Skip, say, text_of_size, torch


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


PARTS = {"load": load, "first": first, "hbm": hbm}
