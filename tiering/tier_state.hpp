// SPDX-License-Identifier: BSD-2-Clause
// What an operator should know about a tier: the conditions that are not as usual. Everything that
// shows tiers (status, top, web page, doctor, metrics) takes them from here.
// Threads: pure functions.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "tiering/tier.hpp"

namespace sluice {

struct TierState {
  std::string_view name;  // one of kTierStates
  std::string words;      // what it means, for people
  bool is_serious;        // somebody has to do something
};

// Stable, for programs.
inline constexpr std::array<std::string_view, 6> kTierStates{
    "offline", "read-only", "degraded", "full", "above-watermark", "draining"};

// Whether files of a tier can leave it by themselves: automatic migration is on, and another tier
// takes them.
enum class Leaving { Possible, Impossible };

// Empty if the tier is as it should be. Of an offline tier nothing else is known.
std::vector<TierState> states_of(const Tier& tier, Leaving leaving);

// What is wrong with the disk or filesystem of `device`, as the kernel knows it: an array that lost
// a disk, errors that the filesystem found. Empty if nothing is known.
std::string disk_damage(dev_t device);

}  // namespace sluice
