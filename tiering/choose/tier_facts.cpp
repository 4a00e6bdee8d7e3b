// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/choose/tier_facts.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace sluice {
namespace {

// No plan fills a tier above this percentage: nearly full filesystems are slow, and writers need
// some space.
constexpr unsigned kBrim = 98;

constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kIntakes{{
    {"open", "has room"},
    {"above-watermark", "is above its high watermark"},
    {"full", "is full"},
    {"draining", "is being emptied"},
    {"failing", "fails"},
    {"read-only", "is read-only"},
    {"offline", "is offline"},
}};

std::uint64_t percent_of(std::uint64_t total, unsigned percent) {
  return total / 100 * percent + total % 100 * percent / 100;
}

}  // namespace

std::string_view name_of(Intake intake) { return kIntakes[static_cast<std::size_t>(intake)].first; }

Intake intake_named(std::string_view name) {
  for (std::size_t i = 0; i < kIntakes.size(); ++i) {
    if (kIntakes[i].first == name) return static_cast<Intake>(i);
  }
  return Intake::Open;
}

std::string_view words_of(Intake intake) {
  return kIntakes[static_cast<std::size_t>(intake)].second;
}

std::uint64_t brim_of(const TierFacts& tier) { return percent_of(tier.total, kBrim); }

unsigned watermark_of(const TierFacts& tier) { return std::min(tier.high_watermark, kBrim); }

std::uint64_t high_mark(const TierFacts& tier) {
  return std::min(percent_of(tier.total, watermark_of(tier)),
                  tier.total - std::min(tier.reserve, tier.total));
}

std::uint64_t low_mark(const TierFacts& tier) {
  return std::min(percent_of(tier.total, tier.low_watermark), high_mark(tier));
}

bool is_above_watermark(const TierFacts& tier) {
  return std::max(tier.used, tier.disk_used) > percent_of(tier.total, watermark_of(tier));
}

bool is_below_reserve(const TierFacts& tier) {
  return std::max(tier.used, tier.disk_used) + tier.reserve > tier.total;
}

Intake intake_of(const TierFacts& tier) {
  if (!tier.online) return Intake::Offline;
  if (tier.read_only) return Intake::ReadOnly;
  if (tier.failing) return Intake::Failing;
  if (tier.draining) return Intake::Draining;
  if (is_below_reserve(tier)) return Intake::Full;
  return is_above_watermark(tier) ? Intake::AboveWatermark : Intake::Open;
}

std::string_view words_of(Relief relief) {
  switch (relief) {
    case Relief::NextPass:
      return "the next pass looks for files that can leave it";
    case Relief::Comes:
      return "passes move files to slower tiers";
    case Relief::Waits:
      return "the files that should leave it wait, see 'sluice moves'";
    case Relief::Off:
      return "no files leave it by themselves, because migrate is off";
    case Relief::Paused:
      return "no files leave it while migration is paused";
    case Relief::Slowest:
      return "no files leave it by themselves, because no slower tier takes any";
    case Relief::Shared:
      return "no files leave it by themselves, because another tier is on the same disk";
    case Relief::NoRoom:
      return "no files leave it by themselves, because slower tiers have no room for them";
    case Relief::NoneMoves:
      return "no files leave it by themselves, because none on it may move (pins, rules, hard "
             "links, or not of the pool)";
  }
  return "";
}

}  // namespace sluice
