// SPDX-License-Identifier: BSD-2-Clause
// Reads records by number if the GPU can't read the page cache itself: workers read them into
// pinned slots, or directly to host memory. Also writes them. Stateless functions.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.hpp"
#include "gpu/engine.hpp"
#include "gpu/file_reader.hpp"
#include "gpu/records.hpp"
#include "gpu/route_staged.hpp"
#include "gpu/worker_pool.hpp"

namespace sluice {

// The memory of a request: record index[i] is at offset + i * size of the memory.
struct RecordPlaces {
  Memory& memory;
  std::uint64_t offset = 0;
};

// The threads for gathering, and the slots for GPU memory; host memory needs none.
struct Gatherers {
  WorkerPool& workers;
  Staging* staging = nullptr;
  std::uint64_t chunk = 0;  // size of a slot, or of one read of a worker
  uid_t user = EngineFile::kNoUser;
};

// The largest record for these functions: two must fit into a piece.
inline constexpr std::uint64_t largest_gathered(std::uint64_t chunk) { return chunk / 2; }

// Reads in the order of the index, one read per record; for records in the page cache. ERANGE: the
// file became too short. REQUIRES: the index is valid.
Result<void> gather_in_order(const Gatherers& with, int fd, const RecordPlaces& to,
                             const RecordFile& records, std::span<const std::uint64_t> index);
// Reads in file order; neighbours and duplicates are read once. For records on disk. Errors and
// requirements as above.
Result<void> gather_sorted(const Gatherers& with, FileReader& reader, const RecordPlaces& to,
                           const RecordFile& records, std::span<const std::uint64_t> index);

// Copies records with a kernel; the first one is at the address `from`. False: a record number is
// out of range; the other records were copied. REQUIRES: the lane has slots and has
// entered the GPU, which has kernels and can access `from`.
Result<bool> gather_by_kernel(Lane& lane, CUdeviceptr to, CUdeviceptr from,
                              const RecordFile& records, const RecordIndex& index);

// Writes in file order, from the calling thread; of duplicates, the last. A null `staging` means
// from host memory. REQUIRES: the index is valid.
Result<void> scatter_sorted(Staging* staging, const EngineFile& file, const RecordPlaces& from,
                            const RecordFile& records, std::span<const std::uint64_t> index);

}  // namespace sluice
