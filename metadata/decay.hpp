// SPDX-License-Identifier: BSD-2-Clause
// How heat ages and adds up: the arithmetic that the stores' merges and the readers of heat share.
//
// A score is worth what it says at its own last_access and halves every half-life after that. A
// half-life of zero means that scores never decay: plain counts. Pure functions.
#pragma once

#include <chrono>
#include <cstdint>

#include "metadata/store.hpp"

namespace sluice {

// What `score`, true at `from`, is worth at `to` (seconds since the epoch). A `to` before `from` (a
// clock that was set back) leaves it as it is: scores never grow by themselves.
double decayed(double score, std::int64_t from, std::int64_t to, std::chrono::seconds half_life);

// Both heats together, as of the later last_access. Associative and commutative (the score up to
// rounding), so that deltas may be added in any grouping. Counts stop at their largest value
// instead of wrapping.
Heat sum(const Heat& a, const Heat& b, std::chrono::seconds half_life);

// Whether `heat` can be stored: its score is finite and not negative.
bool is_storable(const Heat& heat);

}  // namespace sluice
