// SPDX-License-Identifier: BSD-2-Clause
// The staged route: through slots of pinned memory, so that a piece is read from the file while
// earlier pieces are copied over the bus.
//
// Ownership: Staging owns the pinned memory, which is allocated at once, and borrows the workers.
// Threads: thread-safe; requests occupy the calling thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "gpu/cutter.hpp"
#include "gpu/engine.hpp"
#include "gpu/file_reader.hpp"
#include "gpu/lane.hpp"
#include "gpu/pinned_memory.hpp"
#include "gpu/worker_pool.hpp"

namespace sluice {

class Staging {
 public:
  // Pins memory near `device`. Errors are those of PinnedMemory::create().
  static Result<std::unique_ptr<Staging>> create(Device& device, WorkerPool& workers,
                                                 std::uint64_t chunk, unsigned slots);

  // Reads segments of at most kSmall bytes together, on the calling thread, through the page cache.
  // Returns the number of bytes.
  Result<std::uint64_t> read_small(int fd, Memory& memory, std::span<const Segment> segments);
  // Reads segments of at most kSmall bytes each, on the calling thread, through the page cache,
  // with as few copies to the GPU as possible. Returns the number of bytes.
  Result<std::uint64_t> read_batch(int fd, Memory& memory, std::span<const Segment> segments);
  // Reads with all workers, for `user`.
  Result<Cutter::Done> read(FileReader& reader, Memory& memory, Cutter& cutter, uid_t user);
  // Writes in file order, from the calling thread.
  Result<void> write(const EngineFile& file, Memory& memory, const Segment& segment);

  // Lanes for batches of a few hundred small pieces, with two slots each.
  LanePool& batches() { return batches_; }
  // The lane of a worker, for its own use.
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

// Why there is no Staging for this GPU, and what helps.
std::string why_not_pinned(const Device& device);

}  // namespace sluice
