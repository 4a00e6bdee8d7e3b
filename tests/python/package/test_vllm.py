# SPDX-License-Identifier: BSD-2-Clause
"""Runs with the classes of the vLLM package, which need no GPU."""
import os
import random
import time

import pytest

pytest.importorskip("vllm.v1.kv_offload.tiering.base")
torch = pytest.importorskip("torch")

from vllm.v1.kv_offload import base  # noqa: E402
from vllm.v1.kv_offload import config as offloading  # noqa: E402
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec  # noqa: E402

CHUNK = 1 << 16


class Engine:
    """A scheduler's part in the KV cache: a real TieringOffloadingManager with a CPU tier of 8 chunks and ours below it."""

    def __init__(self, root, model="org/model", dtype="bfloat16", layout="LBNHC", **options):
        tier = {"type": "SluiceTier", "module_path": "sluice.integrations.vllm_tier", "root_dir": str(root), "threads": 2, **options}
        self.spec = TieringOffloadingSpec(offloading.OffloadingConfig(
            groups=(offloading.OffloadingGroupConfig(16, ("layer.0",), 0),), worker_kv_bytes_per_block=CHUNK,
            enable_kv_cache_events=False, extra_config={"cpu_bytes_to_use": 8 * CHUNK, "secondary_tiers": [tier]},
            engine_id=f"sluice-test-{os.getpid()}-{random.random()}", model=offloading.OffloadingModelConfig(model, dtype),
            cache=offloading.OffloadingCacheConfig(16, 1),
            parallel=offloading.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True), kv_cache_layout=layout))
        self.manager = self.spec.get_manager()
        self.memory = self.manager.primary_tier.get_kv_memoryview()
        self.requests = 0

    @property
    def tier(self):
        return self.manager.secondary_tiers[0]

    def step(self):
        self.manager.on_schedule_end(base.ScheduleEndContext((), ()))

    def request(self):
        self.requests += 1
        context = base.ReqContext(f"request {self.requests}")
        self.manager.on_new_request(context)
        return context

    def settle(self):
        for _ in range(1000):
            self.step()
            if not self.manager.has_pending_work():
                return
            time.sleep(0.01)
        raise AssertionError("jobs do not end")

    def put(self, numbers):
        context = self.request()
        output = self.manager.prepare_store([key_of(number) for number in numbers], context)
        for key, chunk in zip(output.keys_to_store, output.store_spec.chunk_ids, strict=True):
            self.row(chunk)[:] = content_of(key)
        self.manager.complete_store(output.keys_to_store, context)
        self.settle()
        self.manager.on_request_finished(context)

    def get(self, numbers):
        """Returns for each chunk whether it was found, after comparing its bytes."""
        context = self.request()
        found = []
        for number in numbers:
            key = key_of(number)
            for _ in range(1000):
                answer = self.manager.lookup(key, context)
                if answer in (base.LookupResult.HIT, base.LookupResult.MISS):
                    break
                self.step()
                time.sleep(0.01)
            found.append(answer is base.LookupResult.HIT)
            if found[-1]:
                loaded = self.manager.prepare_load([key], context)
                assert self.row(loaded.chunk_ids[0]) == content_of(key)
                self.manager.complete_load([key], context)
        self.manager.on_request_finished(context)
        return found

    def row(self, chunk):
        return self.memory.cast("B")[int(chunk) * CHUNK:(int(chunk) + 1) * CHUNK]

    def forget(self):
        """Empties the CPU tier."""
        self.settle()
        self.manager.reset_cache()
        self.manager.on_reset_flushed()

    def close(self):
        self.manager.shutdown()


def key_of(number):
    return base.make_offload_key(number.to_bytes(32, "big"), 0)


def content_of(key):
    return random.Random(key).randbytes(CHUNK)


@pytest.fixture
def engine(folder):
    engine = Engine(folder / "kv")
    yield engine
    engine.close()


def test_chunks_come_back_from_the_tier(engine, folder):
    engine.put(range(4))
    engine.put(range(4, 8))
    engine.forget()
    assert engine.get([0, 3, 7, 8]) == [True, True, True, False]
    for start in range(8, 40, 4):  # more than the CPU tier holds
        engine.put(range(start, start + 4))
    assert engine.get([0, 5, 20, 39, 40]) == [True, True, True, True, False]
    other = Engine(folder / "kv")  # another instance of the same model
    assert other.get([0, 39, 40]) == [True, True, False]
    other.close()


@pytest.mark.parametrize("options", [{"model": "org/other"}, {"dtype": "float16"}, {"layout": "LBHNC"}])
def test_another_configuration_has_its_own_chunks(engine, folder, options):
    engine.put(range(4))
    other = Engine(folder / "kv", **options)
    assert other.get(range(4)) == [False] * 4
    other.close()


def test_deleted_and_damaged_chunks_are_misses(engine):
    engine.put(range(6))
    engine.forget()
    paths = [engine.tier._store._path(engine.tier._prefix + key_of(number)) for number in range(6)]
    paths[1].unlink()
    os.truncate(paths[2], 100)
    with open(paths[3], "r+b") as file:
        file.write(b"damaged")
    assert engine.get(range(6)) == [True, False, False, False, True, True]
    engine.put(range(6))
    engine.forget()
    assert engine.get(range(6)) == [True] * 6


def test_a_chunk_deleted_between_lookup_and_load_is_a_miss(engine):
    engine.put([0, 1])
    engine.forget()
    context = engine.request()
    assert engine.manager.lookup(key_of(0), context) is base.LookupResult.RETRY
    engine.step()
    while engine.tier._lookups._pending_results.empty():
        time.sleep(0.01)
    engine.tier._store._path(engine.tier._prefix + key_of(0)).unlink()
    while (answer := engine.manager.lookup(key_of(0), context)) not in (base.LookupResult.HIT, base.LookupResult.MISS):
        engine.step()
        time.sleep(0.01)
    assert answer is base.LookupResult.MISS
    engine.manager.on_request_finished(context)
    assert engine.get([1]) == [True]


def test_a_store_that_fails_is_reported(engine, folder):
    (folder / "kv" / "tmp").rmdir()
    (folder / "kv" / "tmp").touch()
    engine.put([0])
    engine.forget()
    assert engine.get([0]) == [False]
    (folder / "kv" / "tmp").unlink()
    engine.put([0])
    engine.forget()
    assert engine.get([0]) == [True]


def test_a_budget_on_a_mount(mount):
    engine = Engine(mount / "kv", budget="1MiB")
    assert os.getxattr(mount / "kv", "user.sluice.budget") == b"1048576"
    for start in range(0, 60, 4):
        engine.put(range(start, start + 4))
    engine.forget()
    assert sum(engine.get(range(60))) >= 8
    engine.close()


def test_random_traffic(folder):
    engines = [Engine(folder / "kv") for _ in range(2)]
    rng, there = random.Random(3), set()
    for _ in range(60):
        engine, numbers = rng.choice(engines), rng.sample(range(30), rng.randint(1, 4))
        match rng.randrange(4):
            case 0:
                engine.put(numbers)
                there |= set(numbers)
            case 1:
                assert not set(number for number, hit in zip(numbers, engine.get(numbers), strict=True) if hit) - there
            case 2:
                engine.forget()
                engine.tier._store._path(engine.tier._prefix + key_of(numbers[0])).unlink(missing_ok=True)
            case 3:
                engine.tier.drain_jobs()
    for engine in engines:
        engine.close()
