// SPDX-License-Identifier: BSD-2-Clause
// Shared by the planner's tests: three tiers, files for them, and the execution of a plan.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "tiering/choose/planner.hpp"

namespace sluice::test {

inline constexpr TierIndex kNvme = 0, kSsd = 1, kHdd = 2;
inline constexpr std::uint64_t kMiB = 1 << 20, kGiB = 1 << 30;
inline constexpr std::int64_t kNow = 1'700'000'000;
inline constexpr std::int64_t kHour = 3600, kDay = 24 * kHour;

// Empty tiers of 100 GiB, so that a GiB is a percent, with the default thresholds and watermarks.
inline std::vector<TierFacts> three_tiers() {
  std::vector<TierFacts> tiers(3);
  for (TierFacts& tier : tiers) tier.total = 100 * kGiB;
  tiers[kNvme].threshold = 100;
  tiers[kSsd].threshold = 10;
  return tiers;
}

// A file of a GiB that has been on `tier` for a day and was last used an hour ago.
inline FileFacts file_on(TierIndex tier, float score) {
  FileFacts file;
  file.bytes = kGiB;
  file.last_use = kNow - kHour;
  file.arrived = kNow - kDay;
  file.score = score;
  file.opens = 10;
  file.tier = tier;
  return file;
}

// Files and tiers that are consistent: a tier uses the bytes of its files plus add_foreign().
struct World {
  std::vector<FileFacts> files;
  std::vector<TierFacts> tiers = three_tiers();
  Policy policy{.method = Method::Thresholds};

  // Returns its index.
  std::uint32_t add(FileFacts file) {
    file.id = InodeId{files.size() + 2};
    tiers[file.tier].used += file.bytes;
    files.push_back(file);
    return static_cast<std::uint32_t>(files.size() - 1);
  }
  std::uint32_t add(TierIndex tier, float score) { return add(file_on(tier, score)); }
  void add(unsigned count, TierIndex tier, float score) {
    while (count-- > 0) add(tier, score);
  }
  // Bytes on the tier's filesystem that belong to no file of the pool.
  void add_foreign(TierIndex tier, std::uint64_t bytes) { tiers[tier].used += bytes; }

  Plan plan() const { return make_plan(files, tiers, policy, kNow); }
  Verdict judge(std::uint32_t file) const {
    return sluice::judge(files[file], tiers, policy, learn_market(files, tiers, policy, kNow),
                         kNow);
  }

  // Changes the world as the mover would.
  void execute(const PlannedMove& move) {
    FileFacts& file = files[move.file];
    const bool is_ghost = move.reason == Reason::Crowded || move.reason == Reason::Outranked;
    file.ghost_of = is_ghost ? file.tier : kNoTier;
    tiers[file.tier].used -= file.bytes;
    tiers[move.to].used += file.bytes;
    file.tier = move.to;
    file.arrived = kNow;
  }
  void execute(const Plan& plan) {
    for (const PlannedMove& move : plan.moves) execute(move);
  }
};

// Indexed by file, for tests that do not depend on the order.
inline std::map<std::uint32_t, PlannedMove> by_file(const Plan& plan) {
  std::map<std::uint32_t, PlannedMove> moves;
  for (const PlannedMove& move : plan.moves) moves[move.file] = move;
  return moves;
}

}  // namespace sluice::test
