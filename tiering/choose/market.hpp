// SPDX-License-Identifier: BSD-2-Clause
// What files are worth on the tiers, and what room there costs.
//
// The *value* of a file on a tier is the time that its accesses save there in each second, against
// the slowest tier: accesses per second times the seconds that one of them is faster. (If the
// policy counts hits, an access saves one hit at each border between tiers that it does not have to
// cross.) The *price* of a tier is the value per byte that fills it exactly to its high watermark
// with the most valuable files. Files above the price belong there, files below it belong further
// down. Threads: immutable values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.hpp"
#include "tiering/choose/policy.hpp"
#include "tiering/choose/rate.hpp"
#include "tiering/choose/tier_speed.hpp"

namespace sluice {

struct FileFacts;
struct TierFacts;

// What one access saves on each tier. Tiers that files can't move to are left out.
class Savings {
 public:
  Savings(std::span<const TierFacts> tiers, Objective objective);

  // Of one access to a file of `bytes` on `tier`, against the next slower tier; 0 on the slowest.
  double at_border(std::size_t tier, std::uint64_t bytes) const;
  // Against the slowest tier.
  double in_all(std::size_t tier, std::uint64_t bytes) const;
  // What moving a file costs, in the same unit: the time that its slower disk is busy with it. (If
  // hits are counted, a move costs as much as an access.)
  double of_not_copying(std::uint64_t bytes, std::size_t from, std::size_t to) const;

 private:
  struct Step {
    double per_access = 0, per_byte = 0;
  };
  std::vector<Step> steps_;  // by tier: from the next slower one to it
  std::vector<TierSpeed> speeds_;
  Objective objective_;
};

// What is usual in a pool, and what its room is worth.
struct Market {
  RateModel rates = {};
  // By tier, value per byte and second. 0: everything fits, as on the slowest tier. Empty: unknown.
  std::vector<double> prices = {};
};
// REQUIRES: as make_plan().
Market learn_market(std::span<const FileFacts> files, std::span<const TierFacts> tiers,
                    const Policy& policy, std::int64_t now);

// One file in that market, by tier; for people.
struct Appraisal {
  double rate = 0;                    // accesses per second
  std::vector<double> value = {};     // per second; see above
  std::vector<double> per_byte = {};  // value against the next slower tier, per byte
};
Appraisal appraise(const FileFacts& file, std::span<const TierFacts> tiers, const Policy& policy,
                   const Market& market, std::int64_t now);

// The bytes by which a file's value is divided: at least a block.
double priced_bytes(const FileFacts& file);

}  // namespace sluice
