// SPDX-License-Identifier: BSD-2-Clause
// Checksums of memory, computed by the GPU that has it or by the CPU. Both give the same values:
// the checksum of a block is XXH3-64 (seed 0) of its 4 KiB; the last block may be shorter. The
// checksum of a range is XXH3-64 of the checksums of its blocks, as little-endian 64-bit numbers in
// the order of the blocks. docs/gpu.md has this definition for users: never change it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "gpu/kernels.hpp"
#include "gpu/lane.hpp"
#include "gpu/pinned_memory.hpp"

namespace sluice {

inline constexpr std::uint64_t kChecksumBlock = 4096;

// The number of blocks of a range.
constexpr std::uint64_t checksum_count(std::uint64_t bytes) {
  return bytes / kChecksumBlock + (bytes % kChecksumBlock != 0 ? 1 : 0);
}

// The checksum of a range that is given piece by piece. Threads: caller locks.
class RangeChecksum {
 public:
  RangeChecksum();
  ~RangeChecksum();
  RangeChecksum(const RangeChecksum&) = delete;
  RangeChecksum& operator=(const RangeChecksum&) = delete;

  // Adds bytes in host memory. REQUIRES: all pieces but the last are whole blocks.
  void add(std::span<const std::byte> bytes);
  // Adds the checksums of blocks.
  void add_sums(std::span<const std::uint64_t> sums);
  std::uint64_t value() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

// Starts to compute the checksum of each block of GPU memory; `sums` has room for
// checksum_count(bytes) 64-bit numbers, in memory that the GPU accesses directly. They are complete
// after lane.synchronize(). It is fastest if `from` is a multiple of 16. EOPNOTSUPP: this GPU
// cannot run our kernels. REQUIRES: the lane has entered the GPU.
Result<void> checksum_blocks(Lane& lane, CUdeviceptr from, std::uint64_t bytes, CUdeviceptr sums);

// Compares the checksums of GPU memory with those that checksum_blocks() has stored, on the GPU.
// Returns how many blocks differ, and the number of the first one if there is any. Waits until it
// is done. REQUIRES: as above; the lane has a slot, and no copy in progress uses slot 0.
Result<Kernels::Differing> verify_blocks(Lane& lane, CUdeviceptr from, std::uint64_t bytes,
                                         CUdeviceptr sums);

// Computes checksums of ranges of GPU memory for this process. It has a stream and some pinned
// memory, allocated at the first use and kept. Threads: thread-safe; one range at a time.
class GpuChecksums {
 public:
  // The results of one launch have `slot` bytes, a multiple of the page size.
  explicit GpuChecksums(std::size_t slot = 512 << 10) : slot_(slot) {}
  // Adds a range to `sum`, as RangeChecksum::add() does. After an error, `sum` is useless.
  // EOPNOTSUPP: this GPU cannot run our kernels. REQUIRES: all GPUs that it is called for outlive
  // the object.
  Result<void> add(Device& device, CUdeviceptr from, std::uint64_t bytes, RangeChecksum& sum);

 private:
  Result<void> add(Lane& lane, CUdeviceptr from, std::uint64_t bytes, RangeChecksum& sum) const;

  const std::size_t slot_;
  Mutex mutex_;  // held while a checksum is computed
  std::unique_ptr<PinnedMemory> pinned_ GUARDED_BY(mutex_);
  std::optional<Lane> lane_ GUARDED_BY(mutex_);
};

}  // namespace sluice
