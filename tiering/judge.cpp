// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/judge.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace sluice {
namespace {

// What a second chance needs of the threshold, and under what part of it a file leaves.
constexpr double kHalf = 0.5;

TierIndex nearest_usable(TierIndex from, std::span<const TierFacts> tiers) {
  for (std::size_t distance = 0; distance < tiers.size(); ++distance) {
    const std::size_t slower = from + distance;
    if (slower < tiers.size() && is_usable(tiers[slower])) return static_cast<TierIndex>(slower);
    if (distance <= from && is_usable(tiers[from - distance]))
      return static_cast<TierIndex>(from - distance);
  }
  return kNoTier;
}

// The fastest usable tier from `first` on whose threshold the score reaches; else the slowest.
TierIndex fitting_tier(const FileFacts& file, std::size_t first, std::span<const TierFacts> tiers) {
  TierIndex slowest = kNoTier;
  for (std::size_t i = first; i < tiers.size(); ++i) {
    if (!is_usable(tiers[i])) continue;
    slowest = static_cast<TierIndex>(i);
    if (file.score >= tiers[i].threshold) break;
  }
  return slowest;
}

Verdict judge_heat(const FileFacts& file, std::span<const TierFacts> tiers, const Policy& policy,
                   std::int64_t now) {
  const Hold stay = is_new(file, policy, now) ? Hold::MinStay : Hold::None;
  for (TierIndex i = 0; i < file.tier; ++i) {
    if (!is_eligible(file, i, tiers)) continue;
    return {i, file.ghost_of == i ? Reason::Returning : Reason::Hot,
            file.opens < 2 ? Hold::OnlyOnce : stay};
  }
  if (file.score < tiers[file.tier].threshold * kHalf) {
    const TierIndex slower = fitting_tier(file, file.tier + 1U, tiers);
    if (slower != kNoTier) return {slower, Reason::Cold, stay};
  }
  return {file.tier, Reason::Stays, Hold::None};
}

// Where a file goes whose tier is being emptied: where it would belong if there were no such tier.
TierIndex refuge_of(const FileFacts& file, const Home& home, std::span<const TierFacts> tiers) {
  if (home.tier != kNoTier) return nearest_usable(home.tier, tiers);
  for (TierIndex i = 0; i < file.tier && file.opens >= 2; ++i) {
    if (is_eligible(file, i, tiers)) return i;
  }
  const TierIndex slower = fitting_tier(file, file.tier + 1U, tiers);
  return slower != kNoTier ? slower : nearest_usable(file.tier, tiers);
}

// As if the file's own tier were online.
Verdict judge_online(const FileFacts& file, const Home& home, std::span<const TierFacts> tiers,
                     const Policy& policy, std::int64_t now) {
  if (tiers[file.tier].draining) {
    const TierIndex refuge = refuge_of(file, home, tiers);
    if (refuge == kNoTier) return {file.tier, Reason::Draining, Hold::Offline};
    return {refuge, Reason::Draining, Hold::None};
  }
  if (home.tier == kNoTier) return judge_heat(file, tiers, policy, now);
  const bool is_there = home.tier == file.tier || is_usable(tiers[home.tier]);
  return {home.tier, home.reason, is_there ? Hold::None : Hold::Offline};
}

// A score in the fewest digits that don't contradict what is said of it: 4.96 is under 5, "5"
// isn't.
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

// By its glob, or by its place in the configuration if it has none.
// REQUIRES: a rule matches the file.
std::string rule_text(const FileFacts& file, const Policy& policy) {
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
  // A clock that was set back must not hold a file for years: what arrived well after now isn't
  // new.
  const auto from = static_cast<std::uint64_t>(std::min(now, file.arrived));
  const auto to = static_cast<std::uint64_t>(std::max(now, file.arrived));
  return policy.min_stay.count() > 0 &&
         to - from < static_cast<std::uint64_t>(policy.min_stay.count());
}

bool is_eligible(const FileFacts& file, TierIndex tier, std::span<const TierFacts> tiers) {
  if (!is_usable(tiers[tier])) return false;
  if (file.ghost_of != tier) return file.score >= tiers[tier].threshold;
  // One that had to leave it for want of room comes back at half the score, but only once it was
  // used again: else what was shed would return as soon as there is room, to be shed again.
  return file.last_use > file.arrived && file.score >= tiers[tier].threshold * kHalf;
}

Verdict judge_with_home(const FileFacts& file, const Home& home, std::span<const TierFacts> tiers,
                        const Policy& policy, std::int64_t now) {
  Verdict verdict = judge_online(file, home, tiers, policy, now);
  if (verdict.wants != file.tier && !tiers[file.tier].online) verdict.hold = Hold::Offline;
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

const char* name_of(Hold hold) {
  switch (hold) {
    case Hold::None:
      return "none";
    case Hold::MinStay:
      return "min_stay";
    case Hold::OnlyOnce:
      return "only_once";
    case Hold::NoRoom:
      return "no_room";
    case Hold::Offline:
      return "offline";
  }
  return "unknown";
}

Verdict judge(const FileFacts& file, std::span<const TierFacts> tiers, const Policy& policy,
              std::int64_t now) {
  return judge_with_home(file, home_of(file, tiers, policy), tiers, policy, now);
}

double rank_of(const FileFacts& file) {
  constexpr double kSeek = 1 << 20, kPage = 4096;
  // Not std::max: what isn't a number ranks lowest, or sorting by it would be undefined.
  const double score = file.score > 0 ? file.score : 0;
  return score * (1 + kSeek / std::max(static_cast<double>(file.bytes), kPage));
}

std::string explain_move(const FileFacts& file, Reason reason, TierIndex to,
                         std::span<const TierFacts> tiers, std::span<const std::string> names,
                         const Policy& policy) {
  const auto reaches = [&](double bound) {
    return "score " + score_text(file.score, bound) + " is " + number_text(bound) + " or more";
  };
  switch (reason) {
    case Reason::Stays:
      if (file.rule < policy.rules.size() && policy.rules[file.rule].tier == kNoTier)
        return rule_text(file, policy) + " keeps it where it is";
      return "it is where it should be";
    case Reason::Pinned:
      return "pinned to " + names[to];
    case Reason::Ruled:
      return rule_text(file, policy);
    case Reason::Hot:
      return reaches(tiers[to].threshold);
    case Reason::Returning:
      return "used again after it had to leave " + names[to] + ", and " +
             reaches(tiers[to].threshold * kHalf);
    case Reason::Cold: {
      const double bound = tiers[file.tier].threshold * kHalf;
      return "score " + score_text(file.score, bound) + " is under " + number_text(bound) +
             ", half of what " + names[file.tier] + " asks for";
    }
    case Reason::Crowded:
      return names[file.tier] + " is above its high watermark and this ranks lowest";
    case Reason::Outranked:
      return "makes room for files that rank higher";
    case Reason::Draining:
      return names[file.tier] + " is being emptied";
    case Reason::Requested:
      return "somebody asked for it";
  }
  return "";
}

}  // namespace sluice
