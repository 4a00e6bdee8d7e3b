# SPDX-License-Identifier: BSD-2-Clause
# pyright: reportMissingImports=false
"""LMCache's second level (L2) in a directory, for the LMCache server:

    --l2-adapter '{"type": "plugin", "module_path": "sluice.integrations.lmcache_adapter", "class_name": "SluiceL2Adapter",
                   "adapter_params": {"directory": "/mnt/pool/kv", "budget": "200GiB"}}'
"""
import concurrent.futures
import itertools
import threading
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

from ._blocks import WRITTEN, Block, BlockStore, piece_of

_OPTIONS = {"directory", "budget", "threads"}
_FIRST_CHECK = 1024  # objects


def _key(key: Any) -> bytes:
    # ObjectKey allows no NUL in its salt; a length makes the rest unambiguous.
    model = key.model_name.encode()
    return b"%d\0%s%d\0%d\0%s\0%s" % (len(model), model, key.kv_rank, key.object_group_id, key.cache_salt.encode(), key.chunk_hash)


class SluiceL2Adapter(L2AdapterInterface):  # type: ignore[misc,unused-ignore]  # LMCache may be missing
    """The budget of the mount decides what is deleted, so this adapter declares no capacity to LMCache. Nothing is locked:
    an object that is deleted between its lookup and its load is not loaded, which LMCache expects.

    Threads: thread-safe.
    """

    def __init__(self, params: dict[str, Any], l1_memory_desc: Any = None) -> None:
        super().__init__()
        if unknown := params.keys() - _OPTIONS:
            raise ValueError(f"unknown adapter_params {sorted(unknown)}; there are {sorted(_OPTIONS)}")
        if not params.get("directory"):
            raise ValueError('adapter_params need a "directory"')
        self._store = BlockStore(params["directory"], params.get("budget"), int(params.get("threads", 4)))
        self._finders = concurrent.futures.ThreadPoolExecutor(1, "sluice-kv-find")
        self._events = [create_event_notifier() for _ in range(3)]  # of stores, lookups, loads
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._stored: dict[int, L2StoreResult] = {}
        self._found: dict[int, Bitmap] = {}  # of lookups and loads
        self._counted: dict[Any, int] = {}  # the bytes of each key that LMCache counts
        self._check_at = _FIRST_CHECK

    def get_store_event_fd(self) -> int:
        return int(self._events[0].fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._events[1].fileno())

    def get_load_event_fd(self) -> int:
        return int(self._events[2].fileno())

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        number, blocks = next(self._numbers), self._blocks(keys, objects)

        def end(future: "concurrent.futures.Future[list[int]]") -> None:
            states = future.result()
            written = [i for i, state in enumerate(states) if state == WRITTEN]
            sizes = [blocks[i].length for i in written]
            try:
                if written:
                    self._count([keys[i] for i in written], sizes)
            finally:  # a listener of LMCache may fail
                with self._lock:
                    self._stored[number] = L2StoreResult(all(states), sum(sizes))
                self._events[0].notify()

        self._store.store(blocks).add_done_callback(end)
        return number

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        with self._lock:
            done, self._stored = self._stored, {}
        return done

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: Any) -> int:
        number = next(self._numbers)
        self._finders.submit(lambda: self._answer(number, 1, [self._store.contains(_key(key)) for key in keys]))
        return number

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        with self._lock:
            return self._found.pop(task_id, None)

    def submit_unlock(self, keys: list[Any]) -> None:
        pass

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        number = next(self._numbers)

        def end(future: "concurrent.futures.Future[list[int]]") -> None:
            try:
                if loaded := [key for key, state in zip(keys, future.result(), strict=True) if state]:
                    self._notify_keys_accessed(loaded)
            finally:
                self._answer(number, 2, future.result())

        self._store.load(self._blocks(keys, objects)).add_done_callback(end)
        return number

    def query_load_result(self, task_id: int) -> Bitmap | None:
        with self._lock:
            return self._found.pop(task_id, None)

    def _blocks(self, keys: list[Any], objects: list[Any]) -> list[Block]:
        return [Block(_key(key), [piece_of(each.byte_array)]) for key, each in zip(keys, objects, strict=True)]

    def _answer(self, number: int, event: int, states: list[Any]) -> None:
        bitmap = Bitmap(len(states))
        for i, state in enumerate(states):
            if state:
                bitmap.set(i)
        with self._lock:
            self._found[number] = bitmap
        self._events[event].notify()

    def delete(self, keys: list[Any]) -> None:
        self._uncount([key for key in dict.fromkeys(keys) if self._store.delete(_key(key)) > 0 or self._was_deleted(key)])

    def _was_deleted(self, key: Any) -> bool:
        """Whether LMCache counts the object, but the budget has deleted it."""
        return key in self._counted and not self._store.contains(_key(key))

    def _count(self, keys: list[Any], sizes: list[int]) -> None:
        added, counted = [], []
        with self._lock:
            for key, size in zip(keys, sizes, strict=True):
                added.append(size - self._counted.get(key, 0))  # stored again after the budget deleted it
                self._counted[key] = size
            if len(self._counted) >= self._check_at:
                counted, self._check_at = list(self._counted), 2 * len(self._counted)
        self._notify_keys_stored(keys, added)
        if counted:  # the mount does not say what the budget deletes
            self._uncount([key for key in counted if self._was_deleted(key)])
            with self._lock:
                self._check_at = max(2 * len(self._counted), _FIRST_CHECK)

    def _uncount(self, keys: list[Any]) -> None:
        with self._lock:
            sizes = [self._counted.pop(key, 0) for key in keys]  # 0: stored by another server, or before this one began
        if keys:
            self._notify_keys_deleted(keys, sizes)

    def close(self) -> None:
        self._finders.shutdown()
        self._store.close()
        for event in self._events:
            event.close()

    def report_status(self) -> dict[str, Any]:
        return {"is_healthy": True, "type": "SluiceL2Adapter", "directory": str(self._store.directory)}
