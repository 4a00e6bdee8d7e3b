// SPDX-License-Identifier: BSD-2-Clause
// The planner decides which files move, and why: a pure function of the files, their heat, the
// tiers, the policy and the clock. The mover, `sluice plan`, `sluice explain` and the simulator all
// ask this one.
//
// In short: a pin, then a rule, then heat says where a file wants to be; rank and room say whether
// it gets there. A tier's threshold makes a file *eligible* for it. A file leaves a tier once its
// score is under half of the threshold that let it in (hysteresis), and not before min_stay. Above
// its high watermark a tier sheds its lowest ranks down to the low one; a file that wants in and
// finds no room takes the place of those that rank clearly lower. No plan fills a tier above 98%.
// docs/tiering.md tells it in full.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.hpp"
#include "tiering/policy.hpp"

namespace sluice {

// One file as the planner sees it. Small, because there may be ten million.
struct FileFacts {
  InodeId id{};
  std::uint64_t bytes = 0;      // allocated: what a move gains or costs
  std::int64_t last_use = 0;    // seconds since the epoch; 0: never
  std::int64_t arrived = 0;     // on its tier
  float score = 0;              // decayed to now
  std::uint32_t opens = 0;      // in its life
  std::uint16_t rule = 0xffff;  // index of the rule that matches it; kNoRule: none
  TierIndex tier = kNoTier;
  TierIndex pin = kNoTier;  // its own pin or the one it inherits
  // The tier that it had to leave for want of room, not long ago. It returns at half the threshold,
  // once it was used after it arrived where it is.
  TierIndex ghost_of = kNoTier;
};
inline constexpr std::uint16_t kNoRule = 0xffff;

struct TierFacts {
  std::uint64_t total = 0;
  std::uint64_t used = 0;
  unsigned high_watermark = 90;
  unsigned low_watermark = 80;
  double threshold = 0;  // the score that makes a file eligible
  bool online = true;
  bool draining = false;  // everything leaves, nothing arrives
};

enum class Reason : std::uint8_t {
  Stays,      // it is where it should be, or a rule keeps it there
  Pinned,     // its pin says so
  Ruled,      // a rule says so
  Hot,        // its score makes it eligible for a faster tier
  Returning,  // it had to leave that tier for want of room, and was used again since
  Cold,       // its score is too low for its tier
  Crowded,    // its tier is above the high watermark, and it ranks lowest
  Outranked,  // it makes room for files that rank higher
  Draining,   // its tier is being emptied
  Requested,  // somebody asked for this move; never planned
};
// "pinned", "hot", ...: stable, for programs.
const char* name_of(Reason reason);

// Why a file that wants to move does not.
enum class Hold : std::uint8_t {
  None,
  MinStay,   // it came too recently
  OnlyOnce,  // one access is no reason: it may be the only one
  NoRoom,    // and none that ranks lower could make it
  Offline,   // its tier is not there, or the one it wants isn't or is being emptied
};
const char* name_of(Hold hold);

// Where one file wants to be by itself, before room is looked at. A file that wants its own tier
// stays, and the reason says why: Stays, Pinned or Ruled (or Draining, if no other tier is there).
// A pin or a rule for a tier that isn't in the pool is passed over.
struct Verdict {
  TierIndex wants = kNoTier;
  Reason reason = Reason::Stays;
  Hold hold = Hold::None;
};
Verdict judge(const FileFacts& file, std::span<const TierFacts> tiers, const Policy& policy,
              std::int64_t now);

struct PlannedMove {
  std::uint32_t file = 0;  // index into the facts
  TierIndex to = kNoTier;
  Reason reason = Reason::Stays;
};

struct Plan {
  std::vector<PlannedMove> moves;  // in an order in which each finds room; a file once at most
  std::vector<std::uint64_t> used_after;  // bytes, by tier, once all are done
  // Files that want to move and don't.
  std::uint64_t held_min_stay = 0, held_only_once = 0, held_no_room = 0, held_offline = 0;
};

// The order of the files doesn't matter. Carried out and planned again, a plan leaves nothing to
// do, if files that move get `arrived` and those that are Crowded or Outranked `ghost_of`. (Where
// pins or drains meet a pool without room, a second or third plan may find a little.) Takes about
// 0.2 s and 20 MB for a million files.
//
// REQUIRES: file.tier < tiers.size() and an id of its own for every file; fewer than 2^32 files.
Plan make_plan(std::span<const FileFacts> files, std::span<const TierFacts> tiers,
               const Policy& policy, std::int64_t now);

// What a file's bytes are worth on a fast tier: expected accesses times what each saves, per byte.
// A seek costs as much as a megabyte, so small files rank above large ones of the same score.
double rank_of(const FileFacts& file);

// One sentence for a person: "score 120 is 100 or more". `names` are the tiers', `file` is as it
// was when the move was planned.
std::string explain_move(const FileFacts& file, Reason reason, TierIndex to,
                         std::span<const TierFacts> tiers, std::span<const std::string> names,
                         const Policy& policy);

}  // namespace sluice
