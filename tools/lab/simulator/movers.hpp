// SPDX-License-Identifier: BSD-2-Clause
// Contenders that move files between all tiers once every interval. Moves take the time that the
// disks need, one after the other, and a file is where it was until its move has ended.
// Threads: caller locks.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/ids.hpp"
#include "tiering/choose/planner.hpp"
#include "tools/lab/simulator/contender.hpp"

namespace sluice::tools::lab {

class PeriodicMover : public Contender {
 public:
  TierIndex locate(std::uint32_t record) final;
  bool access(std::uint32_t record, Access kind) final;

 protected:
  PeriodicMover(const Trace& trace, const SimulationOptions& options);

  // Called at the end of each interval, unless moves are still going on. `now` is in seconds.
  virtual void tick(std::int64_t now) = 0;
  virtual void used(std::uint32_t object, std::int64_t now) = 0;

  // Begins a move, which ends after the ones that began before.
  void move(std::uint32_t object, TierIndex to);
  TierIndex tier_of(std::uint32_t object) const { return tier_of_[object]; }
  std::uint64_t used_of(std::size_t tier) const { return used_[tier]; }
  // Objects that have appeared in the trace so far. Others do not exist yet.
  const std::vector<std::uint32_t>& seen() const { return seen_; }
  // Seconds since the epoch. Traces that count from 0 are shifted, because the planner reads 0 as
  // "never".
  std::int64_t seconds_of(std::uint32_t record) const;

 private:
  struct Moving {
    std::uint32_t object;
    TierIndex to;
    double end;
  };

  void place_new(std::uint32_t object);
  void finish_moves(double now);

  std::vector<TierIndex> tier_of_;
  std::vector<std::uint8_t> is_seen_;
  std::vector<std::uint32_t> seen_;
  std::vector<std::uint64_t> used_;
  std::int64_t shift_ = 0;
  std::int64_t next_tick_ = 0;
  std::deque<Moving> moving_;  // the first to end first
  double now_ = 0;             // seconds
};

// Sluice's planner with the same input as in the filesystem.
class PlannerMover final : public PeriodicMover {
 public:
  PlannerMover(const Trace& trace, const SimulationOptions& options);

 private:
  struct Memory {
    double score = 0, recent = 0;  // as of last_use
    std::int64_t last_use = 0;
    std::int64_t since = 0;
    std::int64_t arrived = 0;
    std::uint32_t opens = 0;
    TierIndex ghost_of = kNoTier;
  };

  void tick(std::int64_t now) override;
  void used(std::uint32_t object, std::int64_t now) override;

  Policy policy_;
  std::vector<std::uint32_t> all_;  // objects: a mount sees files that were never used, too
  std::vector<Memory> memory_;
  std::vector<FileFacts> facts_;
  std::vector<TierFacts> tiers_;
};

// 45Drives' autotier 1.2: popularity is an exponential average of opens per hour, updated once per
// period. Then all files, the most popular first, move to the fastest tier that has room for them.
class AutotierMover final : public PeriodicMover {
 public:
  AutotierMover(const Trace& trace, const SimulationOptions& options);

 private:
  struct Memory {
    double popularity = 0;
    std::int64_t first_use = 0, last_use = 0;
    std::uint32_t uses = 0;  // in this period
  };

  void tick(std::int64_t now) override;
  void used(std::uint32_t object, std::int64_t now) override;
  void age(Memory& memory, std::int64_t now) const;

  std::vector<Memory> memory_;
  std::vector<std::uint32_t> order_;
};

}  // namespace sluice::tools::lab
