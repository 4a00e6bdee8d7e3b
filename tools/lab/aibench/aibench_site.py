# SPDX-License-Identifier: BSD-2-Clause
"""The environment of aibench: the machine, the files it creates, and how their bytes are checked."""
import ctypes
import json
import os
import pathlib
import struct
import subprocess
import sys
import time

import numpy

try:
    import torch
except ImportError as error:
    torch, why_no_torch = None, str(error)

BLOCK = 4096
_WORDS = BLOCK // 8
_PERIOD = 16384  # number of blocks after which the content repeats, except for the first word, which is the block's number


class Skip(Exception):
    """The reason why something can't be measured here."""


def say(words, is_step=False):
    """Reports progress: on a terminal in one line that is overwritten, otherwise in lines without the steps."""
    if sys.stderr.isatty():
        print(f"\r{f'aibench: {words}' if words else ''}\033[K", file=sys.stderr, end="", flush=True)
    elif words and not is_step:
        print(f"aibench: {words}", file=sys.stderr, flush=True)


def cpu_seconds(daemon):
    """The CPU time of this process and, if it is known, of the daemon with this id."""
    total = time.process_time()
    if daemon:
        fields = pathlib.Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def text_of_size(size):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


class Content:
    """The content of the files: 4 KiB blocks of random words, whose first word is the block's number."""

    def __init__(self, device):
        random = numpy.random.default_rng(7).integers(0, 2**63 - 1, (_PERIOD, _WORDS), dtype=numpy.int64)
        self._host = random
        self.device = device
        self._base = torch.from_numpy(random.copy()).to(device) if torch else random.copy()

    def write(self, file, first, count):
        """Writes blocks [first, +count) to an open file."""
        at = first
        while at < first + count:
            row = at % _PERIOD
            rows = min(_PERIOD - row, first + count - at)
            part = self._host[row:row + rows]
            part[:, 0] = numpy.arange(at, at + rows)
            file.write(memoryview(part).cast("B"))
            at += rows

    def wrong(self, words, first):
        """The number of wrong blocks in an array of 64-bit words that begins with block `first`."""
        blocks = words.reshape(-1, _WORDS)
        return self.wrong_records(blocks, self._range(first, blocks.shape[0]))

    def wrong_records(self, records, index):
        """The same for records of any size: record i of the file, for each i of `index`."""
        size = records.shape[1]
        expected = self._base.reshape(-1, size)[index % (_PERIOD * _WORDS // size)]
        if size >= _WORDS:
            blocks = size // _WORDS
            numbers = index.reshape(-1, 1) * blocks + self._range(0, blocks).reshape(1, -1)
            expected = expected.reshape(-1, blocks, _WORDS)
            expected[:, :, 0] = numbers
            expected = expected.reshape(-1, size)
        else:
            parts = _WORDS // size
            begins = index % parts == 0
            expected[begins, 0] = (index // parts)[begins]
        return int((records != expected).any(1).sum())

    def _range(self, first, count):
        if torch:
            return torch.arange(first, first + count, dtype=torch.int64, device=self.device)
        return numpy.arange(first, first + count, dtype=numpy.int64)


class Model:
    """A safetensors model with tensors of 32 MiB in one file or several. The data begin at a multiple of 4 KiB."""
    TENSOR = 32 << 20

    def __init__(self, folder, size, files):
        self.folder, self.size = pathlib.Path(folder), size
        count = size // self.TENSOR
        self.tensors = [f"model.layers.{i}.weight" for i in range(count)]
        each = -(-count // files)
        self.parts = [self.tensors[i:i + each] for i in range(0, count, each)]
        names = ["model.safetensors"] if files == 1 else [f"model-{i:05}.safetensors" for i in range(len(self.parts))]
        self.files = [self.folder / name for name in names]
        self.data_offset = 0

    def make(self, content):
        self.folder.mkdir()
        say(f"making {text_of_size(self.size)} in {len(self.files)} files")
        at = 0
        for path, names in zip(self.files, self.parts, strict=True):
            header = json.dumps({name: {"dtype": "F16", "shape": [4096, self.TENSOR // 8192],
                                        "data_offsets": [i * self.TENSOR, (i + 1) * self.TENSOR]}
                                 for i, name in enumerate(names)}).encode()
            header += b" " * (-(8 + len(header)) % BLOCK)
            self.data_offset = 8 + len(header)
            with open(path, "wb", buffering=0) as file:
                file.write(struct.pack("<Q", len(header)) + header)
                for _ in names:
                    say(f"making {text_of_size(self.size)} in {len(self.files)} files: {text_of_size(at)}", is_step=True)
                    content.write(file, at // BLOCK, self.TENSOR // BLOCK)
                    at += self.TENSOR
                os.fsync(file.fileno())
        if len(self.files) > 1:
            names = {name: path.name for path, part in zip(self.files, self.parts, strict=True) for name in part}
            (self.folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))

    def wrong(self, content, tensors):
        """The number of wrong blocks in loaded tensors."""
        int64 = torch.int64 if torch else numpy.int64
        if sorted(tensors) != sorted(self.tensors):
            return self.size // BLOCK
        return sum(content.wrong(tensors[name].view(int64), i * (self.TENSOR // BLOCK)) for i, name in enumerate(self.tensors))


class Site:
    def __init__(self, folder, build):
        self.folder, self.build = pathlib.Path(folder), pathlib.Path(build)
        self.device = "cuda" if torch and torch.cuda.is_available() else "cpu"
        self.gpu = torch.cuda.get_device_name() if self.device == "cuda" else None
        self.content = Content(self.device)
        self.mount, self.daemon = self._daemon()

    def notes(self):
        """Notes about missing parts."""
        if torch is None:
            yield f"no PyTorch ({why_no_torch}): its rows are skipped, and NumPy arrays are used"
        if self.gpu is None:
            yield "PyTorch finds no GPU: reads go to host memory, and the goals do not apply"
        if self.mount is None:
            yield f"{self.folder} is not on a Sluice mount: libsluice works in this process"
        elif self.daemon is None:
            yield "the daemon's CPU time is unknown: only that of this process counts"

    def synchronize(self):
        if self.gpu:
            torch.cuda.synchronize()

    def cpu_seconds(self):
        return cpu_seconds(self.daemon)

    def below(self, path):
        """The path of the file on its tier, which other libraries read."""
        try:
            location = os.getxattr(path, "user.sluice.location").decode()
        except OSError:
            return str(path)
        return location if os.access(location, os.R_OK) else str(path)

    def program(self, name):
        path = self.build / "bin" / name
        if not path.exists():
            raise Skip(f"{path} is not built")
        return str(path)

    def make_cold(self, path):
        """Drops a file from the page cache. Returns the part that is still cached."""
        below = self.below(path)
        for each in (path, below):
            with open(each, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            pathlib.Path("/proc/sys/vm/drop_caches").write_text("1\n")
        except OSError:
            pass
        return _cached_part(below)

    def status(self):
        answer = subprocess.run([self.program("sluice"), "status", "--json", self.mount], capture_output=True, timeout=20, check=True)
        status = json.loads(answer.stdout)
        return status[0] if isinstance(status, list) else status

    def hbm(self):
        """What the mount keeps in the memory of the first GPU."""
        devices = self.status()["gpu"].get("devices", []) if self.daemon else []
        return devices[0].get("hbm", {}) if devices else {}

    def release_hbm(self):
        subprocess.run([self.program("sluice"), "gpu", "release", self.mount], capture_output=True, timeout=20, check=True)

    def restart(self):
        """Starts another daemon. Returns the seconds until it has its GPUs ready."""
        if self.daemon is None:
            raise Skip("there is no daemon")
        program, begin = self.program("sluice"), time.monotonic()
        done = subprocess.run([program, "restart", self.mount], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise Skip(done.stderr.strip())
        self.mount, self.daemon = self._daemon()
        while self.gpu and time.monotonic() < begin + 30 and not self.status()["gpu"]["pinned_bytes"]:
            time.sleep(0.05)
        return time.monotonic() - begin

    def _daemon(self):
        point = self.folder.resolve()
        while not os.path.ismount(point):
            point = point.parent
        program = self.build / "bin" / "sluice"
        try:
            answer = subprocess.run([program, "status", "--json", point], capture_output=True, timeout=20, check=True)
            status = json.loads(answer.stdout)
        except (OSError, ValueError, subprocess.SubprocessError):
            try:
                os.getxattr(self.folder, "user.sluice.tier")
            except OSError:
                return None, None
            return point, None
        for each in status if isinstance(status, list) else [status]:
            if isinstance(each.get("pid"), int):
                return point, each["pid"]
        return point, None


def _cached_part(path):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        at = libc.mmap(None, size, 1, 1, file.fileno(), 0)
    if at in (None, ctypes.c_void_p(-1).value):
        return 0.0
    pages = (ctypes.c_ubyte * -(-size // os.sysconf("SC_PAGESIZE")))()
    known = libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), pages) == 0
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    return float((numpy.frombuffer(pages, numpy.uint8) & 1).mean()) if known else 0.0
