// SPDX-License-Identifier: BSD-2-Clause
// The parts of judge() that make_plan() uses, too. Include tiering/choose/planner.hpp elsewhere.
// Threads: pure functions.
#pragma once

#include "tiering/choose/planner.hpp"

namespace sluice {

// The tier that a pin or a rule names; kNoTier: heat decides.
struct Home {
  TierIndex tier = kNoTier;
  Reason reason = Reason::Stays;
};
Home home_of(const FileFacts& file, std::span<const TierFacts> tiers, const Policy& policy);

// Whether the file arrived on its tier less than min_stay ago.
bool is_new(const FileFacts& file, const Policy& policy, std::int64_t now);

// Judges the files of one pool at one moment. It refers to its arguments.
class Judge {
 public:
  Judge(std::span<const TierFacts> tiers, const Policy& policy, const Market& market,
        std::int64_t now)
      : tiers_(tiers),
        policy_(policy),
        market_(market),
        now_(now),
        savings_(tiers, policy.objective) {}

  // Accesses per second; 0 if the policy does not go by value.
  double rate_of(const FileFacts& file) const;
  // The number by which files compete for the room on `tier`, per byte. `rate` is rate_of(file).
  double rank(const FileFacts& file, double rate, std::size_t tier) const;
  // Whether heat or value makes `file` eligible for `tier`. CHECKED: `tier` is faster than its own.
  bool is_eligible(const FileFacts& file, double rate, TierIndex tier) const;
  Verdict verdict(const FileFacts& file, double rate, const Home& home) const;

  // What moving the file gains (or loses, if negative) within the horizon, in the unit of Savings,
  // and what the move itself costs.
  double gain(const FileFacts& file, double rate, std::size_t to) const;
  double cost(const FileFacts& file, std::size_t to) const;

 private:
  bool by_value() const { return policy_.method == Method::Value; }
  bool belongs(const FileFacts& file, double rate, std::size_t tier) const;
  TierIndex fitting_tier(const FileFacts& file, double rate, std::size_t first) const;
  TierIndex refuge_of(const FileFacts& file, double rate, const Home& home) const;
  Verdict by_heat(const FileFacts& file, double rate) const;
  Verdict if_online(const FileFacts& file, double rate, const Home& home) const;

  const std::span<const TierFacts> tiers_;
  const Policy& policy_;
  const Market& market_;
  const std::int64_t now_;
  const Savings savings_;
};

}  // namespace sluice
