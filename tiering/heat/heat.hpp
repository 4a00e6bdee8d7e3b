// SPDX-License-Identifier: BSD-2-Clause
// HeatRecorder counts accesses in memory and writes them to the store in batches, so that recording
// an access never waits for the database. Threads: every member may be called from any thread at
// once.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "metadata/store.hpp"
#include "tiering/heat/heat_table.hpp"

namespace sluice {

// New accesses to one file. Each open adds 1 to its score, and so does each reading into a GPU.
struct Access {
  std::uint32_t opens = 0;
  std::uint64_t gpu_bytes = 0;  // of one reading, in one or many requests; 0 if there was none
};

class HeatRecorder {
 public:
  // `half_life` must be the store's.
  HeatRecorder(Store& store, std::chrono::seconds half_life, const Clock& clock = real_clock())
      : store_(store), half_life_(half_life), clock_(clock) {}

  void record(InodeId id, const Access& access);
  // If the store fails for long, accesses to more files than this are not counted.
  static constexpr std::size_t kMostPending = 1 << 20;
  std::size_t pending() const;  // files with counts that are not stored yet

  // The stored heat plus the counts that are not stored yet. The score is as of last_access;
  // decayed() converts it to another time. Blocks while a batch is being stored.
  Result<Heat> heat(InodeId id) const;

  // Writes the collected counts to the store. On failure, the counts that were not written are kept
  // for the next flush. A walk over the store that starts afterwards sees everything recorded
  // before this call.
  Result<void> flush();

  // The files with the most new accesses in the last flush(), at most kBusiest of them.
  static constexpr std::size_t kBusiest = 64;
  std::vector<InodeId> busiest() const;

 private:
  // Sharded to reduce contention between threads that open different files.
  struct Shard {
    mutable Mutex mutex;
    HeatTable pending GUARDED_BY(mutex);
  };
  static constexpr unsigned kShardBits = 8;
  static constexpr std::size_t kMostInShard = kMostPending >> kShardBits;

  // The top bits of a product, because ids of files created one after another are similar.
  Shard& shard(InodeId id) {
    return shards_[to_number(id) * 0x9E3779B97F4A7C15 >> (64 - kShardBits)];
  }
  const Shard& shard(InodeId id) const { return const_cast<HeatRecorder*>(this)->shard(id); }

  void add(InodeId id, const Heat& delta);

  // The steps of a flush. write_some() returns false when nothing is left to write.
  void take_pending() REQUIRES(flush_);
  Result<bool> write_some() REQUIRES(flush_);
  void put_back_rest() REQUIRES(flush_);

  Store& store_;
  const std::chrono::seconds half_life_;
  const Clock& clock_;

  // Held during the whole flush.
  Mutex flush_ ACQUIRED_BEFORE(handing_over_);
  // Locked exclusively while counts move between places, so that heat() counts each exactly once.
  // Taken before the mutex of a shard.
  mutable SharedMutex handing_over_;
  std::vector<HeatTable::Entry> taken_ GUARDED_BY(handing_over_);  // taken from the shards; sorted
  // So many of `taken_` are in the store already.
  std::ptrdiff_t written_ GUARDED_BY(handing_over_) = 0;
  std::vector<InodeId> busiest_ GUARDED_BY(handing_over_);
  std::array<Shard, 1 << kShardBits> shards_;
};

}  // namespace sluice
