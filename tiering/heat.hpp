// SPDX-License-Identifier: BSD-2-Clause
// HeatRecorder counts opens without touching the database on the way: in memory at once, to the
// store in batches. Threads: every member may be called from any thread at once.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

#include "base/mutex.hpp"
#include "metadata/store.hpp"

namespace sluice {

class HeatRecorder {
 public:
  explicit HeatRecorder(Store& store) : store_(store) {}

  void count_opens(InodeId id, std::uint64_t opens);

  // What the store knows plus what it has not been told yet.
  Result<Heat> heat(InodeId id) const;

  // Hands the collected counts to the store; on failure they are kept for the next time.
  Result<void> flush();

 private:
  // Sharded, so that threads opening different files rarely meet.
  struct Shard {
    mutable Mutex mutex;
    std::unordered_map<std::uint64_t, Heat> pending GUARDED_BY(mutex);
  };
  Shard& shard(InodeId id) {
    return shards_[(to_number(id) ^ to_number(id) >> 32) % shards_.size()];
  }
  const Shard& shard(InodeId id) const { return const_cast<HeatRecorder*>(this)->shard(id); }

  Store& store_;
  std::array<Shard, 16> shards_;
};

}  // namespace sluice
