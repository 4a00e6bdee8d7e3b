// SPDX-License-Identifier: BSD-2-Clause
// The staged route: through slots of pinned memory, so that a piece is read from the file while the
// ones before it are on the bus.
//
// Ownership: Staging owns the pinned memory, all of it allocated at once; borrows the workers.
// Threads: thread-safe; requests occupy the calling thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "gpu/engine.hpp"
#include "gpu/file_reader.hpp"
#include "gpu/lane.hpp"
#include "gpu/pinned_memory.hpp"
#include "gpu/worker_pool.hpp"

namespace sluice {

class Staging {
 public:
  // Pins memory near `device`. Fails as PinnedMemory::create() does.
  static Result<std::unique_ptr<Staging>> create(Device& device, WorkerPool& workers,
                                                 std::uint64_t chunk, unsigned slots);

  // All segments, of at most kSmall bytes together, on the calling thread, through the page cache.
  // Returns how many bytes there were.
  Result<std::uint64_t> read_small(int fd, Memory& memory, std::span<const Segment> segments);
  // All segments, each of at most kSmall bytes, on the calling thread, through the page cache, and
  // with as few copies to the GPU as can be. Returns how many bytes there were.
  Result<std::uint64_t> read_batch(int fd, Memory& memory, std::span<const Segment> segments);
  // With all workers.
  Result<std::uint64_t> read(FileReader& reader, Memory& memory, std::span<const Segment> segments);
  // In the order of the file, from the calling thread.
  Result<void> write(const EngineFile& file, Memory& memory, const Segment& segment);

  // Lanes for a few hundred small pieces at once, with two slots each.
  LanePool& batches() { return batches_; }
  // That of a worker, for its own use.
  Lane& lane(unsigned worker) { return *lanes_[worker]; }
  // Lanes for writes, with several slots each.
  LanePool& writers() { return writers_; }
  std::uint64_t chunk() const { return chunk_; }
  std::uint64_t pinned_bytes() const { return pinned_->bytes().size(); }

 private:
  class ReadJob;
  class BatchRead;

  Staging(std::unique_ptr<PinnedMemory> pinned, WorkerPool& workers, std::uint64_t chunk,
          unsigned slots);

  const std::unique_ptr<PinnedMemory> pinned_;
  WorkerPool& workers_;
  const std::uint64_t chunk_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // by worker
  LanePool small_, writers_, batches_;
};

// Without pinned memory, at a fraction of the speed: through a plain buffer that the driver copies
// once more. Not from a mapping of the file, which would be one copy less: the driver reads it with
// the CPU, and a file that is truncated meanwhile would end the process with SIGBUS.
Result<std::uint64_t> read_pageable(Lane& lane, int fd, Memory& memory,
                                    std::span<const Segment> segments);
Result<void> write_pageable(Lane& lane, const EngineFile& file, Memory& memory,
                            const Segment& segment);

}  // namespace sluice
