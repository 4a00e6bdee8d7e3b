// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/tier_state.hpp"

#include <algorithm>
#include <cstring>

#include "base/units.hpp"
#include "tiering/pool/disk_health.hpp"

namespace sluice {
namespace {

// Where new files go that no pin or rule sends elsewhere, seen from a tier that should not get any.
std::string new_files(const Pool& pool, const Tier& tier) {
  const std::vector<TierIndex> order = pool.placement();
  if (order.empty()) return "no tier takes new files";
  const Tier& first = pool[order[0]];
  const Intake intake = first.intake();
  const bool is_here = first.index() == tier.index();
  if (!is_here && intake < tier.intake()) return "new files go to " + first.name();
  if (!is_here)
    return "new files go to " + first.name() + ", which " + std::string(words_of(intake)) + ", too";
  return std::string("new files still come here, because no other tier ") +
         (intake >= Intake::Draining ? "takes any" : "is better");
}

// Whether another tier takes files.
bool can_be_emptied(const Pool& pool, const Tier& tier) {
  return std::any_of(pool.begin(), pool.end(), [&](const auto& other) {
    return other->index() != tier.index() && is_usable(other->facts());
  });
}

}  // namespace

std::string why_no_drain(const Pool& pool, const Tier& tier) {
  if (tier.facts().read_only && tier.online()) {
    return "tier " + tier.name() +
           " is read-only: its files can't move away; see dmesg for the reason";
  }
  if (can_be_emptied(pool, tier) || !tier.online()) return "";
  std::string others;
  for (const auto& other : pool) {
    if (other->index() == tier.index()) continue;
    others +=
        (others.empty() ? "" : ", ") + other->name() + " " + std::string(words_of(other->intake()));
  }
  return "no other tier takes the files of " + tier.name() +
         (others.empty() ? ": the pool has no other" : ": " + others);
}

std::vector<TierState> states_of(const Pool& pool, const Tier& tier, Relief relief) {
  if (!tier.online()) {
    std::vector<TierState> out{{"offline", tier.why_offline(), true}};
    if (pool.is_retired(tier.index())) {
      out.push_back({"given-up",
                     "the pool goes on without it; 'sluice tier lost " + tier.name() +
                         "' lists the files that were there",
                     true});
    }
    return out;
  }
  std::vector<TierState> out;
  const TierFacts facts = tier.facts();
  const bool is_above = is_above_watermark(facts);
  // Neither matters while the tier gets no files and all its files leave.
  std::string elsewhere, leaving;
  if (is_usable(facts)) {
    elsewhere = new_files(pool, tier);
    leaving = words_of(relief);
  }
  const auto clause = [](const char* before, const std::string& text) {
    return text.empty() ? text : before + text;
  };
  if (facts.read_only) {
    out.push_back({"read-only",
                   "its files can be read, but not changed or moved away; " + new_files(pool, tier),
                   true});
  }
  if (const int failure = tier.failure(); failure != 0) {
    out.push_back({"failing",
                   std::string("making a file there failed (") + std::strerror(failure) + "); " +
                       new_files(pool, tier),
                   true});
  }
  if (std::string damage = disk_damage(tier.device()); !damage.empty())
    out.push_back({"degraded", damage + (is_usable(facts) ? "; it is used as before" : ""), true});
  if (is_below_reserve(facts)) {
    const std::uint64_t free = tier.space().free;
    out.push_back({"full",
                   (free == 0 ? "nothing is free"
                              : format_size(free) + " free, less than its reserve of " +
                                    format_size(facts.reserve)) +
                       clause(": ", elsewhere) + (is_above ? "" : clause("; ", leaving)),
                   false});
    elsewhere.clear();
  }
  if (is_above) {
    out.push_back({"above-watermark",
                   "more than " + std::to_string(watermark_of(facts)) + "% is used" +
                       clause(": ", elsewhere) + clause(elsewhere.empty() ? ": " : "; ", leaving),
                   false});
  }
  if (facts.draining) {
    out.push_back({"draining",
                   facts.read_only ? "it was being emptied, and that waits until it can be written"
                                   : (can_be_emptied(pool, tier)
                                          ? "its files are moved away; "
                                          : "its files stay, because no other tier takes any; ") +
                                         new_files(pool, tier),
                   false});
  }
  return out;
}

}  // namespace sluice
