// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/choose/worth.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace sluice {
namespace {

// Two digits are enough for an estimate, and a thousandth is nothing.
std::string rounded(double number) {
  if (std::abs(number) < 0.001) return "0";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), number < 99.5 ? "%.2g" : "%.0f", number);
  return text.data();
}

// What a file is worth, in words.
class Words {
 public:
  Words(const FileFacts& file, std::span<const TierFacts> tiers, std::span<const std::string> names,
        const Policy& policy, const Market& market, std::int64_t now)
      : names_(names),
        objective_(policy.objective),
        tiers_(tiers),
        market_(market),
        appraisal_(appraise(file, tiers, policy, market, now)) {}

  // "saves about 14 s of waiting a day on nvme": `on` against `instead`.
  std::string saving(const char* verb, TierIndex on, TierIndex instead) const {
    const double per_second = appraisal_.value[on] - appraisal_.value[instead];
    return std::string(verb) + " about " + value_text(per_second * kSecondsPerDay, objective_) +
           " a day on " + names_[on];
  }
  // ": 0.5 s/GB, and the tier is worth 0.2 s/GB a day".
  std::string against_price(TierIndex tier) const {
    if (tier >= market_.prices.size()) return {};
    const double price = market_.prices[tier];
    const Intake intake = intake_of(tiers_[tier]);
    if (intake >= Intake::Draining || (price <= 0 && intake != Intake::Open))
      return ", which " + std::string(words_of(intake));
    if (price <= 0) return ", where everything has room";
    std::string own = price_text(appraisal_.per_byte[tier] * kPerGigabyteDay, objective_);
    own.resize(own.size() - std::string_view(" a day").size());
    return ": " + own + ", and the tier is worth " +
           price_text(price * kPerGigabyteDay, objective_);
  }

 private:
  const std::span<const std::string> names_;
  const Objective objective_;
  const std::span<const TierFacts> tiers_;
  const Market& market_;
  const Appraisal appraisal_;
};

}  // namespace

std::string value_text(double per_day, Objective objective) {
  constexpr double kLeast = 0.01;
  per_day = std::max(per_day, 0.0);
  if (objective == Objective::Hits) {
    if (per_day < kLeast) return "0 hits";
    return rounded(per_day) + (rounded(per_day) == "1" ? " hit" : " hits");
  }
  constexpr double kMinute = 60, kHour = 3600;
  if (per_day < kLeast) return "0 s of waiting";
  if (per_day < 2 * kMinute) return rounded(per_day) + " s of waiting";
  if (per_day < 2 * kHour) return rounded(per_day / kMinute) + " min of waiting";
  return rounded(per_day / kHour) + " h of waiting";
}

std::string price_text(double per_gb, Objective objective) {
  return rounded(std::max(per_gb, 0.0)) + (objective == Objective::Hits ? " hits/GB" : " s/GB") +
         " a day";
}

std::string explain_worth(const FileFacts& file, Reason reason, TierIndex to,
                          std::span<const TierFacts> tiers, std::span<const std::string> names,
                          const Policy& policy, const Market& market, std::int64_t now) {
  const auto plain = [&] { return explain_move(file, reason, to, tiers, names, policy); };
  const bool is_ruled = file.rule < policy.rules.size();
  if (policy.method != Method::Value || tiers.size() < 2) return plain();
  const Words words(file, tiers, names, policy, market, now);
  const TierIndex here = file.tier;
  const auto slowest = static_cast<TierIndex>(tiers.size() - 1);
  const auto below = static_cast<TierIndex>(std::min<unsigned>(here + 1U, slowest));
  switch (reason) {
    case Reason::Hot:
      return words.saving("saves", to, here) + words.against_price(to);
    case Reason::Returning:
      return "accessed again after it left " + names[to] + " for lack of room; " +
             words.saving("saves", to, here) + words.against_price(to);
    case Reason::Cold:
      return words.saving("saves only", here, to) + words.against_price(here);
    case Reason::Crowded:
      return names[here] + " is above its high watermark, and among its files this one " +
             words.saving("saves little for its size,", here, to);
    case Reason::Outranked:
      return "makes room for files that save more; " + words.saving("it saves", here, to);
    case Reason::Stays:
      if (is_ruled) return plain();
      if (here < slowest) return words.saving("saves", here, below) + words.against_price(here);
      return words.saving("would save only", static_cast<TierIndex>(here - 1U), here) +
             words.against_price(static_cast<TierIndex>(here - 1U));
    default:
      return plain();
  }
}

}  // namespace sluice
