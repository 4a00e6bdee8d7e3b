// SPDX-License-Identifier: BSD-2-Clause
// Value and price in words that a person understands: "saves about 14 s of waiting a day on nvme".
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tiering/choose/planner.hpp"

namespace sluice {

inline constexpr double kSecondsPerDay = 86'400;
// From value per byte and second to value per GB and day, the unit of people and reports.
inline constexpr double kPerGigabyteDay = 1e9 * kSecondsPerDay;

// `per_day` in the unit of the objective: "14 s of waiting", "2.5 h of waiting"; "14 hits".
std::string value_text(double per_day, Objective objective);
// `per_gb` is per GB and day: "0.2 s/GB a day", "12 hits/GB a day".
std::string price_text(double per_gb, Objective objective);

// Like explain_move(), but in terms of value and price where value decides.
std::string explain_worth(const FileFacts& file, Reason reason, TierIndex to,
                          std::span<const TierFacts> tiers, std::span<const std::string> names,
                          const Policy& policy, const Market& market, std::int64_t now);

}  // namespace sluice
