// SPDX-License-Identifier: BSD-2-Clause
// HeatRecorder counts accesses without touching the database on the way: in memory at once, to the
// store in batches. Threads: every member may be called from any thread at once.
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
#include "tiering/heat_table.hpp"

namespace sluice {

// What is new about one file. Each open adds 1 to its score, and so does a reading into a GPU.
struct Access {
  std::uint32_t opens = 0;
  std::uint64_t gpu_bytes =
      0;  // of one reading of the file, in one or many requests; 0: there was none
};

class HeatRecorder {
 public:
  // `half_life` is the store's.
  HeatRecorder(Store& store, std::chrono::seconds half_life, const Clock& clock = real_clock())
      : store_(store), half_life_(half_life), clock_(clock) {}

  void record(InodeId id, const Access& access);

  // What the store knows plus what it has not been told yet. The score is true at last_access:
  // decayed() says what it is worth now. Waits while a batch is being stored.
  Result<Heat> heat(InodeId id) const;

  // Hands the collected counts to the store. On failure those that it did not take are kept for the
  // next time. A walk over the store that begins after this sees all that was recorded before it.
  Result<void> flush();

  // The files that the last flush() had most to tell of, at most kBusiest of them.
  static constexpr std::size_t kBusiest = 64;
  std::vector<InodeId> busiest() const;

 private:
  // Sharded, so that threads opening different files rarely meet.
  struct Shard {
    mutable Mutex mutex;
    HeatTable pending GUARDED_BY(mutex);
  };
  static constexpr unsigned kShardBits = 8;

  // By the best bits of a product: those of an id are alike for files made one after the other.
  Shard& shard(InodeId id) {
    return shards_[to_number(id) * 0x9E3779B97F4A7C15 >> (64 - kShardBits)];
  }
  const Shard& shard(InodeId id) const { return const_cast<HeatRecorder*>(this)->shard(id); }

  void add(InodeId id, const Heat& delta);

  // The steps of a flush. write_some() says false when nothing is left to write.
  void take_pending() REQUIRES(flush_);
  Result<bool> write_some() REQUIRES(flush_);
  void put_back_rest() REQUIRES(flush_);

  Store& store_;
  const std::chrono::seconds half_life_;
  const Clock& clock_;

  // Lock order: flush_, handing_over_, a shard.
  Mutex flush_;  // held by whoever flushes, from end to end
  // Exclusive while counts go from one place to another, so that heat() finds each exactly once.
  mutable SharedMutex handing_over_;
  std::vector<HeatTable::Entry> taken_ GUARDED_BY(handing_over_);  // from the shards; sorted
  std::ptrdiff_t written_ GUARDED_BY(handing_over_) = 0;  // so many of them the store has, too
  std::vector<InodeId> busiest_ GUARDED_BY(handing_over_);
  std::array<Shard, 1 << kShardBits> shards_;
};

}  // namespace sluice
