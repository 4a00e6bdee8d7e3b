// SPDX-License-Identifier: BSD-2-Clause
// HbmCopy is the copy of a file in the memory of a GPU, as far as it has memory and is filled; see
// gpu/hbm.hpp.
//
// A copy that is filled and in one allocation can be shared: processes of one user map its memory.
// They can also write to it, because CUDA leaves that to the process that maps it. So it serves
// only that user from then on, and the checksums of its blocks, taken before it is shared, are
// checked before each use.
//
// Threads: thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "gpu/device.hpp"
#include "gpu/engine.hpp"
#include "gpu/file_version.hpp"
#include "gpu/lane.hpp"
#include "gpu/memory.hpp"

namespace sluice {

// What HbmTier has done with one GPU. The counts are since the start.
struct HbmFigures {
  const Device* device = nullptr;
  std::uint64_t limit = 0, reserve = 0;  // in bytes
  std::uint64_t bytes = 0;               // in use now
  std::uint64_t files = 0, kept = 0;     // copies now, and how many of them are to be kept
  std::uint64_t hits = 0, hit_bytes = 0, filled_bytes = 0, evictions = 0;
};

class HbmCopy {
 public:
  // Unit of filling, and of the driver's memory.
  static constexpr std::uint64_t kBlock = 2 << 20;
  // Unit of memory for parts of a file.
  static constexpr std::uint64_t kPiece = 64 << 20;

  // A range of the file: whole blocks, except at its end.
  struct Range {
    std::uint64_t begin = 0, end = 0;
  };

  // Counters that outlive the copy: it adds to them until its last user has released it.
  struct Use {
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> hits{0}, hit_bytes{0}, filled_bytes{0};
  };

  // Reserves addresses for the file, without memory.
  static Result<std::shared_ptr<HbmCopy>> create(Device& device, const FileVersion& version,
                                                 std::shared_ptr<Use> use);
  ~HbmCopy();
  HbmCopy(const HbmCopy&) = delete;
  HbmCopy& operator=(const HbmCopy&) = delete;

  const FileVersion& version() const { return version_; }
  Device& device() const { return device_; }
  // The file's bytes, from the first on. Only filled ranges may be accessed.
  Memory& memory() const { return *memory_; }
  CUdeviceptr address() const { return memory_->address(); }

  // The pieces of the segments that have no memory yet, joined where they touch; all of the file
  // that has none if `segments` is empty.
  std::vector<Range> without_memory(std::span<const Segment> segments) const;
  // Adds memory. REQUIRES: the range has none. ENOMEM: the GPU has not enough.
  Result<void> add_memory(const Range& range);
  // The bytes of memory that it has.
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t filled_bytes() const;

  bool is_filled(std::span<const Segment> segments) const;
  // The ranges that the caller must fill now, and then report by filled(). Those that others fill
  // are not among them. REQUIRES: the segments have memory.
  std::vector<Range> claim(std::span<const Segment> segments);
  void filled(std::span<const Range> ranges, bool good);
  // Waits until others have filled what they claimed. REQUIRES: the caller has claimed nothing.
  void wait(std::span<const Segment> segments);

  // Whether it has memory for the whole file, in one allocation.
  bool is_one_piece() const;
  // The user who may have mapped it; nothing if it was never shared. Never changes again once it is
  // set. A request that found no user before it read must find none afterwards, or read elsewhere.
  std::optional<uid_t> user() const;
  bool may_serve(uid_t user) const;
  // Sets the user. False: it is shared with another one.
  bool share_with(uid_t user);
  // Takes the checksums if there are none; otherwise counts the blocks that have changed since.
  // REQUIRES: the lane has entered the GPU and has a slot. CHECKED: share_with() was called.
  Result<std::uint64_t> changed_blocks(Lane& lane);
  // The same for the blocks that the segments touch. CHECKED: the checksums were taken.
  Result<std::uint64_t> changed_blocks(Lane& lane, std::span<const Segment> segments);
  bool has_sums() const { return sums_ready_; }
  // The whole memory as a descriptor that other processes can import. CHECKED: is_one_piece().
  Result<UniqueFd> export_memory();

  // No new request may use it.
  void end() { ended_ = true; }
  bool is_ended() const { return ended_; }
  Use& use() const { return *use_; }

 private:
  enum class Block : std::uint8_t { NoMemory, Empty, Filling, Filled };
  struct Piece {
    Range range;
    CUmemGenericAllocationHandle handle;
  };
  HbmCopy(Device& device, const FileVersion& version, CUdeviceptr address,
          std::shared_ptr<Use> use);
  std::uint64_t end_of(std::uint64_t block) const;

  Device& device_;
  const FileVersion version_;
  const std::uint64_t reserved_;  // bytes of addresses
  const std::unique_ptr<Memory> memory_;
  const std::shared_ptr<Use> use_;
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<bool> ended_{false};      // never becomes false again
  std::atomic<std::int64_t> user_{-1};  // set once
  Mutex sums_mutex_;                    // held while the checksums are taken
  CUdeviceptr sums_ = 0;                // set once, before sums_ready_
  std::atomic<bool> sums_ready_{false};
  mutable Mutex mutex_;
  CondVar filled_;
  std::vector<Block> blocks_ GUARDED_BY(mutex_);
  std::vector<Piece> pieces_ GUARDED_BY(mutex_);
  UniqueFd exported_ GUARDED_BY(mutex_);  // from the first export_memory() on
};

}  // namespace sluice
