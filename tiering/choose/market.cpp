// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/choose/market.hpp"

#include <algorithm>

#include "tiering/choose/judge.hpp"
#include "tiering/choose/planner.hpp"

namespace sluice {
namespace {

struct Bid {
  float rate, per_byte;
  std::uint32_t file;
};

// Moves the highest bids whose files fit into `room` to the front, and the highest one that no
// longer fits behind them. Returns how many fit. Like std::nth_element, it orders only the part
// that matters.
std::size_t take_highest(std::span<Bid> bids, std::span<const FileFacts> files,
                         std::uint64_t room) {
  auto low = bids.begin();
  auto high = bids.end();
  while (low != high) {
    const auto middle = low + (high - low) / 2;
    std::nth_element(low, middle, high, [&](const Bid& a, const Bid& b) {
      if (a.per_byte != b.per_byte) return a.per_byte > b.per_byte;
      return files[a.file].id < files[b.file].id;
    });
    std::uint64_t bytes = 0;
    for (auto at = low; at <= middle && bytes <= room; ++at) bytes += files[at->file].bytes;
    if (bytes <= room) {
      room -= bytes;
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return static_cast<std::size_t>(low - bids.begin());
}

}  // namespace

double priced_bytes(const FileFacts& file) {
  constexpr double kBlock = 4096;
  return std::max(static_cast<double>(file.bytes), kBlock);
}

Savings::Savings(std::span<const TierFacts> tiers, Objective objective)
    : steps_(tiers.size()), speeds_(tiers.size()), objective_(objective) {
  for (std::size_t i = 0; i < tiers.size(); ++i)
    speeds_[i] = tiers[i].speed.is_known() ? tiers[i].speed : usual_speed(i, tiers.size());
  std::size_t slower = tiers.size();
  for (std::size_t i = tiers.size(); i-- > 0;) {
    if (!is_usable(tiers[i])) continue;
    if (slower < tiers.size() && objective == Objective::Hits) steps_[i].per_access = 1;
    if (slower < tiers.size() && objective == Objective::Time) {
      // A tier that turns out to be slower than the next one saves nothing.
      steps_[i] = {
          .per_access = std::max(0.0, speeds_[slower].latency - speeds_[i].latency),
          .per_byte = std::max(0.0, 1 / speeds_[slower].bandwidth - 1 / speeds_[i].bandwidth)};
    }
    slower = i;
  }
}

double Savings::at_border(std::size_t tier, std::uint64_t bytes) const {
  return steps_[tier].per_access + steps_[tier].per_byte * static_cast<double>(bytes);
}

double Savings::in_all(std::size_t tier, std::uint64_t bytes) const {
  double sum = 0;
  for (std::size_t i = tier; i < steps_.size(); ++i) sum += at_border(i, bytes);
  return sum;
}

double Savings::of_not_copying(std::uint64_t bytes, std::size_t from, std::size_t to) const {
  if (objective_ == Objective::Hits) return 1;
  return std::max(speeds_[from].seconds_for(bytes), speeds_[to].seconds_for(bytes));
}

Market learn_market(std::span<const FileFacts> files, std::span<const TierFacts> tiers,
                    const Policy& policy, std::int64_t now) {
  Market market{.rates = RateModel(files, policy.half_life, now),
                .prices = std::vector<double>(tiers.size())};
  std::vector<std::uint64_t> firm(tiers.size());  // bytes that value does not move
  for (std::size_t i = 0; i < tiers.size(); ++i) firm[i] = tiers[i].used;
  std::vector<Bid> bids;
  bids.reserve(files.size());
  for (std::uint32_t i = 0; i < files.size(); ++i) {
    const FileFacts& file = files[i];
    const TierIndex home = home_of(file, tiers, policy).tier;
    if (!can_leave(tiers[file.tier]) || home == file.tier) continue;
    firm[file.tier] -= std::min(firm[file.tier], file.bytes);
    // A file that its pin or rule will bring to a tier takes its room there already now.
    // One that was used only once can't go up, so it does not bid.
    if (home != kNoTier)
      firm[home] += file.bytes;
    else if (file.opens >= 2)
      bids.push_back({static_cast<float>(market.rates.rate_of(file, now)), 0, i});
  }
  const Savings savings(tiers, policy.objective);
  for (std::size_t tier = 0; tier + 1 < tiers.size(); ++tier) {
    if (!is_usable(tiers[tier])) continue;
    for (Bid& bid : bids) {
      const FileFacts& file = files[bid.file];
      bid.per_byte =
          static_cast<float>(bid.rate * savings.at_border(tier, file.bytes) / priced_bytes(file));
    }
    const std::uint64_t high = high_mark(tiers[tier]);
    const std::size_t taken = take_highest(bids, files, high > firm[tier] ? high - firm[tier] : 0);
    if (taken < bids.size()) market.prices[tier] = bids[taken].per_byte;
    bids.erase(bids.begin(), bids.begin() + static_cast<std::ptrdiff_t>(taken));
  }
  return market;
}

Appraisal appraise(const FileFacts& file, std::span<const TierFacts> tiers, const Policy& policy,
                   const Market& market, std::int64_t now) {
  const Savings savings(tiers, policy.objective);
  Appraisal appraisal{.rate = market.rates.rate_of(file, now)};
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    appraisal.value.push_back(appraisal.rate * savings.in_all(i, file.bytes));
    appraisal.per_byte.push_back(appraisal.rate * savings.at_border(i, file.bytes) /
                                 priced_bytes(file));
  }
  return appraisal;
}

}  // namespace sluice
