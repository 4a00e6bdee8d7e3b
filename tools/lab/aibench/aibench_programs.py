# SPDX-License-Identifier: BSD-2-Clause
"""The part `programs` of aibench: other packages, as they are and with Sluice. Each sample is a new process (aibench_child),
but all saves are in one."""
import importlib.util
import json
import os
import pathlib
import shutil
import sys
import time

from aibench_parts import QUIET, new_process_environment, run
from aibench_report import Row
from aibench_site import Model, Skip, say, text_of_size

_CHILD = pathlib.Path(__file__).with_name("aibench_child.py")
_ACCELERATED = "sluice, SLUICE_ACCELERATE=1"
_OLD_ENOUGH = 2.5  # seconds after which the page cache of a changed file is registered
_LARGEST_SAVE = 4 << 30
_SAVES = 12  # the rate of a disk that others use, too, changes by a tenth from one file to the next
_LONGEST_SAVE = 60  # seconds
_LARGEST_TORCH = 8 << 30
_LARGEST_ELSEWHERE = 1 << 30
_ELSEWHERE_LOADS = 5
# NIXL's backend GDS makes batches of a transfer. In cuFile's compatibility mode a transfer of several never ends, and neither
# do transfers of more than about 128 blocks at a time.
_GDS_BATCH = 16
_GDS_TOGETHER = 8


class Programs:
    """Runs programs in new processes."""

    def __init__(self, site, runner, options):
        self.site, self.runner, self.options = site, runner, options
        # The first load copies, the second registers; the third is like all later ones.
        self.warm_ups = 1 if options.quick else 3

    def hbm_limit(self):
        """How much the mount may keep in GPU memory. It does not tell before its daemon has used the GPU."""
        return self.site.hbm().get("limit", 0) if self.site.gpu else 0

    def child(self, program, environment=None, limit=300, **arguments):
        """The answer of a program. A variable of the environment with the value None is removed."""
        variables = {**new_process_environment(), "SLUICE_ACCELERATE": None, **(environment or {})}
        return run([sys.executable, _CHILD, program, json.dumps(arguments)], limit,
                   env={name: value for name, value in variables.items() if value is not None})

    def sample(self, row, program, accelerate=False, keep_hbm=False, unit=1e9, **arguments):
        """Adds a sample of a program to a row. Returns its answer."""
        arguments["daemon"] = self.site.daemon
        if accelerate:
            arguments["environment"] = {"SLUICE_ACCELERATE": "1"}
        if row.ours and not keep_hbm and self.hbm_limit() > 0:
            # The file comes from the page cache, because nothing is kept during the next seconds.
            arguments["before"] = [self.site.program("sluice"), "gpu", "release", str(self.site.mount)]
        answer = self.child(program, **arguments)
        if answer["accelerated"] != accelerate:
            raise Skip(f"SLUICE_ACCELERATE is {'not ' if accelerate else ''}in effect")
        row.samples.append(answer["bytes"] / answer["seconds"] / unit)
        row.cpu.append(answer["cpu"] / (answer["bytes"] / 1e9))
        row.wrong += answer["wrong"]
        if accelerate:
            row.note = _how(answer)
        return answer

    @staticmethod
    def rows(case, theirs):
        return Row("programs", case, _ACCELERATED, "GB/s", ours=True), Row("programs", case, theirs, "GB/s")

    def compare(self, case, theirs, ours_at, theirs_at, **arguments):
        """A program with and without the variable. `ours_at` and `theirs_at` are the arguments that differ."""
        ours, other = self.rows(case, theirs)
        self.runner.compare([
            (ours, lambda row: self.sample(row, accelerate=True, **ours_at, **arguments), self.warm_ups),
            (other, lambda row: self.sample(row, **theirs_at, **arguments), 0 if self.options.quick else 1)])

    def skip(self, case, theirs, reason):
        """Adds the rows of a comparison that can't be made; without `theirs`, only ours."""
        for row in self.rows(case, theirs)[:2 if theirs else 1]:
            row.skipped = str(reason).splitlines()[-1]
            self.runner.rows.append(row)


def _how(answer):
    """How the bytes of an accelerated load came, or why it was none."""
    routes = answer["routes"] or ({answer["route"]: 1} if "route" in answer else {})
    words = max(routes, key=routes.get) if routes else "nothing was read by libsluice"
    return f"{words}; {answer['seconds']:.3g} s" + "".join(f"; {line}" for line in answer["warnings"][:1])


def transformers(programs):
    """from_pretrained of a model in several files: from the page cache, and from GPU memory."""
    site, options = programs.site, programs.options
    folder, tiny = options.folder / "transformers", options.folder / "tiny"
    theirs = "transformers as it is"
    say("programs: making a model for transformers")
    try:
        total = programs.child("make_transformers", folder=str(folder), tiny=str(tiny), size=options.size)["bytes"]
    except Skip as error:
        programs.skip("transformers: from_pretrained", theirs, error)
        return
    time.sleep(_OLD_ENOUGH)
    on_tier = {os.path.dirname(site.below(path)) for path in folder.iterdir()}
    plain = on_tier.pop() if len(on_tier) == 1 else str(folder)  # on several tiers, they are one folder only on the mount
    common = {"program": "load_transformers", "tiny": str(tiny), "size": total}
    size = f"{total / 1e9:.1f} GB"
    programs.compare(f"transformers: from_pretrained, {size}", theirs, {"folder": str(folder)}, {"folder": plain}, **common)

    case = f"transformers: files in GPU memory, {size}"
    if programs.hbm_limit() < total + (1 << 30):
        programs.skip(case, None, f"the mount keeps no {size} in GPU memory (option hbm)" if site.gpu else "there is no GPU")
    else:
        _from_gpu_memory(programs, case, theirs, {"folder": str(folder), **common}, {"folder": plain, **common})
    shutil.rmtree(folder, ignore_errors=True)


def _from_gpu_memory(programs, case, theirs, ours_at, theirs_at):
    site, ours, other = programs.site, *programs.rows(case, theirs)

    def fill():
        site.release_hbm()  # of other files
        time.sleep(QUIET)
        for _ in range(4):  # a file goes in when it is read a second time
            attempt = Row(ours.part, ours.case, ours.way, ours.unit, ours=True)
            programs.sample(attempt, accelerate=True, keep_hbm=True, **ours_at)
            ours.wrong += attempt.wrong
            if site.hbm()["bytes"] >= ours_at["size"]:
                return
        raise Skip("the files did not go in")

    def load(row):
        if not row.samples:
            fill()
        programs.sample(row, accelerate=True, keep_hbm=True, **ours_at)

    programs.runner.compare([(ours, load, 0), (other, lambda row: programs.sample(row, **theirs_at), 0)])


def load_file(programs):
    model = programs.options.single
    programs.compare(f"safetensors: load_file, {text_of_size(model.size)}", "safetensors as it is", {"folder": str(model.folder)},
                     {"folder": os.path.dirname(programs.site.below(model.files[0]))}, program="load_file", size=model.size)


def fastsafetensors(programs):
    model = programs.options.single
    programs.compare(f"fastsafetensors: nogds=True, {text_of_size(model.size)}", "fastsafetensors as it is", {"folder": str(model.folder)},
                     {"folder": os.path.dirname(programs.site.below(model.files[0]))}, program="load_fastsafetensors", size=model.size)


def torch_load(programs):
    options = programs.options
    path, size = options.folder / "programs.pt", min(options.size, _LARGEST_TORCH)
    case = f"torch: torch.load, {text_of_size(size)}"
    say("programs: making a file for torch.load")
    try:
        programs.child("make_torch", folder=str(options.single.folder), path=str(path), size=size)
    except Skip as error:
        programs.skip(case, "torch as it is", error)
        return
    time.sleep(_OLD_ENOUGH)
    programs.compare(case, "torch as it is", {"path": str(path)}, {"path": programs.site.below(path)}, program="load_torch", size=size)
    path.unlink(missing_ok=True)


def save(programs):
    """Saving from GPU memory, and plain writes to the folder of the same tier: of the same bytes, and of one block again and again.
    The latter is faster on some virtual machines, where a block that was written before seems to be in a cache."""
    options = programs.options
    size = min(options.size, _LARGEST_SAVE)
    case = f"save: {text_of_size(size)}, on the disk"
    rows = {"save": Row("programs", case, "sluice.save_safetensors", "GB/s", ours=True),
            "write": Row("programs", case, "plain writes of the same bytes", "GB/s"),
            "write_block": Row("programs", f"disk: {text_of_size(size)}", "plain writes of one block of 16 MiB", "GB/s")}
    rounds = options.rounds if options.quick else max(options.rounds, _SAVES)

    def in_turns(row):
        answer = programs.child("save", limit=_LONGEST_SAVE * len(rows) * (rounds + 1), path=str(options.folder / "saved.safetensors"), size=size,
                                rounds=rounds, daemon=programs.site.daemon)
        for way, each in rows.items():
            each.samples = [size / took["seconds"] / 1e9 for took in answer[way]]
            each.cpu = [took["cpu"] / (size / 1e9) for took in answer[way]]
        row.wrong, row.note = answer["wrong"], f"{rounds} in turns, in one process"
        for way in ("write", "write_block"):
            rows[way].note = "O_DIRECT" if answer["direct"] else "the filesystem has no O_DIRECT"

    programs.runner.compare([(rows["save"], in_turns, 0)], rounds=1)
    for way in ("write", "write_block"):
        programs.runner.rows.append(rows[way])
        rows[way].skipped = rows["save"].skipped


def nixl(programs):
    """Random blocks of a warm file, with the backends that NIXL has."""
    site, options = programs.site, programs.options
    model, mine = options.single, site.build / "lib" / "nixl"
    backends = [("sluice, NIXL SLUICE", "SLUICE", {}), ("NIXL POSIX", "POSIX", {}), ("NIXL POSIX, io_uring", "POSIX", {"use_uring": "true"}),
                ("NIXL GDS", "GDS", {"batch_limit": str(_GDS_BATCH)}), ("NIXL GDS_MT", "GDS_MT", {})]

    is_there = any(importlib.util.find_spec(name) for name in ("nixl", "nixl_cu12", "nixl_cu13"))

    def sample(row, backend, parameters, block):
        if not is_there:
            raise Skip("no NIXL")
        if backend.startswith("GDS") and not site.gpu:
            raise Skip("there is no GPU")
        environment = {"NIXL_LOG_LEVEL": os.environ.get("NIXL_LOG_LEVEL", "FATAL")}
        # This variable names a folder instead of that of NIXL's own plugins.
        folders = [os.environ.get("NIXL_PLUGIN_DIR"), str(mine)]
        environment["NIXL_PLUGIN_DIR"] = next((each for each in folders if each and _has_plugin(each, backend)), None)
        answer = programs.sample(row, "load_nixl", environment=environment, limit=30, unit=1e6 * block if block == 4096 else 1e9,
                                 backend=backend, parameters=parameters, offset=model.data_offset, size=model.size, block=block,
                                 path=str(model.files[0]) if row.ours else site.below(model.files[0]), memory=min(256 << 20, model.size),
                                 **({"largest": _GDS_BATCH, "together": _GDS_TOGETHER} if backend == "GDS" else {}))
        if answer["copied"]:
            row.note = "to host memory, then a copy to the GPU"

    for block in (4096, 65536, 1 << 20):
        case = f"NIXL: random blocks of {text_of_size(block)}"
        unit = "M blocks/s" if block == 4096 else "GB/s"
        programs.runner.compare([
            (Row("programs", case, way, unit, ours=backend == "SLUICE"),
             lambda row, backend=backend, parameters=parameters, block=block: sample(row, backend, parameters, block), 0)
            for way, backend, parameters in backends], rounds=1 if options.quick else min(options.rounds, 3))


def _has_plugin(folder, backend):
    return os.path.exists(os.path.join(folder, f"libplugin_{backend}.so"))


def elsewhere(programs):
    """A file that is not on a mount, with the variable and without: the variable must cost nothing."""
    options, site = programs.options, programs.site
    model = Model(options.folder / "elsewhere", min(options.size, _LARGEST_ELSEWHERE), 1)
    model.make(site.content)
    case = f"elsewhere: load_file of a file that is on no mount, {text_of_size(model.size)}"
    ours, other = programs.rows(case, "safetensors as it is")

    def load(row):
        path = site.below(model.files[0])
        if site.mount and path == str(model.files[0]):
            raise Skip("the file can't be read on its tier")
        answer = programs.sample(row, "load_file", accelerate=row.ours, keep_hbm=True, folder=os.path.dirname(path), size=model.size,
                                 loads=_ELSEWHERE_LOADS)
        row.wrong += bool(answer["routes"])  # libsluice has read it
        row.note = f"the best of {_ELSEWHERE_LOADS} loads in each process"

    # Differences of one percent need more samples than the other rows.
    programs.runner.compare([(ours, load, 0), (other, load, 0)], rounds=None if options.quick else max(options.rounds, 7))
    shutil.rmtree(model.folder, ignore_errors=True)


PROGRAMS = {"transformers": transformers, "load_file": load_file, "fastsafetensors": fastsafetensors, "torch_load": torch_load,
            "save": save, "nixl": nixl, "elsewhere": elsewhere}


def programs(site, runner, options):
    made = Programs(site, runner, options)
    for name in options.only:
        PROGRAMS[name](made)
