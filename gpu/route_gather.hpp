// SPDX-License-Identifier: BSD-2-Clause
// Records of a file by number, where the GPU can't read the page cache by itself: by the workers,
// through pinned slots, or straight to host memory. And the way back. Functions of no state.
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

// The memory's end of a request: record index[i] is at offset + i * size of the memory.
struct RecordPlaces {
  Memory& memory;
  std::uint64_t offset = 0;
};

// Where gathering has its threads, and the slots for a GPU's memory; none for the host's.
struct Gatherers {
  WorkerPool& workers;
  Staging* staging = nullptr;
  std::uint64_t chunk = 0;  // of a slot, or of what a worker reads at once
};

// The largest record for these functions: two of them must fit into a piece.
inline constexpr std::uint64_t largest_gathered(std::uint64_t chunk) { return chunk / 2; }

// All as the index has it, one read each: for what is in the page cache. ERANGE if the file became
// too short. REQUIRES: the index is valid.
Result<void> gather_in_order(const Gatherers& with, int fd, const RecordPlaces& to,
                             const RecordFile& records, std::span<const std::uint64_t> index);
// In the order of the file, with neighbours and duplicates read once: for what is on disk. Fails,
// and requires, as the above.
Result<void> gather_sorted(const Gatherers& with, FileReader& reader, const RecordPlaces& to,
                           const RecordFile& records, std::span<const std::uint64_t> index);

// Writes in the order of the file, from the calling thread; of duplicates the last. `staging` null:
// from host memory. REQUIRES: the index is valid.
Result<void> scatter_sorted(Staging* staging, const EngineFile& file, const RecordPlaces& from,
                            const RecordFile& records, std::span<const std::uint64_t> index);

}  // namespace sluice
