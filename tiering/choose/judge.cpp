// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/choose/judge.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/check.hpp"

namespace sluice {
namespace {

// The part of a threshold that a returning file needs, and below which a file leaves.
constexpr double kHalf = 0.5;
// The time, in seconds, in which a move must earn what it costs: as long as the score remembers, by
// default. A file's habits can hardly be known for longer.
constexpr double kHorizon = 7 * 86'400;

// What a tier that takes no files means for one that should move there, or away from there.
Blocker blocker_of(const TierFacts& tier) {
  switch (intake_of(tier)) {
    case Intake::Offline:
      return Blocker::Offline;
    case Intake::ReadOnly:
      return Blocker::ReadOnly;
    case Intake::Draining:
      return Blocker::Draining;
    case Intake::Failing:
      return Blocker::Failing;
    default:
      return Blocker::None;
  }
}

TierIndex nearest_usable(TierIndex from, std::span<const TierFacts> tiers) {
  for (std::size_t distance = 0; distance < tiers.size(); ++distance) {
    const std::size_t slower = from + distance;
    if (slower < tiers.size() && is_usable(tiers[slower])) return static_cast<TierIndex>(slower);
    if (distance <= from && is_usable(tiers[from - distance]))
      return static_cast<TierIndex>(from - distance);
  }
  return kNoTier;
}

// Formats a score with the fewest digits that do not contradict the explanation: 4.96 is below 5,
// but "5" is not.
std::string score_text(double score, double bound) {
  char text[64];
  for (int digits = 0; digits < 7; ++digits) {
    std::snprintf(text, sizeof text, "%.*f", digits, score);
    if ((std::strtod(text, nullptr) < bound) == (score < bound)) break;
  }
  return text;
}

std::string number_text(double number) {
  char text[64];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

// The rule's glob, or its position in the configuration if it has none.
std::string rule_text(const FileFacts& file, const Policy& policy) {
  SLUICE_CHECK(file.rule < policy.rules.size(), "a rule matches the file");
  const std::string& match = policy.rules[file.rule].match;
  return "rule " + (match.empty() ? std::to_string(file.rule + 1) : match);
}

}  // namespace

Home home_of(const FileFacts& file, std::span<const TierFacts> tiers, const Policy& policy) {
  if (file.pin < tiers.size()) return {file.pin, Reason::Pinned};
  if (file.rule >= policy.rules.size()) return {};
  const TierIndex tier = policy.rules[file.rule].tier;
  if (tier == kNoTier) return {file.tier, Reason::Stays};
  return tier < tiers.size() ? Home{tier, Reason::Ruled} : Home{};
}

bool is_new(const FileFacts& file, const Policy& policy, std::int64_t now) {
  // If the clock was set back, `arrived` may be far in the future. Such a file does not count as
  // new, or it could not move for years.
  const auto from = static_cast<std::uint64_t>(std::min(now, file.arrived));
  const auto to = static_cast<std::uint64_t>(std::max(now, file.arrived));
  return policy.min_stay.count() > 0 &&
         to - from < static_cast<std::uint64_t>(policy.min_stay.count());
}

double Judge::rate_of(const FileFacts& file) const {
  // As precise as the planner keeps it, so that both decide alike.
  return by_value() ? static_cast<float>(market_.rates.rate_of(file, now_)) : 0;
}

double Judge::rank(const FileFacts& file, double rate, std::size_t tier) const {
  if (!by_value()) return rank_of(file);
  return rate * savings_.at_border(tier, file.bytes) / priced_bytes(file);
}

double Judge::gain(const FileFacts& file, double rate, std::size_t to) const {
  return kHorizon * rate *
         (savings_.in_all(to, file.bytes) - savings_.in_all(file.tier, file.bytes));
}

double Judge::cost(const FileFacts& file, std::size_t to) const {
  return savings_.of_not_copying(file.bytes, file.tier, to);
}

// Whether the file is worth the price of the tier, or reaches its threshold.
bool Judge::belongs(const FileFacts& file, double rate, std::size_t tier) const {
  if (!by_value()) return file.score >= tiers_[tier].threshold;
  return tier < market_.prices.size() && rank(file, rate, tier) > market_.prices[tier];
}

bool Judge::is_eligible(const FileFacts& file, double rate, TierIndex tier) const {
  SLUICE_CHECK(tier < file.tier, "a file is eligible only for tiers faster than its own");
  if (!is_usable(tiers_[tier])) return false;
  // A file that left this tier for lack of room returns only after a new access. Otherwise it would
  // return as soon as there is room and leave again.
  const bool is_ghost = file.ghost_of == tier;
  if (is_ghost && file.last_use <= file.arrived) return false;
  if (!by_value()) return file.score >= tiers_[tier].threshold * (is_ghost ? kHalf : 1);
  return belongs(file, rate, tier) && gain(file, rate, tier) > cost(file, tier);
}

// The fastest usable tier, starting at `first`, where the file belongs; otherwise the slowest
// usable tier.
TierIndex Judge::fitting_tier(const FileFacts& file, double rate, std::size_t first) const {
  TierIndex slowest = kNoTier;
  for (std::size_t i = first; i < tiers_.size(); ++i) {
    if (!is_usable(tiers_[i])) continue;
    slowest = static_cast<TierIndex>(i);
    if (belongs(file, rate, i)) break;
  }
  return slowest;
}

Verdict Judge::by_heat(const FileFacts& file, double rate) const {
  const Blocker stay = is_new(file, policy_, now_) ? Blocker::MinStay : Blocker::None;
  for (TierIndex i = 0; i < file.tier; ++i) {
    if (!is_eligible(file, rate, i)) continue;
    return {i, file.ghost_of == i ? Reason::Returning : Reason::Hot,
            file.opens < 2 ? Blocker::OnlyOnce : stay};
  }
  // By value, a file leaves only when its room is needed.
  if (!by_value() && file.score < tiers_[file.tier].threshold * kHalf) {
    const TierIndex slower = fitting_tier(file, rate, file.tier + 1U);
    if (slower != kNoTier) return {slower, Reason::Cold, stay};
  }
  return {file.tier, Reason::Stays, Blocker::None};
}

// Where a file goes when its tier is emptied: the tier it would be on if its own did not exist.
TierIndex Judge::refuge_of(const FileFacts& file, double rate, const Home& home) const {
  if (home.tier != kNoTier) return nearest_usable(home.tier, tiers_);
  for (TierIndex i = 0; i < file.tier && file.opens >= 2; ++i) {
    if (is_eligible(file, rate, i)) return i;
  }
  const TierIndex slower = fitting_tier(file, rate, file.tier + 1U);
  return slower != kNoTier ? slower : nearest_usable(file.tier, tiers_);
}

// The verdict if the file's own tier is online.
Verdict Judge::if_online(const FileFacts& file, double rate, const Home& home) const {
  if (tiers_[file.tier].draining) {
    const TierIndex refuge = refuge_of(file, rate, home);
    if (refuge == kNoTier) return {file.tier, Reason::Draining, Blocker::Nowhere};
    return {refuge, Reason::Draining, Blocker::None};
  }
  if (home.tier == kNoTier) return by_heat(file, rate);
  return {home.tier, home.reason,
          home.tier == file.tier ? Blocker::None : blocker_of(tiers_[home.tier])};
}

Verdict Judge::verdict(const FileFacts& file, double rate, const Home& home) const {
  Verdict verdict = if_online(file, rate, home);
  if (verdict.wants != file.tier && !can_leave(tiers_[file.tier]))
    verdict.blocker = blocker_of(tiers_[file.tier]);
  return verdict;
}

const char* name_of(Reason reason) {
  switch (reason) {
    case Reason::Stays:
      return "stays";
    case Reason::Pinned:
      return "pinned";
    case Reason::Ruled:
      return "ruled";
    case Reason::Hot:
      return "hot";
    case Reason::Returning:
      return "returning";
    case Reason::Cold:
      return "cold";
    case Reason::Crowded:
      return "crowded";
    case Reason::Outranked:
      return "outranked";
    case Reason::Draining:
      return "draining";
    case Reason::Requested:
      return "requested";
  }
  return "unknown";
}

const char* name_of(Blocker blocker) {
  switch (blocker) {
    case Blocker::None:
      return "none";
    case Blocker::MinStay:
      return "min_stay";
    case Blocker::OnlyOnce:
      return "only_once";
    case Blocker::NoRoom:
      return "no_room";
    case Blocker::Offline:
      return "offline";
    case Blocker::Draining:
      return "draining";
    case Blocker::ReadOnly:
      return "read_only";
    case Blocker::Failing:
      return "failing";
    case Blocker::Nowhere:
      return "nowhere";
  }
  return "unknown";
}

Verdict judge(const FileFacts& file, std::span<const TierFacts> tiers, const Policy& policy,
              const Market& market, std::int64_t now) {
  const Judge judge(tiers, policy, market, now);
  Verdict verdict = judge.verdict(file, judge.rate_of(file), home_of(file, tiers, policy));
  if (verdict.wants == file.tier || verdict.blocker != Blocker::None) return verdict;
  const TierFacts& to = tiers[verdict.wants];
  const bool goes_by_rank = verdict.reason == Reason::Hot || verdict.reason == Reason::Returning ||
                            verdict.reason == Reason::Cold;
  if (to.used + file.bytes > (goes_by_rank ? high_mark(to) : brim_of(to)))
    verdict.blocker = Blocker::NoRoom;
  return verdict;
}

double rank_of(const FileFacts& file) {
  constexpr double kSeek = 1 << 20, kPage = 4096;
  // Not std::max: a NaN must rank lowest, because sorting by NaN is undefined.
  const double score = file.score > 0 ? file.score : 0;
  return score * (1 + kSeek / std::max(static_cast<double>(file.bytes), kPage));
}

std::string explain_move(const FileFacts& file, Reason reason, TierIndex to,
                         std::span<const TierFacts> tiers, std::span<const std::string> names,
                         const Policy& policy) {
  const auto reaches = [&](double bound) {
    return "score " + score_text(file.score, bound) + " is at least " + number_text(bound);
  };
  switch (reason) {
    case Reason::Stays:
      if (file.rule < policy.rules.size() && policy.rules[file.rule].tier == kNoTier)
        return rule_text(file, policy) + " keeps the file where it is";
      return "the file is on the right tier";
    case Reason::Pinned:
      return "pinned to " + names[to];
    case Reason::Ruled:
      return rule_text(file, policy);
    case Reason::Hot:
      return reaches(tiers[to].threshold);
    case Reason::Returning:
      return "accessed again after it left " + names[to] + " for lack of room, and " +
             reaches(tiers[to].threshold * kHalf);
    case Reason::Cold: {
      const double bound = tiers[file.tier].threshold * kHalf;
      return "score " + score_text(file.score, bound) + " is below " + number_text(bound) +
             ", half of the threshold of " + names[file.tier];
    }
    case Reason::Crowded:
      return names[file.tier] + " is above its high watermark and this file ranks lowest";
    case Reason::Outranked:
      return "makes room for files that rank higher";
    case Reason::Draining:
      return names[file.tier] + " is being emptied";
    case Reason::Requested:
      return "requested by a user";
  }
  return "";
}

}  // namespace sluice
