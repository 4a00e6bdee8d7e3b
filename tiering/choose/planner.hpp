// SPDX-License-Identifier: BSD-2-Clause
// The planner decides which files move, and why. It is a pure function of the files, their heat,
// the tiers, the policy and the time. The mover, `sluice plan`, `sluice explain` and the simulator
// all use it.
//
// In short: first a pin, then a rule, then the policy's method decides which tier a file wants;
// rank and free space decide whether it gets there.
// - By value (tiering/choose/market.hpp), a file wants the fastest tier whose price it is worth,
// provided
//   that the move earns what it costs. It leaves when others are worth clearly more.
// - By thresholds, a file wants the fastest tier whose threshold its score reaches. It leaves when
//   its score falls below half of its tier's (hysteresis).
// Neither moves a file before min_stay. A tier above its high watermark evicts its lowest-ranked
// files until it is at its low watermark. A file that finds no room on the tier it wants replaces
// files that rank clearly lower. No plan fills a tier above 98%. docs/tiering.md has the details.
// Threads: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.hpp"
#include "tiering/choose/market.hpp"
#include "tiering/choose/policy.hpp"
#include "tiering/choose/tier_facts.hpp"

namespace sluice {

// One file as the planner sees it. It is small, because there may be ten million.
struct FileFacts {
  InodeId id{};
  std::uint64_t bytes = 0;    // allocated; what a move frees or needs
  std::int64_t last_use = 0;  // seconds since the epoch; 0: never
  std::int64_t arrived = 0;   // when it arrived on its tier
  std::int64_t since = 0;     // when the first access was seen; 0: never, or long ago if opens > 0
  float score = 0;            // as of now
  float recent = 0;           // accesses as of now, each halved every day
  std::uint32_t opens = 0;    // since it was created
  std::uint16_t rule = 0xffff;  // index of the rule that matches it; kNoRule: none
  TierIndex tier = kNoTier;
  TierIndex pin = kNoTier;  // its own pin or an inherited one
  // The tier that it recently had to leave for lack of room. It returns at half the threshold,
  // after an access that is newer than its arrival on its present tier.
  TierIndex ghost_of = kNoTier;
  std::uint32_t slack = 0;  // of `bytes`, those behind the end of the file
};
// How many of the allocated bytes are behind the end of a file of this length.
constexpr std::uint32_t slack_of(std::uint64_t length, std::uint64_t allocated) {
  const std::uint64_t slack = allocated > length ? allocated - length : 0;
  return static_cast<std::uint32_t>(slack < 0xffff'ffff ? slack : 0xffff'ffff);
}
inline constexpr std::uint16_t kNoRule = 0xffff;

enum class Reason : std::uint8_t {
  Stays,      // it is on the right tier, or a rule keeps it there
  Pinned,     // its pin names the tier
  Ruled,      // a rule names the tier
  Hot,        // its value or its score makes it eligible for a faster tier
  Returning,  // it left that tier for lack of room and was accessed again since
  Cold,       // its score is too low for its tier
  Crowded,    // its tier is above the high watermark, and it ranks lowest
  Outranked,  // makes room for files that rank higher
  Draining,   // its tier is being emptied
  Requested,  // a user asked for this move; never planned
};
// "pinned", "hot", ...: a stable name for programs.
const char* name_of(Reason reason);

// What keeps a file from the tier that it wants.
enum class Blocker : std::uint8_t {
  None,
  MinStay,   // it arrived too recently
  OnlyOnce,  // it was accessed only once, which may remain the only access
  NoRoom,    // it does not fit, unless lower-ranked files make room
  Offline,   // its tier is offline, or the wanted one
  Draining,  // the wanted tier is being emptied
  ReadOnly,  // its tier is read-only, or the wanted one
  Failing,   // the wanted tier fails
  Nowhere,   // its tier is being emptied, and no other one takes files
};
inline constexpr std::size_t kBlockers = static_cast<std::size_t>(Blocker::Nowhere) + 1;
const char* name_of(Blocker blocker);

// The tier that one file wants; by value, `market` is the one of the last plan. If that is its own
// tier, the reason is Stays, Pinned or Ruled, or Draining if no other tier is usable. A pin or a
// rule for a tier that is not in the pool is ignored. What other files want is not known here, so
// NoRoom means that the file goes there only in exchange for others.
struct Verdict {
  TierIndex wants = kNoTier;
  Reason reason = Reason::Stays;
  Blocker blocker = Blocker::None;
};
Verdict judge(const FileFacts& file, std::span<const TierFacts> tiers, const Policy& policy,
              const Market& market, std::int64_t now);

struct PlannedMove {
  std::uint32_t file = 0;  // index into the files
  TierIndex to = kNoTier;
  Reason reason = Reason::Stays;
};

struct Plan {
  std::vector<PlannedMove> moves;  // in an order in which each finds room; at most one per file
  std::vector<std::uint64_t> used_after;  // bytes per tier after all moves
  Market market;                          // by value only: what it was made with
  // The number of files that want to move and cannot, by blocker.
  std::array<std::uint64_t, kBlockers> blocked = {};
  std::uint64_t blocked_by(Blocker blocker) const {
    return blocked[static_cast<std::size_t>(blocker)];
  }
};

// The order of the files does not matter. After a plan has been executed, the next plan is empty,
// provided that moved files got a new `arrived`, and Crowded and Outranked files got `ghost_of`.
// (If the pool has no room for its pins or drains, a second or third plan may still find some
// moves.) Takes 0.5 to 1.5 s and 25 MB for a million files.
//
// REQUIRES: every file has an id of its own. CHECKED: file.tier < tiers.size(); fewer than 2^32
// files.
Plan make_plan(std::span<const FileFacts> files, std::span<const TierFacts> tiers,
               const Policy& policy, std::int64_t now);

// The value of a file's bytes on a fast tier: expected accesses times the saving of each, per byte.
// A seek counts as much as a megabyte, so small files rank above large ones of the same score.
double rank_of(const FileFacts& file);

// One sentence for users: "score 120 is at least 100". `names` are the names of the tiers; `file`
// is as it was when the move was planned.
std::string explain_move(const FileFacts& file, Reason reason, TierIndex to,
                         std::span<const TierFacts> tiers, std::span<const std::string> names,
                         const Policy& policy);

}  // namespace sluice
