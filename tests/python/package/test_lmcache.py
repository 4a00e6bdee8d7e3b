# SPDX-License-Identifier: BSD-2-Clause
"""Runs with the classes of the LMCache package, which need no GPU."""
import argparse
import asyncio
import concurrent.futures
import json
import os
import random
import select
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lmcache.v1.distributed.l2_adapters.plugin_l2_adapter")

from lmcache.v1.distributed.api import ObjectKey  # noqa: E402
from lmcache.v1.distributed.l2_adapters import create_l2_adapter  # noqa: E402
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config  # noqa: E402
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj  # noqa: E402
from lmcache.v1.platform import consume_fd  # noqa: E402

SIZE = 3000


def described(folder, **params):
    return json.dumps({"type": "plugin", "module_path": "sluice.integrations.lmcache_adapter", "class_name": "SluiceL2Adapter",
                       "adapter_params": {"directory": str(folder / "kv"), **params}})


def adapter_of(folder, **params):
    config = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[described(folder, **params)]))
    return create_l2_adapter(config.adapters[0])


def key_of(number, model="org/model", salt=""):
    return ObjectKey(number.to_bytes(32, "big"), model, 0x01000100, 0, salt)


def object_of(number=None, size=SIZE):
    data = torch.zeros(size) if number is None else torch.rand(size, generator=torch.Generator().manual_seed(number))
    return TensorMemoryObj(data, MemoryObjMetadata(torch.Size([size]), torch.float32, data.data_ptr(), size * 4, 1,
                                                   fmt=MemoryFormat.KV_2LTD), parent_allocator=None)


def wait(descriptor, poll):
    while (result := poll()) is None or result == {}:
        assert select.select([descriptor], [], [], 60)[0], "no event came"
        consume_fd(descriptor)
    return result


def put(adapter, keys, objects):
    task = adapter.submit_store_task(keys, objects)
    return wait(adapter.get_store_event_fd(), adapter.pop_completed_store_tasks)[task]


def find(adapter, keys):
    task = adapter.submit_lookup_and_lock_task(keys, {})
    found = wait(adapter.get_lookup_and_lock_event_fd(), lambda: adapter.query_lookup_and_lock_result(task))
    return [found.test(i) for i in range(len(keys))]


def get(adapter, keys, objects):
    task = adapter.submit_load_task(keys, objects)
    found = wait(adapter.get_load_event_fd(), lambda: adapter.query_load_result(task))
    assert adapter.query_load_result(task) is None
    adapter.submit_unlock(keys)
    return [found.test(i) for i in range(len(keys))]


def test_objects(folder):
    adapter = adapter_of(folder)
    assert len({adapter.get_store_event_fd(), adapter.get_lookup_and_lock_event_fd(), adapter.get_load_event_fd()}) == 3
    keys = [key_of(number) for number in range(20)]
    assert find(adapter, keys) == [False] * 20
    stored = put(adapter, keys[:12], [object_of(number) for number in range(12)])
    assert stored.is_successful() and stored.bytes_transferred() == 12 * SIZE * 4
    stored = put(adapter, keys[10:14], [object_of(number) for number in range(10, 14)])
    assert stored.is_successful() and stored.bytes_transferred() == 2 * SIZE * 4
    assert adapter.get_usage().total_bytes_used == 14 * SIZE * 4
    assert find(adapter, keys) == [True] * 14 + [False] * 6
    targets = [object_of() for _ in keys]
    assert get(adapter, keys, targets) == [True] * 14 + [False] * 6
    assert all(torch.equal(targets[number].tensor, object_of(number).tensor) for number in range(14))
    adapter.delete([keys[0], keys[19]])
    assert adapter.get_usage().total_bytes_used == 13 * SIZE * 4
    assert find(adapter, keys[:2]) == [False, True]
    assert get(adapter, [keys[1]], [object_of(size=SIZE - 1)]) == [False]  # of another size
    assert adapter.report_status()["is_healthy"]
    adapter.close()
    adapter = adapter_of(folder)
    assert find(adapter, keys[:2]) == [False, True]
    adapter.close()


def test_keys_are_not_mixed_up(folder):
    adapter = adapter_of(folder)
    put(adapter, [key_of(1, "a/b", "x")], [object_of(1)])
    assert find(adapter, [key_of(1, "a/b"), key_of(1, "a/b", "y"), key_of(1, "a"), key_of(1, "../../a/b", "x"),
                          key_of(1, "a/b", "x")]) == [False] * 4 + [True]
    adapter.close()


def test_deleted_and_damaged_objects_are_misses(folder):
    from sluice.integrations.lmcache_adapter import _key
    adapter = adapter_of(folder)
    keys = [key_of(number) for number in range(4)]
    objects = [object_of(number) for number in range(4)]
    put(adapter, keys, objects)
    adapter._store._path(_key(keys[1])).unlink()
    with open(adapter._store._path(_key(keys[2])), "r+b") as file:
        file.write(b"damaged")
    assert get(adapter, keys, [object_of() for _ in keys]) == [True, False, False, True]
    assert put(adapter, keys, objects).is_successful()
    assert get(adapter, keys, [object_of() for _ in keys]) == [True] * 4
    (folder / "kv" / "tmp").rmdir()
    (folder / "kv" / "tmp").touch()
    assert not put(adapter, [key_of(9)], [object_of(9)]).is_successful()
    adapter.close()


class Listener:
    def __init__(self):
        self.there = set()

    def on_l2_keys_stored(self, keys, sizes):
        self.there |= set(keys)

    def on_l2_keys_accessed(self, keys):
        pass

    def on_l2_keys_deleted(self, keys):
        assert set(keys) <= self.there and len(set(keys)) == len(keys)
        self.there -= set(keys)


def test_what_the_budget_deletes_is_not_counted(folder, monkeypatch):
    from sluice.integrations.lmcache_adapter import _key
    adapter, listener = adapter_of(folder), Listener()
    adapter.register_listener(listener)
    keys, objects = [key_of(number) for number in range(4)], [object_of(number) for number in range(4)]

    def used():
        return adapter.get_usage().total_bytes_used / (SIZE * 4)

    put(adapter, keys, objects)
    for number in (1, 2):
        adapter._store._path(_key(keys[number])).unlink()
    put(adapter, keys[:2], objects[:2])
    assert used() == 4  # the second is not counted twice
    adapter.delete([keys[2], keys[2]])
    assert used() == 3 and listener.there == {keys[0], keys[1], keys[3]}
    adapter.delete([keys[2]])
    assert used() == 3
    with monkeypatch.context() as context:
        def fails(path):
            raise PermissionError(13, "Permission denied", path)
        context.setattr(os, "unlink", fails)
        adapter.delete(keys)
    assert used() == 3 and listener.there == {keys[0], keys[1], keys[3]}
    adapter.delete(keys)
    assert used() == 0 and not listener.there
    adapter.close()


def test_objects_of_another_server_are_not_subtracted(folder):
    adapter, other = adapter_of(folder), adapter_of(folder)
    put(adapter, [key_of(0)], [object_of(0)])
    put(other, [key_of(1)], [object_of(1)])
    adapter.delete([key_of(1)])
    assert adapter.get_usage().total_bytes_used == SIZE * 4
    assert find(adapter, [key_of(0), key_of(1)]) == [True, False]
    adapter.close()
    other.close()


def test_what_the_budget_deletes_is_found_in_time(folder, monkeypatch):
    from sluice.integrations import lmcache_adapter
    monkeypatch.setattr(lmcache_adapter, "_FIRST_CHECK", 8)
    adapter = adapter_of(folder)
    for number in range(100):
        put(adapter, [key_of(number)], [object_of(number, 10)])
        if number >= 4:
            adapter._store._path(lmcache_adapter._key(key_of(number - 4))).unlink()
        assert adapter.get_usage().total_bytes_used <= 10 * 40
    adapter.close()


def test_their_own_check_of_an_adapter(folder, capsys):
    """python -m lmcache.v1.check --mode test_l2_adapter"""
    from lmcache.v1.check.check_mode_test_l2_adapter import run_test_mode
    asyncio.run(run_test_mode("org/model", l2_adapter=[described(folder)], num_keys=20))
    said = capsys.readouterr().out
    assert "=== Testing L2 adapter #0 (SluiceL2Adapter) ===" in said
    assert said.count("20/20") >= 4 and "FAIL" not in said and "Failed" not in said, said


def test_mistakes_are_explained(tmp_path):
    with pytest.raises(ValueError, match='need a "directory"'):
        adapter_of(tmp_path, directory="")
    with pytest.raises(ValueError, match="unknown adapter_params .'size'"):
        adapter_of(tmp_path, size=3)
    with pytest.raises(OSError, match="not on a Sluice mount"):
        adapter_of(tmp_path, budget="1GiB")


def test_a_budget_on_a_mount(mount):
    adapter = adapter_of(mount, budget="1MiB")
    assert os.getxattr(mount / "kv", "user.sluice.budget") == b"1048576"
    keys = [key_of(number) for number in range(200)]
    assert not put(adapter, keys, [object_of(number) for number in range(200)]).is_successful()
    there = find(adapter, keys)
    assert any(there) and not all(there)
    assert get(adapter, keys, [object_of() for _ in keys]) == there
    adapter.close()


def test_random_traffic(folder):
    """The threads of LMCache's store and prefetch controllers, of two servers that share a directory."""
    def store(adapter, rng):
        for _ in range(20):
            numbers = rng.sample(range(20), 4)
            if rng.random() < 0.7:
                assert put(adapter, [key_of(each) for each in numbers], [object_of(each) for each in numbers]).is_successful()
            else:
                adapter.delete([key_of(each) for each in numbers])

    def load(adapter, rng):
        for _ in range(20):
            numbers = rng.sample(range(20), 4)
            targets = [object_of() for _ in numbers]
            find(adapter, [key_of(each) for each in numbers])
            for number, target, hit in zip(numbers, targets, get(adapter, [key_of(each) for each in numbers], targets), strict=True):
                assert not hit or torch.equal(target.tensor, object_of(number).tensor)

    adapters = [adapter_of(folder, threads=2) for _ in range(2)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(work, adapter, random.Random(i)) for i, adapter in enumerate(adapters) for work in (store, load)]:
            each.result()
    for adapter in adapters:
        adapter.close()


def test_their_storage_manager(folder):
    """Its controllers write objects to L2 and bring them back, as in a server."""
    from lmcache.v1.distributed import api, config
    from lmcache.v1.distributed.storage_manager import StorageManager

    from sluice.integrations.lmcache_adapter import _key

    def manager_of():
        adapters = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[described(folder)]))
        memory = config.L1MemoryManagerConfig(64 << 20, False, shm_name=f"sluice-test-{os.getpid()}-{random.random()}")
        return StorageManager(config.StorageManagerConfig(config.L1ManagerConfig(memory), config.EvictionConfig("LRU"), adapters))

    layout = api.MemoryLayoutDesc([torch.Size([SIZE])], [torch.float32])
    keys = [key_of(number) for number in range(10)]
    manager = manager_of()
    for key, reserved in manager.reserve_write(keys, layout).items():
        reserved.tensor.copy_(object_of(keys.index(key)).tensor)
    manager.finish_write(keys)
    (_, adapter), = manager.l2_adapters()
    while not all(adapter._store.contains(_key(key)) for key in keys):
        time.sleep(0.01)
    manager.close()

    manager = manager_of()  # a new server
    spec = api.PrefetchTaskSpec([api.GroupedObjectKeys([*keys, key_of(10)], 0, layout)])
    task = manager.submit_prefetch_task(spec)
    assert manager.wait_prefetch_status(task, 60)
    found = manager.query_prefetch_status(task)
    assert [found.l2_hit_cells[0].test(i) for i in range(11)] == [True] * 10 + [False]
    with manager.read_prefetched_results(keys) as objects:
        assert all(torch.equal(each.tensor.flatten(), object_of(number).tensor) for number, each in enumerate(objects))
    manager.finish_read_prefetched(keys)
    manager.close()
