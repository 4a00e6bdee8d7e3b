// SPDX-License-Identifier: BSD-2-Clause
// The parts of judge() that make_plan() uses, too. Include tiering/planner.hpp elsewhere. Threads:
// pure functions.
#pragma once

#include "tiering/planner.hpp"

namespace sluice {

// The tier that a pin or a rule names; kNoTier: heat decides.
struct Home {
  TierIndex tier = kNoTier;
  Reason reason = Reason::Stays;
};
Home home_of(const FileFacts& file, std::span<const TierFacts> tiers, const Policy& policy);

// judge() for a caller that has computed the home already.
Verdict judge_with_home(const FileFacts& file, const Home& home, std::span<const TierFacts> tiers,
                        const Policy& policy, std::int64_t now);

// Whether the file arrived on its tier less than min_stay ago.
bool is_new(const FileFacts& file, const Policy& policy, std::int64_t now);

inline bool is_usable(const TierFacts& tier) { return tier.online && !tier.draining; }

// Whether heat makes `file` eligible for `tier`. REQUIRES: `tier` is faster than the file's own.
bool is_eligible(const FileFacts& file, TierIndex tier, std::span<const TierFacts> tiers);

}  // namespace sluice
