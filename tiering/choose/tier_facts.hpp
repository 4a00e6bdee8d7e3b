// SPDX-License-Identifier: BSD-2-Clause
// What a tier may be used for at this moment. There is one answer: placement, the planner, the
// mover and requests use it, and all messages about the tier are made from it.
// Threads: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tiering/choose/tier_speed.hpp"

namespace sluice {

// What a tier accepts, best first.
enum class Intake : std::uint8_t {
  Open,            // everything
  AboveWatermark,  // moves only in exchange for files that leave; new files if no tier is Open
  Full,            // the same, and less than its reserve is free
  Draining,        // no moves; new files if there is no tier above
  Failing,         // the same: making a file there has just failed
  ReadOnly,        // nothing, and its files can't leave
  Offline,         // nothing, and its files can't be used
};
// "open", "above-watermark", ...: a stable name for programs.
std::string_view name_of(Intake intake);
Intake intake_named(std::string_view name);  // Open if there is none of that name
// Completes "nvme ...": "has room", "is full", ...
std::string_view words_of(Intake intake);

struct TierFacts {
  std::uint64_t total = 0;
  std::uint64_t used = 0;
  unsigned high_watermark = 90;
  unsigned low_watermark = 80;
  double threshold = 0;  // the score at which a file is eligible
  TierSpeed speed = {};
  bool online = true;
  bool draining = false;  // files leave, none arrive
  bool read_only = false;
  bool failing = false;
  std::uint64_t reserve = 0;  // bytes that moves leave free for writers
  // If other tiers are on its filesystem, `used` counts only its own files. This is what the
  // filesystem says.
  std::uint64_t disk_used = 0;
};

// The bytes to which a plan may fill a tier, those to which value or heat may, and those to which
// it is emptied when there are more.
std::uint64_t brim_of(const TierFacts& tier);
std::uint64_t high_mark(const TierFacts& tier);
std::uint64_t low_mark(const TierFacts& tier);

// Whether files may move there, and away from there.
inline bool is_usable(const TierFacts& tier) {
  return tier.online && !tier.read_only && !tier.failing && !tier.draining;
}
inline bool can_leave(const TierFacts& tier) { return tier.online && !tier.read_only; }

// In percent; above it, files leave.
unsigned watermark_of(const TierFacts& tier);
bool is_above_watermark(const TierFacts& tier);
bool is_below_reserve(const TierFacts& tier);
// Whether it has less room than it should.
inline bool is_crowded(const TierFacts& tier) {
  return is_above_watermark(tier) || is_below_reserve(tier);
}
Intake intake_of(const TierFacts& tier);

// Whether files leave a tier by themselves when it has less room than it should. Up to Waits they
// do.
enum class Relief : std::uint8_t {
  NextPass,  // no plan has looked at it since
  Comes,     // the plan moves files off it
  Waits,     // it would, but their moves wait for something
  Off,       // passes are turned off
  Paused,
  Slowest,    // no slower tier takes files
  Shared,     // a slower tier is on the same disk
  NoRoom,     // slower tiers have no room
  NoneMoves,  // no file on it may move
};
// Completes "more than 90% is used: ...".
std::string_view words_of(Relief relief);

}  // namespace sluice
