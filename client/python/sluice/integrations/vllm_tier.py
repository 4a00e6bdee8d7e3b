# SPDX-License-Identifier: BSD-2-Clause
# pyright: reportMissingImports=false
"""A tier of vLLM's KV cache in a directory, below the CPU tier. In kv_connector_extra_config of the OffloadingConnector:

    "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 10737418240,
    "secondary_tiers": [{"type": "SluiceTier", "module_path": "sluice.integrations.vllm_tier",
                         "root_dir": "/mnt/pool/kv", "budget": "200GiB"}]
"""
import concurrent.futures
import dataclasses
import json
import time
from collections.abc import Iterable
from typing import Any, ClassVar

from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, RequestOffloadingContext
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from .._file import register
from ._blocks import Block, BlockStore, Piece


@dataclasses.dataclass
class _Job:
    keys: list[bytes]
    is_load: bool
    future: "concurrent.futures.Future[list[int]]"
    seconds: float | None = None

    def stop_clock(self, start: float) -> None:
        self.seconds = time.monotonic() - start


class _Lookups(AsyncLookupManager):  # type: ignore[misc,unused-ignore]  # vLLM may be missing
    def __init__(self, tier: "SluiceTier") -> None:
        self._tier = tier
        super().__init__(tier_type=tier.tier_type)

    def batch_lookup(self, keys: list[bytes], req_context: Any) -> Iterable[bool]:
        return [self._tier.contains(key) for key in keys]


class SluiceTier(SecondaryTierManager):  # type: ignore[misc,unused-ignore]  # vLLM may be missing
    """`root_dir` may be shared by any number of instances and models: the configuration is part of each block's key. `budget`
    is for all of it, and `threads` is the number of threads for each of loading and storing.

    Threads: vLLM calls the methods one at a time. A block that is missing or damaged is a failed key of its job.
    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, root_dir: str,
                 budget: str | None = None, threads: int = 4, locality: str | None = None,
                 backpressure_detector: Any = None) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = Locality(locality) if locality is not None else None
        mapper = FileMapper.from_offloading_spec(root_dir=root_dir, offloading_spec=offloading_spec,
                                                 blocks_per_file=offloading_spec.blocks_per_chunk, parallel_agnostic=True)
        # The mapper leaves out the order of the dimensions, which depends on the attention backend.
        described = {**mapper.get_run_config(), "rank": mapper.rank, "block_bytes": self.block_size_bytes,
                     "kv_cache_layout": getattr(getattr(offloading_spec, "config", None), "kv_cache_layout", None)}
        self._prefix = json.dumps(described, sort_keys=True).encode() + b"\0"
        self._store = BlockStore(root_dir, budget, threads)
        self._memory = register(primary_kv_view)
        self._jobs: dict[int, _Job] = {}
        self._lookups = _Lookups(self)

    def contains(self, key: bytes) -> bool:
        return self._store.contains(self._prefix + key, self.block_size_bytes)

    def on_new_request(self, req_context: Any) -> Any:
        return RequestOffloadingContext()

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        found = self._lookups.lookup(key, req_context)
        return LookupResult.RETRY if found is None else LookupResult.HIT if found else LookupResult.MISS

    def submit_store(self, job_metadata: Any) -> None:
        self._submit(job_metadata, is_load=False)

    def submit_load(self, job_metadata: Any) -> None:
        self._submit(job_metadata, is_load=True)

    def _submit(self, job: Any, is_load: bool) -> None:
        length, keys = self.block_size_bytes, list(job.keys)
        blocks = [Block(self._prefix + key, [Piece(self._memory, int(chunk) * length, length)])
                  for key, chunk in zip(keys, job.chunk_ids, strict=True)]
        future = self._store.load(blocks) if is_load else self._store.store(blocks)
        started = self._jobs[job.job_id] = _Job(keys, is_load, future)
        future.add_done_callback(lambda _: started.stop_clock(job.submit_time))

    def get_finished_jobs(self) -> Iterable[JobResult]:
        results = []
        for number, job in list(self._jobs.items()):
            if not job.future.done():
                continue
            del self._jobs[number]
            done = [key for key, is_done in zip(job.keys, job.future.result(), strict=True) if is_done]
            if job.is_load and len(done) < len(job.keys):
                # Otherwise vLLM would try to load them again and again.
                self._lookups.mark_miss(set(job.keys) - set(done))
            results.append(JobResult(
                job_id=number, success=len(done) == len(job.keys), successful_keys=tuple(done) if job.is_load else None,
                transfer_time=job.seconds, transfer_bytes=len(done) * self.block_size_bytes))
        return results

    def on_request_finished(self, req_context: Any) -> None:
        self._lookups.cleanup(req_context.req_id)

    def on_schedule_end(self, context: Any) -> None:
        self._lookups.flush()

    def drain_jobs(self) -> None:
        concurrent.futures.wait([job.future for job in self._jobs.values()])

    def shutdown(self) -> None:
        self._lookups.shutdown()
        self._store.close()
        self._memory.close()
