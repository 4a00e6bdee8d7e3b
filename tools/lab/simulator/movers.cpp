// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/simulator/movers.hpp"

#include <algorithm>
#include <numeric>

#include "metadata/decay.hpp"

namespace sluice::tools::lab {
namespace {

constexpr std::int64_t kMicroseconds = 1'000'000;

std::uint64_t percent_of(std::uint64_t bytes, unsigned percent) {
  return static_cast<std::uint64_t>(static_cast<double>(bytes) * percent / 100);
}

}  // namespace

PeriodicMover::PeriodicMover(const Trace& trace, const SimulationOptions& options)
    : Contender(trace, options),
      tier_of_(trace.sizes.size(), static_cast<TierIndex>(options.tiers.size() - 1)),
      is_seen_(trace.sizes.size(), 0),
      used_(options.tiers.size(), 0) {
  constexpr std::int64_t kEarliest = 1'000'000'000;
  if (trace.times.empty()) return;
  const auto start = trace.times.front() / kMicroseconds;
  shift_ = start < kEarliest ? kEarliest : 0;
  next_tick_ = start + shift_ + options.interval.count();
  if (options.placing == Placing::Slowest) used_.back() = trace.total_bytes();
}

std::int64_t PeriodicMover::seconds_of(std::uint32_t record) const {
  return trace_.times[record] / kMicroseconds + shift_;
}

TierIndex PeriodicMover::locate(std::uint32_t record) {
  const auto now = seconds_of(record);
  while (now >= next_tick_) {
    now_ = static_cast<double>(next_tick_ - shift_);
    finish_moves(now_);
    // A pass begins only after the moves of the one before.
    if (moving_.empty()) tick(next_tick_);
    next_tick_ += options_.interval.count();
  }
  now_ = time_of(record);
  finish_moves(now_);
  return tier_of_[object_of(record)];
}

void PeriodicMover::finish_moves(double now) {
  for (; !moving_.empty() && moving_.front().end <= now; moving_.pop_front()) {
    const auto [object, to, end] = moving_.front();
    const auto from = tier_of_[object];
    used_[from] -= size_of(object);
    used_[to] += size_of(object);
    tier_of_[object] = to;
    if (to == 0) count_in(object, Access::Use);
    if (from == 0) count_out(object);
  }
}

bool PeriodicMover::access(std::uint32_t record, Access kind) {
  const auto object = object_of(record);
  const auto now = seconds_of(record);
  if (is_seen_[object] == 0) {
    is_seen_[object] = 1;
    seen_.push_back(object);
    if (kind == Access::Creation) place_new(object);
  }
  const bool is_hit = tier_of_[object] == 0;
  used(object, now);
  return is_hit;
}

void PeriodicMover::place_new(std::uint32_t object) {
  std::size_t tier = 0;
  for (; tier + 1 < options_.tiers.size(); ++tier) {
    const auto total = options_.tiers[tier].bytes;
    if (used_[tier] < percent_of(total, options_.high_watermark) &&
        used_[tier] + size_of(object) <= total) {
      break;
    }
  }
  tier_of_[object] = static_cast<TierIndex>(tier);
  used_[tier] += size_of(object);
}

void PeriodicMover::move(std::uint32_t object, TierIndex to) {
  const auto from = tier_of_[object];
  if (from == to) return;
  const double start = moving_.empty() ? now_ : moving_.back().end;
  moving_.push_back({object, to, disks_.copy(from, to, size_of(object), start)});
}

PlannerMover::PlannerMover(const Trace& trace, const SimulationOptions& options)
    : PeriodicMover(trace, options), memory_(trace.sizes.size()) {
  all_.resize(trace.sizes.size());
  std::iota(all_.begin(), all_.end(), 0U);
  policy_.min_stay = options.min_stay;
  policy_.half_life = options.half_life;
  policy_.method = options.method;
  policy_.objective = options.objective;
  for (const auto& tier : options.tiers) {
    tiers_.push_back({.total = tier.bytes,
                      .high_watermark = options.high_watermark,
                      .low_watermark = options.low_watermark,
                      .threshold = tier.threshold,
                      .speed = tier.speed});
  }
}

void PlannerMover::used(std::uint32_t object, std::int64_t now) {
  auto& memory = memory_[object];
  if (memory.opens == 0 && options_.placing == Placing::Fastest) memory.arrived = now;
  if (memory.opens == 0) memory.since = now;
  memory.recent = decayed(memory.recent, memory.last_use, now, kRecentHalfLife) + 1;
  memory.score = decayed(memory.score, memory.last_use, now, options_.half_life) + 1;
  memory.last_use = now;
  ++memory.opens;
}

void PlannerMover::tick(std::int64_t now) {
  // Ghosts are kept for a half-life, which a score that never decays does not have.
  const auto ghost_life = options_.half_life.count() > 0 ? options_.half_life.count()
                                                         : SimulationOptions{}.half_life.count();
  facts_.clear();
  const auto& files = options_.placing == Placing::Slowest ? all_ : seen();
  for (const auto object : files) {
    auto& memory = memory_[object];
    if (now - memory.arrived > ghost_life) memory.ghost_of = kNoTier;
    facts_.push_back({.id = InodeId{std::uint64_t{object} + 2},
                      .bytes = size_of(object),
                      .last_use = memory.last_use,
                      .arrived = memory.arrived,
                      .since = memory.since,
                      .score = static_cast<float>(
                          decayed(memory.score, memory.last_use, now, options_.half_life)),
                      .recent = static_cast<float>(
                          decayed(memory.recent, memory.last_use, now, kRecentHalfLife)),
                      .opens = memory.opens,
                      .tier = tier_of(object),
                      .ghost_of = memory.ghost_of});
  }
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) tiers_[tier].used = used_of(tier);
  for (const auto& planned : make_plan(facts_, tiers_, policy_, now).moves) {
    const auto object = files[planned.file];
    auto& memory = memory_[object];
    const bool was_pushed =
        planned.reason == Reason::Crowded || planned.reason == Reason::Outranked;
    memory.ghost_of = was_pushed ? tier_of(object) : kNoTier;
    memory.arrived = now;
    move(object, planned.to);
  }
}

AutotierMover::AutotierMover(const Trace& trace, const SimulationOptions& options)
    : PeriodicMover(trace, options), memory_(trace.sizes.size()) {}

void AutotierMover::used(std::uint32_t object, std::int64_t now) {
  // autotier assumes 0.238 uses per second for a new file. Files that exist from the start all have
  // the same initial value, so it does not affect their order.
  constexpr double kAverageUse = 0.238 * 3600;
  auto& memory = memory_[object];
  if (memory.last_use == 0) {
    memory.first_use = now;
    if (options_.placing == Placing::Fastest) memory.popularity = kAverageUse;
  }
  memory.last_use = now;
  ++memory.uses;
}

// The average reaches back 50,000 s for a new file, and 1,000,000 s once it is a week old.
void AutotierMover::age(Memory& memory, std::int64_t now) const {
  constexpr double kFirst = 50'000, kLast = 1'000'000, kWeek = 7 * 24 * 3600;
  const auto period = static_cast<double>(options_.interval.count());
  const double file_age = options_.placing == Placing::Fastest
                              ? static_cast<double>(now - memory.first_use) + period / 2
                              : kWeek;
  const double reach = std::min(kFirst + file_age * (kLast - kFirst) / kWeek, kLast);
  const double share = std::min(1.0, period / reach);
  memory.popularity += share * (memory.uses * 3600.0 / period - memory.popularity);
  memory.uses = 0;
}

void AutotierMover::tick(std::int64_t now) {
  for (const auto object : seen()) age(memory_[object], now);
  order_.insert(order_.end(), seen().begin() + static_cast<std::ptrdiff_t>(order_.size()),
                seen().end());
  std::stable_sort(order_.begin(), order_.end(), [&](auto a, auto b) {
    const auto& left = memory_[a];
    const auto& right = memory_[b];
    return left.popularity != right.popularity ? left.popularity > right.popularity
                                               : left.last_use > right.last_use;
  });
  std::vector<std::uint64_t> filled(options_.tiers.size(), 0);
  for (const auto object : order_) {
    std::size_t tier = 0;
    while (tier + 1 < filled.size() &&
           filled[tier] + size_of(object) > options_.tiers[tier].bytes) {
      ++tier;
    }
    filled[tier] += size_of(object);
    move(object, static_cast<TierIndex>(tier));
  }
}

}  // namespace sluice::tools::lab
