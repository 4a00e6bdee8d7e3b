# SPDX-License-Identifier: BSD-2-Clause
# pyright: reportMissingImports=false
"""A copier for the package fastsafetensors, which vLLM uses with --load-format fastsafetensors.

    from sluice.integrations import fastsafetensors
    fastsafetensors.enable()

From then on, the loaders of fastsafetensors read files on a Sluice mount through libsluice, whichever copier they were told
to use; all other files as before. (vLLM has no option for the copier.) Without enable(), the copier is there under the name
"sluice", for every file:

    BaseSafeTensorsFileLoader(None, device, "sluice")
"""
import bisect
import concurrent.futures
import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from fastsafetensors.copier import base, nogds, registry
from fastsafetensors.st_types import DeviceType, DType

from .._file import Buffer, File
from .._memory import Memory

# The values of libsluice's own loader: one read takes about a millisecond, and the next ones are started meanwhile.
READ_BYTES = 64 << 20
IN_FLIGHT = 4

_log = logging.getLogger("sluice")
_lock = threading.Lock()


class Copier(base.CopierInterface):  # type: ignore[misc,unused-ignore]  # the package may be missing
    """Reads one file. Threads: one uses it; those of `pool` read."""

    def __init__(self, metadata: Any, device: Any, framework: Any, pool: concurrent.futures.Executor,
                 file: File | None = None) -> None:
        self.metadata, self._device, self._framework, self._pool = metadata, device, framework, pool
        self._file = file or File(metadata.src)
        self._runs: list[tuple[int, int]] | None = None
        self._names: set[str] | None = None
        self._allocation: int | None = None
        self._start: int = metadata.header_length  # the offset in the file of the buffer's first byte
        self._buffer: Buffer | None = None
        self._reads: list[tuple[int, concurrent.futures.Future[None]]] = []  # by the offset of their end

    def set_byte_ranges(self, byte_ranges: Any) -> None:
        self._runs = base.validated_byte_ranges(self.metadata, byte_ranges)

    def set_chunk(self, byte_ranges: Any, names: Any, allocation_size: int | None = None) -> None:
        self._runs = base.validated_byte_ranges(self.metadata, byte_ranges) or []
        self._names = names
        self._allocation = base.validated_chunk_allocation_size(self._runs, allocation_size)

    @classmethod
    def chunk_transient_multiplier(cls, paths: list[str]) -> int:
        return 1  # the reads go directly to the chunk

    @classmethod
    def fixed_device_overhead(cls, paths: list[str]) -> int:
        return 0

    def enable_tensor_readiness(self) -> bool:
        return True

    def prepare_tensors(self, gbuf: Any, owner: Any = None) -> Any:
        return self._tensors(gbuf, owner)

    def wait_tensor(self, name: str) -> None:
        begin, end = (self.metadata.header_length + offset for offset in self.metadata.tensors[name].data_offsets)
        first = bisect.bisect_right(self._reads, begin, key=_stop)
        last = bisect.bisect_left(self._reads, end, first, key=_stop)
        for _, read in self._reads[first:last + 1] if begin < end else []:
            read.result()

    def submit_io(self, use_buf_register: bool, max_copy_block_size: int) -> Any:
        """Starts the reads and returns the memory that they fill."""
        self._check_unchanged()
        size = self.metadata.size_bytes
        runs = [(self._start, size)] if self._runs is None else self._runs
        length = size - self._start
        if self._names is not None:
            self._start = min((begin for begin, _ in runs), default=self._start)
            length = self._allocation or max((end for _, end in runs), default=self._start) - self._start
        gbuf = self._framework.alloc_tensor_memory(length, self._device)
        try:
            if length > 0:
                self._submit(gbuf, length, runs)
        except BaseException:
            with contextlib.suppress(OSError, ValueError):  # the first error is the one to tell
                self.finish_io()
            self._framework.free_tensor_memory(gbuf, self._device)
            raise
        return gbuf

    def wait_io(self, gbuf: Any, dtype: Any = DType.AUTO, noalign: bool = False, owner: Any = None) -> Any:
        self.finish_io()
        return self._tensors(gbuf, owner, dtype=dtype)

    def finish_io(self) -> None:
        """Waits for all reads. Raises the error of the first that failed."""
        reads, self._reads = self._reads, []
        concurrent.futures.wait([read for _, read in reads])
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None
        self._file.close()
        for _, read in reads:
            read.result()

    def _tensors(self, gbuf: Any, owner: Any, **options: Any) -> Any:
        if owner is not None:
            options["owner"] = owner
        if self._names is not None:
            return self.metadata._get_tensors(gbuf, self._device, self._start, names=self._names, **options)
        return self.metadata.get_tensors(gbuf, self._device, self._start, **options)

    def _check_unchanged(self) -> None:
        """The header was read before, by name; this is the open file."""
        header = int.from_bytes(self._file.read(0, 8), "little") + 8
        if (header, self._file.size) != (self.metadata.header_length, self.metadata.size_bytes):
            raise ValueError(f"{self.metadata.src} was replaced after its header was read; load it again")

    def _submit(self, gbuf: Any, length: int, runs: list[tuple[int, int]]) -> None:
        synchronize = getattr(self._framework, "synchronize_current_stream", None) or self._framework.synchronize
        on_gpu = self._device.type != DeviceType.CPU
        wait = functools.partial(synchronize, self._device) if on_gpu else None
        memory = Memory(gbuf.get_base_address(), length, gbuf, wait)
        self._buffer = Buffer(memory)
        # The allocator may give memory that work in the current stream still uses. This waits once, so that the reads need
        # not wait for the caller's work with the file before.
        if memory.wait:
            memory.wait()
        for begin, end in runs:
            for offset in range(begin, end, READ_BYTES):
                stop = min(offset + READ_BYTES, end)
                self._reads.append((stop, self._pool.submit(self._read, self._buffer, offset, stop)))

    def _read(self, buffer: Buffer, offset: int, stop: int) -> None:
        done = self._file.read_into(buffer, offset, stop - offset, target_offset=offset - self._start).bytes
        if done != stop - offset:
            raise ValueError(f"{self.metadata.src} became shorter while it was read: it ends at byte {offset + done}")


def _stop(read: tuple[int, object]) -> int:
    return read[0]


@registry.register_copier_constructor("sluice")  # type: ignore[untyped-decorator,unused-ignore]
def new_copier(device: Any, **options: Any) -> Any:
    """Returns a function that makes copiers for files, in the same threads."""
    load_library = getattr(nogds, "load_library_func", None)
    if load_library is not None:
        load_library(options.get("framework"))  # fastsafetensors converts types with functions of CUDA
    pool = concurrent.futures.ThreadPoolExecutor(IN_FLIGHT, "sluice-fastsafetensors")

    def construct(metadata: Any, device: Any, framework: Any, file: File | None = None) -> Copier:
        return Copier(metadata, device, framework, pool, file)

    construct.copier_class = Copier  # type: ignore[attr-defined]
    return construct


def enable() -> None:
    """Makes the loaders of fastsafetensors read files on Sluice mounts with this copier, in this process."""
    with _lock:
        factories = registry._copier_registry
        for name in {"gds", "nogds", "unified"} & factories.keys():
            if not hasattr(factories[name], "before_sluice"):
                factories[name] = _chooser(name, factories[name])


def patch(_: object) -> None:
    """For sluice.accelerate."""
    enable()


def _chooser(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def factory(device: Any, **options: Any) -> Any:
        ours: Any = new_copier(device, **options)
        # Made when it is needed: that of "gds" starts cuFile on all GPUs.
        theirs = functools.cache(lambda: original(device, **options))

        def construct(metadata: Any, device: Any, framework: Any) -> Any:
            file = _open_on_mount(metadata.src)
            return theirs()(metadata, device, framework) if file is None else ours(metadata, device, framework, file)

        construct.copier_class = _with_costs_of(name)  # type: ignore[attr-defined]
        return construct

    factory.before_sluice = original  # type: ignore[attr-defined]
    return factory


def _open_on_mount(path: str) -> File | None:
    """The open file, if it is on a Sluice mount and can be read to this GPU."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.hip is not None:
        return None
    file = None
    try:
        file = File(path)
        if file.route(bytearray(1)).tier is not None:  # to host memory: the machine may have no GPU
            return file
    except (OSError, ImportError) as error:  # ImportError: no libsluice
        _log.warning("%s is read by fastsafetensors itself: %s", path, error)
    if file is not None:
        file.close()
    return None


def _with_costs_of(name: str) -> Any:
    """A class for fastsafetensors's planner, which asks before it is known where the files are."""
    if not hasattr(registry, "get_copier_class"):
        return Copier
    theirs = registry.get_copier_class(name)

    class Either(Copier):
        @classmethod
        def chunk_transient_multiplier(cls, paths: list[str]) -> int:
            return max(1, int(theirs.chunk_transient_multiplier(paths)))

        @classmethod
        def chunk_device_overhead(cls, paths: list[str]) -> int:
            return int(theirs.chunk_device_overhead(paths))

        @classmethod
        def fixed_device_overhead(cls, paths: list[str]) -> int:
            return int(theirs.fixed_device_overhead(paths))

    return Either
