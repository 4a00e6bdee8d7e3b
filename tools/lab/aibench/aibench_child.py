# SPDX-License-Identifier: BSD-2-Clause
"""A program that loads a model once, or saves one again and again, in a process of its own, for the part `programs` of aibench:

    aibench_child.py PROGRAM ARGUMENTS

ARGUMENTS is a JSON object. So is the last line of the output: the seconds, the CPU time and the bytes of the work itself, and
the number of wrong blocks. Imports, the CUDA context and the check of the bytes are not in the seconds.
"""
import pathlib
import site

# What Python does at its start if the package is installed: it runs sluice-accelerate.pth, which looks at SLUICE_ACCELERATE.
site.addsitedir(str(pathlib.Path(__file__).resolve().parents[3] / "client" / "python"))

import concurrent.futures  # noqa: E402
import contextlib  # noqa: E402
import ctypes  # noqa: E402
import errno  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
import mmap  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402

import numpy  # noqa: E402

from aibench_site import BLOCK, Content, Model, Skip, cpu_seconds, torch  # noqa: E402

GPU = torch is not None and torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
_PIECE = 64 << 20  # the most bytes that are compared at once
_WRITE = 16 << 20
_WRITERS = 4


def synchronize():
    if GPU:
        torch.cuda.synchronize()


def timed(work, before=None, daemon=None):
    """Returns what `work` made, and its seconds and CPU time. `before` is a command that is run first."""
    if before:
        subprocess.run(before, check=True, capture_output=True, timeout=20)
    synchronize()
    cpu, begin = cpu_seconds(daemon), time.perf_counter()
    made = work()
    synchronize()
    return made, {"seconds": time.perf_counter() - begin, "cpu": cpu_seconds(daemon) - cpu}


def need_torch():
    if torch is None:
        raise Skip("no PyTorch")


class _Into:
    """A file for Content.write() that is memory."""

    def __init__(self, memory):
        self._rest = memoryview(memory).cast("B")

    def write(self, data):
        self._rest[:len(data)] = data
        self._rest = self._rest[len(data):]


def _sync(folder):
    for path in pathlib.Path(folder).iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())


# transformers


def _llama(transformers, size):
    """The configuration of a model of nearly `size` bytes. Every tensor has a multiple of 4 KiB."""
    shape = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
    if size < 4 << 30:
        shape = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 8192}
    wide, heads = shape["hidden_size"], shape["num_key_value_heads"] / shape["num_attention_heads"]
    layer = 2 * (wide * wide * (2 + 2 * heads) + 3 * wide * shape["intermediate_size"] + 2 * wide)
    outside = 2 * (2 * wide * shape["vocab_size"] + wide)
    layers = max(1, int((size - outside) // layer))
    return transformers.LlamaConfig(**shape, num_hidden_layers=layers, tie_word_embeddings=False, dtype=torch.bfloat16)


def _places(tensors):
    """(name, tensor, number of its first block) of all tensors: each has the content that follows the one before."""
    at = 0
    for name in sorted(tensors):
        yield name, tensors[name], at
        at += tensors[name].nbytes // BLOCK


def make_transformers(folder, tiny, size):
    """Saves a model as transformers does, and a tiny one."""
    need_torch()
    import transformers
    if int(transformers.__version__.partition(".")[0]) < 5:
        raise Skip(f"transformers {transformers.__version__} is older than 5")
    _quiet(transformers)
    content, config = Content("cpu"), _llama(transformers, size)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model = model.to_empty(device="cpu")
    tensors = model.state_dict()
    for _, tensor, first in _places(tensors):
        content.write(_Into(tensor.detach().view(torch.int16).numpy()), first, tensor.nbytes // BLOCK)
    total = sum(tensor.nbytes for tensor in tensors.values())
    # The usual size of a file; smaller models are in two files, too.
    model.save_pretrained(folder, max_shard_size=f"{min(5000, total // 2_000_000)}MB")
    small = transformers.LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=64,
                                     dtype=torch.bfloat16)
    transformers.LlamaForCausalLM(small).to(torch.bfloat16).save_pretrained(tiny)
    _sync(folder)
    _sync(tiny)
    return {"bytes": total}


def _quiet(transformers):
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def load_transformers(folder, tiny, size, **when):
    need_torch()
    import transformers
    _quiet(transformers)
    load = transformers.AutoModelForCausalLM.from_pretrained
    load(tiny, device_map="cpu")  # the first load imports half of the package
    content = Content(DEVICE)
    model, answer = timed(lambda: load(folder, device_map=DEVICE), **when)
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    total = sum(tensor.nbytes for tensor in tensors.values())
    wrong = size // BLOCK
    if total == size and all(tensor.device.type == torch.device(DEVICE).type for tensor in tensors.values()):
        wrong = sum(_wrong(content, tensor, first) for _, tensor, first in _places(tensors))
    return {**answer, "bytes": total, "wrong": wrong}


def _wrong(content, tensor, first):
    words = tensor.reshape(-1).view(torch.int64)
    step = _PIECE // 8
    return sum(content.wrong(words[at:at + step], first + at * 8 // BLOCK) for at in range(0, len(words), step))


# Files


def load_file(folder, size, loads=1, **when):
    """safetensors.torch.load_file; with several loads, the fastest counts."""
    need_torch()
    import safetensors.torch
    content, model = Content(DEVICE), Model(folder, size, 1)

    def work():
        tensors = safetensors.torch.load_file(model.files[0], device=DEVICE)
        # On the host nothing has been read so far.
        return tensors if GPU else {name: tensor.clone() for name, tensor in tensors.items()}

    answers, wrong = [], 0
    for _ in range(loads):
        tensors, answer = timed(work, **when)
        wrong += model.wrong(content, tensors)
        answers.append(answer)
        del tensors
    return {**min(answers, key=lambda answer: answer["seconds"]), "bytes": size, "wrong": wrong}


def load_fastsafetensors(folder, size, **when):
    need_torch()
    import fastsafetensors
    content, model = Content(DEVICE), Model(folder, size, 1)

    def work():
        loader = fastsafetensors.SafeTensorsFileLoader(None, "cuda:0" if GPU else "cpu", nogds=True)
        loader.add_filenames({0: [str(model.files[0])]})
        buffers = loader.copy_files_to_device()
        return loader, buffers, {name: buffers.get_tensor(name) for name in loader.get_keys()}

    (loader, buffers, tensors), answer = timed(work, **when)
    answer |= {"bytes": size, "wrong": model.wrong(content, tensors)}
    if "sluice.integrations.fastsafetensors" in sys.modules:  # it does not count what it reads
        import sluice
        with sluice.open(model.files[0]) as file:
            answer["route"] = file.route(next(iter(tensors.values()))).route
    tensors.clear()
    buffers.close()
    loader.close()
    return answer


def make_torch(folder, path, size):
    """Saves the tensors of a safetensors file with torch.save()."""
    need_torch()
    import sluice
    tensors = sluice.load_safetensors(folder)
    torch.save({name: tensors[name].clone() for name in Model(folder, size, 1).tensors}, path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return {"bytes": size}


def load_torch(path, size, **when):
    need_torch()
    content, model = Content(DEVICE), Model("", size, 1)
    tensors, answer = timed(lambda: torch.load(path, map_location=DEVICE), **when)
    return {**answer, "bytes": size, "wrong": model.wrong(content, tensors)}


def let_the_disk_rest():
    """The last sample has deleted its file. A filesystem may tell the disk about that seconds later, which makes the next
    sample slower."""
    os.sync()
    time.sleep(3)


def save(path, size, rounds, **when):
    """sluice.save_safetensors from GPU memory, plain writes of the same bytes from host memory, and plain writes of one block of
    memory again and again, in turns. The first of each is to warm up, and tells which tier is written to. Every saved file is
    loaded again and compared."""
    import sluice
    content, model = Content(DEVICE), Model("", size, 1)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)  # the disk should not wait while pages are looked up
    content.write(_Into(memory), 0, size // BLOCK)
    tensors = {}
    for name, part in zip(model.tensors, numpy.frombuffer(memory, numpy.float16).reshape(len(model.tensors), 4096, -1), strict=True):
        tensors[name] = torch.from_numpy(part).to(DEVICE) if torch else part
    path = pathlib.Path(path)
    answer = {"save": [], "write": [], "write_block": [], "wrong": 0, "direct": True}
    tier = path.parent

    def save_once():
        nonlocal tier
        try:
            answer["save"].append(timed(lambda: sluice.save_safetensors(tensors, path), **when)[1])
            answer["wrong"] += model.wrong(content, sluice.load_safetensors(path, DEVICE, "pt" if torch else "np"))
            with contextlib.suppress(OSError):  # not on a mount
                tier = pathlib.Path(os.getxattr(path, "user.sluice.location").decode()).parent
        finally:
            path.unlink(missing_ok=True)

    def write_once(way, source):
        plain = tier / "aibench.plain"
        try:
            answer["direct"], took = timed(lambda: write(plain, size, source), **when)
            answer[way].append(took)
        except PermissionError as error:
            raise Skip(f"{tier} is not writable") from error
        finally:
            plain.unlink(missing_ok=True)

    turns = [save_once, lambda: write_once("write", memoryview(memory)), lambda: write_once("write_block", memoryview(memory)[:_WRITE])]
    for turn in range(1 + rounds):
        for once in turns if turn % 2 == 0 else reversed(turns):
            let_the_disk_rest()
            once()
    for way in ("save", "write", "write_block"):
        del answer[way][0]
    return answer


def write(path, size, memory):
    """What the disk can do: aligned writes of 16 MiB, four at a time, and fsync. If the file is longer than the memory, it has it
    several times. Returns whether the filesystem has O_DIRECT."""
    is_direct = True
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        is_direct = False  # this filesystem does not have it, but may have made the file
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)

    def write_at(offset):
        begin = offset % len(memory)
        return os.pwrite(file, memory[begin:begin + min(_WRITE, size - offset)], offset)

    try:
        # Writes that make a file longer wait for each other. It may fail: the file then grows.
        ctypes.CDLL(None).fallocate(file, 0, ctypes.c_int64(0), ctypes.c_int64(size))
        with concurrent.futures.ThreadPoolExecutor(_WRITERS) as pool:
            done = sum(pool.map(write_at, range(0, size, _WRITE)))
        os.fsync(file)
    finally:
        os.close(file)
    if done != size:
        raise OSError(f"only {done} of {size} bytes were written")
    return is_direct


# NIXL

_TRANSFERS = 8
_AT_LEAST = 0.3  # seconds


def _nixl_api():
    cuda = (torch.version.cuda or "").partition(".")[0]
    names = ["nixl", *sorted(("nixl_cu12", "nixl_cu13"), key=lambda name: not name.endswith(f"cu{cuda}"))]
    why = ""
    for name in names:
        try:
            return importlib.import_module(f"{name}._api")
        except ImportError as error:
            if error.name != name:  # it is installed, but something that it needs is missing
                why = why or f": {error}"
    raise Skip(f"no NIXL{why}")


class _Nixl:
    """An agent of NIXL with one backend, that reads blocks of a file to memory that both know."""

    def __init__(self, backend, parameters, path, length):
        self._backends, api = [backend], _nixl_api()
        self._agent = api.nixl_agent("aibench", api.nixl_agent_config(backends=[]))
        if backend not in self._agent.get_plugin_list():
            raise Skip(f"NIXL finds no plugin {backend}, neither in NIXL_PLUGIN_DIR nor beside its own ones")
        try:
            self._agent.create_backend(backend, parameters)
        except Exception as error:
            raise Skip(f"NIXL can't make the backend {backend}: {error}") from error
        self.reads_to_gpu = GPU and "VRAM_SEG" in self._agent.get_backend_mem_types(backend)
        if GPU and not self.reads_to_gpu:  # the program has to copy
            self.words = torch.zeros(length // 8, dtype=torch.int64, pin_memory=True)
        else:
            self.words = torch.zeros(length // 8, dtype=torch.int64, device=DEVICE)
        self._kind = "VRAM" if self.reads_to_gpu else "DRAM"
        self._file = os.open(path, os.O_RDONLY)
        self._handles = []
        size = os.fstat(self._file).st_size
        self._registered = [
            self._agent.register_memory([(self.words.data_ptr(), length, 0, "")], self._kind, backends=self._backends),
            self._agent.register_memory([(0, size, self._file, "")], "FILE", backends=self._backends)]

    def prepare(self, offsets, block, at):
        """Adds a transfer of blocks to the memory from `at` on."""
        addresses = self.words.data_ptr() + at + numpy.arange(len(offsets), dtype=numpy.uint64) * block
        blocks = [self._agent.get_xfer_descs(numpy.stack([place.astype(numpy.uint64), numpy.full(len(offsets), block, numpy.uint64),
                                                          numpy.full(len(offsets), device, numpy.uint64)], axis=1), kind)
                  for place, device, kind in ((addresses, 0, self._kind), (offsets, self._file, "FILE"))]
        self._handles.append(self._agent.initialize_xfer("READ", *blocks, "aibench", backends=self._backends))

    def run(self, together):
        """Does all transfers, so many at a time."""
        for begin in range(0, len(self._handles), together):
            started = [(handle, self._agent.transfer(handle)) for handle in self._handles[begin:begin + together]]
            for handle, state in started:
                while state == "PROC":
                    state = self._agent.check_xfer_state(handle)
                if state != "DONE":
                    raise OSError(f"a transfer ended with {state}")

    def close(self):
        for handle in self._handles:
            self._agent.release_xfer_handle(handle)
        for each in self._registered:
            self._agent.deregister_memory(each, backends=self._backends)
        os.close(self._file)


def load_nixl(backend, parameters, path, offset, size, block, memory, largest=None, together=1, **when):
    """Random blocks to GPU memory. A backend that can't do that reads them to pinned memory, and one copy follows. A transfer
    has at most `largest` blocks."""
    need_torch()
    content = Content(DEVICE)
    count = min(memory, size) // block // _TRANSFERS
    index = numpy.random.default_rng(block).integers(0, size // block, (_TRANSFERS, count))
    agent = _Nixl(backend, parameters, path, _TRANSFERS * count * block)
    each = min(count, largest or count)
    for i, chosen in enumerate(index):
        for at in range(0, count, each):
            agent.prepare(offset + chosen[at:at + each] * block, block, (i * count + at) * block)
    target = torch.empty_like(agent.words, device=DEVICE) if GPU and not agent.reads_to_gpu else agent.words
    passes = 0

    def once():
        agent.run(together)
        if target is not agent.words:
            target.copy_(agent.words)

    def work():
        nonlocal passes
        begin = time.perf_counter()
        while time.perf_counter() - begin < _AT_LEAST:
            once()
            passes += 1

    once()
    target.zero_()
    agent.words.zero_()
    _, answer = timed(work, **when)
    on_device = torch.from_numpy(index.reshape(-1)).to(DEVICE)
    wrong = content.wrong_records(target.reshape(-1, block // 8), on_device)
    agent.close()
    return {**answer, "bytes": passes * index.size * block, "wrong": wrong, "copied": target is not agent.words}


PROGRAMS = {each.__name__: each for each in (make_transformers, load_transformers, load_file, load_fastsafetensors, make_torch,
                                             load_torch, save, load_nixl)}


class _Warnings(logging.Handler):
    """Sluice warns once for each reason why an original function did the work."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def main():
    warnings = _Warnings()
    logging.getLogger("sluice").addHandler(warnings)
    try:
        answer = PROGRAMS[sys.argv[1]](**json.loads(sys.argv[2]))
    except (ImportError, Skip) as error:
        print(json.dumps({"skipped": str(error)}))
        return 1
    counted = sys.modules.get("sluice.integrations._report")
    routes = counted.report.figures()["routes"] if counted else {}
    is_accelerated = any(type(finder).__module__ == "_sluice_accelerate" for finder in sys.meta_path)
    print(json.dumps({"accelerated": is_accelerated, "routes": routes, "warnings": warnings.lines, **answer}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
