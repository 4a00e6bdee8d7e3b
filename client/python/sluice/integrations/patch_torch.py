# SPDX-License-Identifier: BSD-2-Clause
"""torch.load of files on a Sluice mount, in the zip format that torch.save writes.

torch opens the archive, checks it and unpickles it as usual. Only the bytes of a storage that goes to a GPU are read in
another way: where torch would read a storage and then move it (_load), it gets an _Unread, which is read when it is moved.
"""
import functools
import io
import os
import zipfile
from collections.abc import Callable
from typing import Any

from .._safetensors import Model
from ._bulk import Bulk, FileState, gpu_of, left_to_original, on_mount


def patch(module: Any) -> None:
    original_reader: Any = module._open_zipfile_reader
    original_load, original_location = module._load, module._get_restore_location

    class OpenZipfileReader(original_reader):  # type: ignore[misc]
        def __init__(self, name_or_buffer: Any) -> None:
            state = _state(name_or_buffer)
            super().__init__(name_or_buffer)
            if state is not None:
                self.file_like: Any = _Archive(self.file_like, state)

    @functools.wraps(original_load)
    def load(zip_file: Any, map_location: Any, *rest: Any, **options: Any) -> Any:
        if not isinstance(zip_file, _Archive):
            return original_load(zip_file, map_location, *rest, **options)
        # All storages go to one place, so the next ones are read together with the first.
        zip_file.ahead = isinstance(map_location, str | module.torch.device)
        mapped = options.get("overall_storage")
        if mapped is not None:
            options["overall_storage"] = _Mapped(zip_file, mapped)
        try:
            return original_load(zip_file, map_location, *rest, **options)
        finally:
            zip_file.forget()

    def get_restore_location(map_location: Any) -> Callable[[Any, str], Any]:
        restore = original_location(map_location)

        def restore_location(storage: Any, location: str) -> Any:
            if not isinstance(storage, _Unread):
                return restore(storage, location)
            if callable(map_location):
                return restore(storage.original(), location)  # the caller's function gets a real storage
            try:
                found = restore(storage, location)
            except OSError:
                raise  # the mount has ended: the original would end with SIGBUS
            except Exception:
                found = storage  # the error again, about a storage of torch
            return restore(storage.original(), location) if found is storage else found

        return restore_location

    module._open_zipfile_reader, module._load, module._get_restore_location = OpenZipfileReader, load, get_restore_location


def _state(opened: Any) -> FileState | None:
    """The state of the file, if it is one on a mount, read from its beginning."""
    # Only this class reads the bytes of the file as they are. What gzip.open() returns has a name and a descriptor, too.
    if type(opened.raw if type(opened) in (io.BufferedReader, io.BufferedRandom) else opened) is not io.FileIO:
        return None
    try:
        path = os.fspath(opened.name)
        if not isinstance(path, str) or not on_mount(path) or opened.tell() != 0:
            return None
        state = FileState(os.path.abspath(path))
        # The name may have another file by now.
        return state if os.path.samestat(os.fstat(opened.fileno()), os.stat(path)) else None
    except Exception:
        return None


class _Archive:
    """A PyTorchFileReader that gives storages without reading them."""

    def __init__(self, inner: Any, state: FileState) -> None:
        self._inner, self.ahead = inner, False
        self.bulk = Bulk(state, self._open)
        self._names: dict[int, str] = {}  # by offset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _open(self, path: str) -> Model:
        """The storages in the order of the file. Compressed ones can't be read by their range."""
        with zipfile.ZipFile(path) as archive:
            entries = [(entry.filename.partition("/")[2], entry.file_size) for entry in archive.infolist()
                       if entry.compress_type == zipfile.ZIP_STORED and entry.file_size == entry.compress_size]
        ranges = [(name, self._inner.get_record_offset(name), size) for name, size in entries
                  if size > 0 and name.startswith("data/")]
        self._names = {offset: name for name, offset, _ in ranges}
        return Model.of_ranges(path, ranges)

    def forget(self) -> None:
        self.bulk.forget()

    def get_storage_from_record(self, name: str, length: int, kind: Any) -> Any:
        return _Unread(self, name, length, lambda: self._inner.get_storage_from_record(name, length, kind)._typed_storage()
                       ._untyped_storage)

    def at(self, offset: int) -> str:
        """The name of the storage at this offset; KeyError if there is none."""
        self.bulk.tensors()
        return self._names[offset]


class _Mapped:
    """The mapped file of torch.load(mmap=True)."""

    def __init__(self, archive: _Archive, inner: Any) -> None:
        self._archive, self._inner = archive, inner

    def __getitem__(self, part: slice) -> Any:
        if part.start == part.stop:
            return self._inner[part]
        try:
            name = self._archive.at(part.start)
        except Exception as error:
            left_to_original(self._archive.bulk, "", error)
            return self._inner[part]
        return _Unread(self._archive, name, part.stop - part.start, lambda: self._inner[part])


class _Unread:
    """A storage of an archive that is read to where it is moved. Anything else that is done with it reads it to the CPU."""

    def __init__(self, archive: _Archive, name: str, length: int, read: Callable[[], Any]) -> None:
        self._archive, self._name, self._length, self._read = archive, name, length, read
        self._original: Any = None

    # For the expression in torch: get_storage_from_record(...)._typed_storage()._untyped_storage
    def _typed_storage(self) -> "_Unread":
        return self

    @property
    def _untyped_storage(self) -> "_Unread":
        return self

    def original(self) -> Any:
        if self._original is None:
            self._original = self._read()
        return self._original

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original(), name)

    def nbytes(self) -> int:
        return self._length

    def to(self, *, device: Any, non_blocking: bool = False) -> Any:
        gpu = gpu_of(device)
        if gpu is not None and self._original is None and self._length > 0:
            bulk = self._archive.bulk
            try:
                tensors = bulk.tensors()
                if tensors[self._name].length != self._length:
                    raise ValueError(f"{bulk.path}: {self._name} has another length than its tensors")
                if self._archive.ahead:
                    self._archive.ahead = False
                    bulk.want(list(tensors), gpu)
                return bulk.take(self._name, gpu)
            except Exception as error:
                left_to_original(bulk, self._name, error)
        return self.original().to(device=device, non_blocking=non_blocking)
