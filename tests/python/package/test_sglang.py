# SPDX-License-Identifier: BSD-2-Clause
"""Runs with the classes of the SGLang package, which need no GPU."""
import concurrent.futures
import os
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang.srt.mem_cache.hicache_storage")

from sglang.srt.mem_cache import device_pool_info  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolHitPolicy, PoolName, PoolTransfer  # noqa: E402
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost  # noqa: E402
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory  # noqa: E402

PAGE, PAGES, LAYERS = 4, 16, 3


def pool_of(layout, dtype=torch.bfloat16):
    layers = tuple(torch.zeros(PAGE * PAGES, 2, 8, dtype=dtype) for _ in range(LAYERS))
    pointers = torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64)
    buffers = device_pool_info.KVBuffers(k=layers, v=layers, k_data_ptrs=pointers, v_data_ptrs=pointers,
                                         layout=next(iter(device_pool_info.KVBufferLayout)))
    info = device_pool_info.MHABufferInfo(buffers=buffers, page_size=PAGE, head_num=2, head_dim=8, v_head_dim=8, dtype=dtype,
                                          device=torch.device("cpu"))
    return MHATokenToKVPoolHost(info, 1.0, 0, PAGE, layout, pin_memory=False, device_capacity_tokens=PAGE * PAGES,
                                start_layer=0, end_layer=LAYERS)


def backend_of(folder, pool=None, zero_copy=1, budget=None, **config):
    extra = {"backend_name": "sluice", "module_path": "sluice.integrations.sglang_storage", "class_name": "SluiceStorage",
             "directory": str(folder / "kv"), "budget": budget, "interface_v1": zero_copy}
    made = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1, "is_mla_model": False,
            "enable_storage_metrics": False, "is_page_first_layout": True, "model_name": "org/model", **config}
    backend = StorageBackendFactory.create_backend("dynamic", HiCacheStorageConfig(**made, extra_config=extra), pool)
    if pool is not None:
        backend.register_mem_pool_host(pool)
    return backend


def fill(pool, page, seed):
    """Gives a page its bytes and returns them."""
    data = torch.rand(pool.get_data_page(page * PAGE).shape, generator=torch.Generator().manual_seed(seed)).to(pool.dtype)
    pool.set_from_flat_data_page(page * PAGE, data)
    return data


def indices_of(pages):
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct"])
def test_pages_without_a_copy(folder, layout):
    pool = pool_of(layout)
    backend = backend_of(folder, pool)
    assert len(backend._buffers) >= 1
    keys = [f"hash/{i}" for i in range(8)]
    data = [fill(pool, page, page) for page in range(8)]
    assert backend.batch_exists(keys) == 0
    assert backend.batch_set_v1(keys[:6], indices_of(range(6))) == [True] * 6
    assert backend.batch_exists(keys) == 6 and backend.exists(keys[5]) and not backend.exists(keys[6])
    order = [5, 0, 3, 7]
    pool.kv_buffer.zero_()
    assert backend.batch_get_v1([keys[i] for i in order], indices_of([8, 1, 15, 2])) == [True, True, True, False]
    for page, number in ((8, 5), (1, 0), (15, 3)):
        assert torch.equal(pool.get_data_page(page * PAGE), data[number])
    backend.close()


def test_pages_with_a_copy(folder):
    pool = pool_of("layer_first")
    backend = backend_of(folder, pool, zero_copy=0)
    data = [fill(pool, page, page) for page in range(4)]
    assert backend.batch_set([f"h{i}" for i in range(4)], data) and backend.set("one", data[0])
    targets = [pool.get_dummy_flat_data_page() for _ in range(5)]
    found = backend.batch_get(["h0", "h1", "none", "h3", "one"], targets)
    assert found[2] is None
    assert all(torch.equal(found[i], data[j]) for i, j in ((0, 0), (1, 1), (3, 3), (4, 0)))
    assert backend.get("none", targets[0]) is None
    backend.close()


@pytest.mark.parametrize("config", [{"model_name": "org/other"}, {"tp_rank": 1, "tp_size": 2}, {"pp_rank": 1, "pp_size": 2}])
def test_another_configuration_has_its_own_pages(folder, config):
    pool = pool_of("page_first")
    first, second = backend_of(folder, pool), backend_of(folder, pool, **config)
    first.batch_set_v1(["h"], indices_of([0]))
    assert first.exists("h") and not second.exists("h")
    assert second.batch_get_v1(["h"], indices_of([1])) == [False]
    other = backend_of(folder, pool_of("page_first", torch.float16))
    assert not other.exists("h")
    for backend in (first, second, other):
        backend.close()


def test_ranks_of_a_latent_model_share_pages(folder):
    pool = pool_of("page_first")
    ranks = [backend_of(folder, pool, is_mla_model=True, tp_rank=rank, tp_size=2) for rank in range(2)]
    assert ranks[1].batch_set_v1(["h"], indices_of([0])) == [True] and not ranks[1].exists("h")  # rank 0 writes
    assert ranks[0].batch_set_v1(["h"], indices_of([0])) == [True] and ranks[1].exists("h")
    for backend in ranks:
        backend.close()


def test_deleted_and_damaged_pages_are_misses(folder):
    pool = pool_of("page_first")
    backend = backend_of(folder, pool)
    keys = [f"h{i}" for i in range(4)]
    backend.batch_set_v1(keys, indices_of(range(4)))
    backend._store._path(backend._key("h1")).unlink()
    os.truncate(backend._store._path(backend._key("h2")), 100)
    assert backend.batch_get_v1(keys, indices_of(range(4))) == [True, False, False, True]
    assert backend.batch_set_v1(keys, indices_of(range(4))) == [True] * 4
    assert backend.batch_get_v1(keys, indices_of(range(4))) == [True] * 4
    (folder / "kv" / "tmp").rmdir()
    (folder / "kv" / "tmp").touch()
    assert backend.batch_set_v1(["new", "h0"], indices_of(range(2))) == [False, True]
    backend.close()


@pytest.mark.parametrize("zero_copy", [0, 1])
def test_several_pools(folder, zero_copy):
    pool, side = pool_of("page_first"), pool_of("page_first", torch.float32)
    backend = backend_of(folder, pool, zero_copy)
    backend.register_mem_host_pool_v2(pool, PoolName.KV)
    backend.register_mem_host_pool_v2(side, PoolName.SWA)
    keys = [f"h{i}" for i in range(4)]
    data = [fill(side, page, page) for page in range(4)]
    assert backend.batch_set_v2([PoolTransfer(PoolName.KV, indices_of(range(4)), keys=keys),
                                 PoolTransfer(PoolName.SWA, indices_of([0, 2, 3]), keys=[keys[0], keys[2], keys[3]])]) == {
        PoolName.KV: [True] * 4, PoolName.SWA: [True] * 3}

    def exists(policy, window):
        return backend.batch_exists_v2([*keys, "none"], [PoolTransfer(PoolName.SWA, keys=keys[:window], hit_policy=policy)])

    found = exists(PoolHitPolicy.ALL_PAGES, 4)
    assert (found.kv_hit_pages, found.extra_pool_hit_pages) == (1, {PoolName.KV: 4, PoolName.SWA: 1})
    found = exists(PoolHitPolicy.TRAILING_PAGES, 1)
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (4, [1, 3, 4])
    assert exists(PoolHitPolicy.TRAILING_PAGES, 2).restorable_prefix_pages == [1, 4]
    with pytest.raises(ValueError, match="not supported"):
        exists(PoolHitPolicy.BLOCK_GROUPS, 1)
    side.kv_buffer.zero_()
    assert backend.batch_get_v2([PoolTransfer(PoolName.SWA, indices_of([5, 6, 7]), keys=[keys[3], keys[1], keys[2]])]) == {
        PoolName.SWA: [True, False, True]}
    assert torch.equal(side.get_data_page(5 * PAGE), data[3]) and torch.equal(side.get_data_page(7 * PAGE), data[2])
    assert backend.batch_get_v2([PoolTransfer(PoolName.SWA, None, keys=keys)]) == {PoolName.SWA: [False] * 4}
    backend.close()


def test_the_same_hits_as_their_file_backend(folder):
    """Their own backend of files is the model for batch_exists_v2()."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheFile
    pool, side = pool_of("page_first"), pool_of("page_first", torch.float32)
    ours = backend_of(folder, pool, zero_copy=0)
    theirs = HiCacheFile(ours._config, str(folder / "theirs"))
    for backend in (ours, theirs):
        backend.register_mem_host_pool_v2(pool, PoolName.KV)
        backend.register_mem_host_pool_v2(side, PoolName.MAMBA)
    rng = random.Random(1)
    for round in range(40):
        keys = [f"{round}/{i}".replace("/", "-") for i in range(6)]
        for name, chance in ((PoolName.KV, 0.9), (PoolName.MAMBA, 0.6)):
            some = [key for key in keys if rng.random() < chance]
            if some:
                for backend in (ours, theirs):
                    backend.batch_set_v2([PoolTransfer(name, indices_of(range(len(some))), keys=some)])
        for policy in (PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES):
            transfer = PoolTransfer(PoolName.MAMBA, keys=keys[:rng.randint(0, 3)], hit_policy=policy)
            assert ours.batch_exists_v2(keys, [transfer]) == theirs.batch_exists_v2(keys, [transfer])
        assert ours.batch_exists(keys) == theirs.batch_exists(keys)
    ours.close()


def test_mistakes_are_explained(tmp_path):
    extra = {"backend_name": "sluice", "module_path": "sluice.integrations.sglang_storage", "class_name": "SluiceStorage"}
    config = HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "m", extra_config=extra)
    with pytest.raises(ValueError, match='needs a "directory"'):
        StorageBackendFactory.create_backend("dynamic", config, None)
    with pytest.raises(OSError, match="not on a Sluice mount"):
        backend_of(tmp_path, budget="1GiB")


def test_random_traffic_of_servers_that_share_a_directory(folder):
    def work(number):
        rng, pool = random.Random(number), pool_of("page_first")
        backend = backend_of(folder, pool)
        hits = 0
        for _ in range(30):
            numbers = rng.sample(range(20), 4)
            keys = [f"h{each}" for each in numbers]
            match rng.randrange(3):
                case 0:
                    for page, each in enumerate(numbers):
                        fill(pool, page, each)
                    assert all(backend.batch_set_v1(keys, indices_of(range(4))))
                case 1:
                    for page, hit in enumerate(backend.batch_get_v1(keys, indices_of(range(4, 8)))):
                        hits += hit
                        assert not hit or torch.equal(pool.get_data_page((page + 4) * PAGE), fill(pool, 9, numbers[page]))
                case 2:
                    backend._store._path(backend._key(keys[0])).unlink(missing_ok=True)
        backend.close()
        return hits

    with concurrent.futures.ThreadPoolExecutor(4) as servers:
        assert sum(servers.map(work, range(4))) > 0
