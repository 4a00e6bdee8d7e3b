// SPDX-License-Identifier: BSD-2-Clause
// What an operator should know about a tier: its unusual conditions. Everything that shows tiers
// (status, plan, top, web page, doctor, metrics) takes them from here.
// Threads: pure functions.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "tiering/pool/pool.hpp"

namespace sluice {

struct TierState {
  std::string_view name;  // one of kTierStates
  std::string words;      // what it means, for people
  bool is_serious;        // somebody has to do something
};

// Stable, for programs.
inline constexpr std::array<std::string_view, 8> kTierStates{
    "offline",  "given-up", "read-only",       "failing",
    "degraded", "full",     "above-watermark", "draining"};

// Why the tier cannot be drained; empty if it can. A mark that has no use must not be left.
std::string why_no_drain(const Pool& pool, const Tier& tier);

// Empty if the tier is as it should be. Of an offline tier nothing else is known.
std::vector<TierState> states_of(const Pool& pool, const Tier& tier, Relief relief);

}  // namespace sluice
