# SPDX-License-Identifier: BSD-2-Clause
# pyright: reportMissingImports=false
"""SGLang's hierarchical cache (HiCache) with its third level in a directory:

    python3 -m sglang.launch_server ... --enable-hierarchical-cache --hicache-mem-layout page_first \\
        --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "sluice",
        "module_path": "sluice.integrations.sglang_storage", "class_name": "SluiceStorage", "interface_v1": 1,
        "directory": "/mnt/pool/kv", "budget": "200GiB"}'

With "interface_v1" the bytes go from the files to SGLang's host memory without a copy.
"""
import json
from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolName, PoolTransferResult

from .._file import Buffer, register
from ._blocks import Block, BlockStore, Piece, piece_at, piece_of


class SluiceStorage(HiCacheStorage):  # type: ignore[misc,unused-ignore]  # SGLang may be missing
    """Threads: as SGLang uses it, one that loads and one that stores."""

    def __init__(self, storage_config: Any, options: dict[str, Any] | None = None) -> None:
        extra = storage_config.extra_config or {}
        if not extra.get("directory"):
            raise ValueError('the storage backend needs a "directory" in --hicache-storage-backend-extra-config')
        self._config = storage_config
        self._is_zero_copy = bool(extra.get("interface_v1"))
        self._store = BlockStore(extra["directory"], extra.get("budget"), int(extra.get("threads", 4)))
        self._pools: dict[str, Any] = {}
        self._prefixes: dict[str, bytes] = {}
        self._buffers: list[tuple[int, Buffer]] = []
        self._add_pool(PoolName.KV, None)  # for calls before the pool is known

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._add_pool(PoolName.KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._add_pool(host_pool_name, host_pool)

    def _add_pool(self, name: str, pool: Any) -> None:
        config = self._config
        self._pools[name] = pool
        # What makes bytes different that belong to the same tokens.
        described = {each: str(getattr(config, each, None)) for each in (
            "model_name", "tp_size", "pp_rank", "pp_size", "attn_cp_rank", "attn_cp_size", "is_mla_model", "dcp_rank",
            "dcp_size", "logical_page_size")}
        described |= {each: str(getattr(pool, each, None)) for each in (
            "layout", "dtype", "page_size", "layer_num", "start_layer", "end_layer", "head_num", "head_dim", "storage_format_tag")}
        described |= {"pool": str(name), "zero_copy": str(self._copies_nothing(pool)),
                      "tp_rank": "any" if self._is_shared(name) else str(config.tp_rank)}
        self._prefixes[name] = json.dumps(described, sort_keys=True).encode() + b"\0"
        for each in ("kv_buffer", "k_buffer", "v_buffer"):
            tensor: Any = getattr(pool, each, None)
            if self._copies_nothing(pool) and hasattr(tensor, "data_ptr") and tensor.is_contiguous():
                self._buffers.append((tensor.data_ptr(), register(tensor)))

    def _is_shared(self, name: str) -> bool:
        """All ranks of a model with latent attention (MLA) have the same KV pages."""
        return bool(self._config.is_mla_model) and name == PoolName.KV

    def _copies_nothing(self, pool: Any) -> bool:
        return self._is_zero_copy and hasattr(pool, "get_page_buffer_meta")

    def _key(self, key: str, pool: str = PoolName.KV) -> bytes:
        return self._prefixes[pool] + key.encode()

    def _piece(self, address: int, length: int) -> Piece:
        for start, buffer in self._buffers:
            if start <= address and address + length <= start + len(buffer):
                return Piece(buffer, address - start, length)
        return piece_at(address, length, self._pools)

    def _pages(self, name: str, keys: Sequence[str], host_indices: Any) -> list[Block]:
        """The memory of the pages."""
        addresses, sizes = self._pools[name].get_page_buffer_meta(host_indices)
        pieces = [self._piece(*each) for each in zip(addresses, sizes, strict=True)]
        share = len(pieces) // max(len(keys), 1)
        return [Block(self._key(key, name), pieces[i * share:(i + 1) * share]) for i, key in enumerate(keys)]

    def _get_pages(self, name: str, keys: list[str], host_indices: Any) -> list[bool]:
        pool = self._pools[name]
        if self._copies_nothing(pool):
            return list(map(bool, self._store.load(self._pages(name, keys, host_indices)).result()))
        pages = [pool.get_dummy_flat_data_page() for _ in keys]
        found = self._store.load([Block(self._key(key, name), [piece_of(page)])
                                  for key, page in zip(keys, pages, strict=True)]).result()
        for i, page in enumerate(pages):
            if found[i]:
                pool.set_from_flat_data_page(host_indices[i * pool.page_size].item(), page)
        return list(map(bool, found))

    def _set_pages(self, name: str, keys: list[str], host_indices: Any) -> list[bool]:
        if self._is_shared(name) and not getattr(self._config, "is_storage_writer", True):
            return [True] * len(keys)
        pool = self._pools[name]
        if self._copies_nothing(pool):
            return list(map(bool, self._store.store(self._pages(name, keys, host_indices)).result()))
        pages = [pool.get_data_page(host_indices[i * pool.page_size].item(), flat=True) for i in range(len(keys))]
        return list(map(bool, self._store.store([Block(self._key(key, name), [piece_of(page.contiguous())])
                                                 for key, page in zip(keys, pages, strict=True)]).result()))

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._get_pages(PoolName.KV, keys, host_indices)

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._set_pages(PoolName.KV, keys, host_indices)

    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return {each.name: self._checked(self._get_pages, each) for each in transfers}

    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return {each.name: self._checked(self._set_pages, each) for each in transfers}

    def _checked(self, work: Callable[..., list[bool]], transfer: Any) -> list[bool]:
        keys, indices = transfer.keys or [], transfer.host_indices
        if indices is None or indices.numel() != len(keys) * (getattr(self._pools[transfer.name], "page_size", 1) or 1):
            return [False] * len(keys)
        return work(transfer.name, keys, indices)

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        blocks = [Block(self._key(key), [piece_of(target)]) for key, target in zip(keys, target_locations, strict=True)]
        found = self._store.load(blocks).result()
        return [target if hit else None for target, hit in zip(target_locations, found, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        if self._is_shared(PoolName.KV) and not getattr(self._config, "is_storage_writer", True):
            return True
        return all(self._store.store([Block(self._key(key), [piece_of(value.contiguous())])
                                      for key, value in zip(keys, values, strict=True)]).result())

    def exists(self, key: str) -> bool:
        return self._store.contains(self._key(key))

    def batch_exists_v2(self, keys: list[str], pool_transfers: list[Any] | None = None, extra_info: Any = None) -> Any:
        pages = self.batch_exists(keys)
        hits: dict[str, int] = {PoolName.KV: pages} if pages else {}
        usable = list(range(1, pages + 1))  # lengths of a prefix of which every pool has what it needs
        for transfer in pool_transfers or []:
            if transfer.hit_policy not in (PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES):
                raise ValueError(f"pool {transfer.name}: the hit policy {transfer.hit_policy} is not supported")
            there = [self._store.contains(self._key(key, transfer.name)) for key in keys[:pages]]
            window = pages if transfer.hit_policy == PoolHitPolicy.ALL_PAGES else max(1, len(transfer.keys or []))
            good = [length for length in range(1, pages + 1) if all(there[max(0, length - window):length])]
            if good:
                hits[transfer.name] = good[-1]
            usable = [length for length in usable if length in set(good)]
        return PoolTransferResult(usable[-1] if usable else 0, hits, usable)

    def close(self) -> None:
        self._store.close()
