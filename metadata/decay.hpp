// SPDX-License-Identifier: BSD-2-Clause
// The arithmetic of heat: decay and addition. Stores use it to merge records, and readers of heat
// use it, too.
//
// A score is as of its last_access and halves every half-life after that. With a half-life of zero,
// scores never decay: they are plain counts. Pure functions.
#pragma once

#include <chrono>
#include <cstdint>

#include "metadata/store.hpp"

namespace sluice {

// The half-life of Heat::recent. That of the score is an option, a week by default. Both are kept,
// because a file that is busy today and one that is busy every week differ.
inline constexpr std::chrono::seconds kRecentHalfLife = std::chrono::hours(24);

// Converts `score` from time `from` to time `to` (seconds since the epoch). If `to` is before
// `from` (the clock was set back), the score is unchanged: scores never grow by themselves.
double decayed(double score, std::int64_t from, std::int64_t to, std::chrono::seconds half_life);

// The sum of both heats as of the later last_access, seen since the earlier of both. Associative
// and commutative (the score up to rounding), so deltas may be added in any order. Counts saturate
// instead of wrapping.
Heat sum(const Heat& a, const Heat& b, std::chrono::seconds half_life);

// Whether `heat` can be stored: its score and its recent count are finite and not negative.
bool is_storable(const Heat& heat);

}  // namespace sluice
