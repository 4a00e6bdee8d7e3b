// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/simulator/caches.hpp"

#include <algorithm>

namespace sluice::tools::lab {

Cache::Cache(const Trace& trace, const SimulationOptions& options)
    : Contender(trace, options),
      capacity_(options.tiers.front().bytes),
      tier_of_(trace.sizes.size(), static_cast<TierIndex>(options.tiers.size() - 1)),
      links_(trace.sizes.size()),
      between_(options.tiers.size() - 2, ObjectList(links_, trace)) {}

TierIndex Cache::locate(std::uint32_t record) {
  now_ = time_of(record);
  return tier_of_[object_of(record)];
}

void Cache::take_in(std::uint32_t object, Access kind) {
  const auto from = tier_of_[object];
  if (from <= between_.size()) between_[from - 1U].remove(object);
  // The request has read the object already, so only the fastest disk has to work.
  if (kind == Access::Use) disks_.copy(0, 0, size_of(object), now_);
  tier_of_[object] = 0;
  used_ += size_of(object);
  count_in(object, kind);
}

void Cache::put_out(std::uint32_t object) {
  used_ -= size_of(object);
  count_out(object);
  demote(object, 0);
}

void Cache::demote(std::uint32_t object, std::size_t from) {
  std::size_t to = from + 1;
  while (to <= between_.size() && size_of(object) > options_.tiers[to].bytes) ++to;
  disks_.copy(from, to, size_of(object), now_);
  tier_of_[object] = static_cast<TierIndex>(to);
  if (to > between_.size()) return;
  ObjectList& list = between_[to - 1];
  list.add_newest(object);
  while (list.bytes() > options_.tiers[to].bytes) demote(list.remove_oldest(), to);
}

LruCache::LruCache(const Trace& trace, const SimulationOptions& options)
    : Cache(trace, options), links_(trace.sizes.size()), list_(links_, trace) {}

bool LruCache::access(std::uint32_t record, Access kind) {
  const auto object = object_of(record);
  if (contains(object)) {
    list_.remove(object);
    list_.add_newest(object);
    return true;
  }
  if (!fits(object)) return false;
  while (!has_room_for(object)) put_out(list_.remove_oldest());
  list_.add_newest(object);
  take_in(object, kind);
  return false;
}

LfuCache::LfuCache(const Trace& trace, const SimulationOptions& options)
    : Cache(trace, options), uses_(trace.sizes.size()) {}

bool LfuCache::access(std::uint32_t record, Access kind) {
  const auto object = object_of(record);
  auto& use = uses_[object];
  const bool is_hit = contains(object);
  if (is_hit) {
    order_.erase({use.count, use.last, object});
  } else {
    if (!fits(object)) return false;
    while (!has_room_for(object)) {
      const auto victim = std::get<2>(*order_.begin());
      order_.erase(order_.begin());
      put_out(victim);
    }
    take_in(object, kind);
    use.count = 0;
  }
  ++use.count;
  use.last = record;
  order_.insert({use.count, use.last, object});
  return is_hit;
}

GdsfCache::GdsfCache(const Trace& trace, const SimulationOptions& options)
    : Cache(trace, options), standings_(trace.sizes.size()) {}

bool GdsfCache::access(std::uint32_t record, Access kind) {
  const auto object = object_of(record);
  auto& standing = standings_[object];
  const bool is_hit = contains(object);
  if (is_hit) {
    order_.erase({standing.worth, object});
  } else {
    if (!fits(object)) return false;
    while (!has_room_for(object)) {
      const auto victim = *order_.begin();
      order_.erase(order_.begin());
      age_ = victim.first;
      put_out(victim.second);
    }
    take_in(object, kind);
    standing.count = 0;
  }
  ++standing.count;
  const auto size = static_cast<double>(std::max<std::uint64_t>(size_of(object), 1));
  standing.worth = age_ + standing.count / size;
  order_.insert({standing.worth, object});
  return is_hit;
}

S3FifoCache::S3FifoCache(const Trace& trace, const SimulationOptions& options)
    : Cache(trace, options),
      small_capacity_(capacity_ / 10),
      main_capacity_(capacity_ - small_capacity_),
      links_(trace.sizes.size()),
      small_(links_, trace),
      main_(links_, trace),
      ghosts_(links_, trace),
      where_(trace.sizes.size(), Where::Nowhere),
      uses_(trace.sizes.size(), 0) {}

bool S3FifoCache::access(std::uint32_t record, Access kind) {
  constexpr std::uint8_t kMostUses = 3;
  const auto object = object_of(record);
  if (contains(object)) {
    if (uses_[object] < kMostUses) ++uses_[object];
    return true;
  }
  if (!fits(object)) return false;
  while (!has_room_for(object)) evict();
  // Checked only now: its ghost may have been dropped to make room for those of evicted objects.
  const bool is_ghost = where_[object] == Where::Ghost;
  if (is_ghost) ghosts_.remove(object);
  (is_ghost ? main_ : small_).add_newest(object);
  where_[object] = is_ghost ? Where::Main : Where::Small;
  uses_[object] = 0;
  take_in(object, kind);
  return false;
}

void S3FifoCache::evict() {
  // With unequal sizes either queue may be empty.
  if (main_.empty() || (!small_.empty() && small_.bytes() >= small_capacity_)) {
    evict_small();
  } else {
    evict_main();
  }
}

void S3FifoCache::evict_small() {
  while (!small_.empty()) {
    const auto object = small_.remove_oldest();
    if (uses_[object] <= 1) {
      put_out(object);
      remember(object);
      return;
    }
    main_.add_newest(object);
    where_[object] = Where::Main;
    uses_[object] = 0;
    if (main_.bytes() > main_capacity_) {
      evict_main();
      return;
    }
  }
}

void S3FifoCache::evict_main() {
  for (;;) {
    const auto object = main_.remove_oldest();
    if (uses_[object] == 0) {
      put_out(object);
      where_[object] = Where::Nowhere;
      return;
    }
    --uses_[object];
    main_.add_newest(object);
  }
}

void S3FifoCache::remember(std::uint32_t object) {
  ghosts_.add_newest(object);
  where_[object] = Where::Ghost;
  while (ghosts_.bytes() > main_capacity_) where_[ghosts_.remove_oldest()] = Where::Nowhere;
}

BeladyCache::BeladyCache(const Trace& trace, const SimulationOptions& options)
    : Cache(trace, options), next_uses_(next_uses(trace)) {}

bool BeladyCache::access(std::uint32_t record, Access kind) {
  const auto object = object_of(record);
  const auto next = next_uses_[record];
  const bool is_hit = contains(object);
  if (is_hit) {
    by_next_use_.erase({record, object});
  } else {
    if (next == kNeverAgain || !fits(object)) return false;
    if (!has_room_for(object) && !make_room(object, next)) return false;
    take_in(object, kind);
  }
  by_next_use_.insert({next, object});
  return is_hit;
}

// Evicts only if the objects that are used later than the new one free enough space.
bool BeladyCache::make_room(std::uint32_t object, std::uint32_t next) {
  auto first = by_next_use_.end();
  std::uint64_t freed = 0;
  while (used() - freed + size_of(object) > capacity_) {
    if (first == by_next_use_.begin()) return false;
    --first;
    if (first->first <= next) return false;
    freed += size_of(first->second);
  }
  for (auto victim = first; victim != by_next_use_.end(); ++victim) put_out(victim->second);
  by_next_use_.erase(first, by_next_use_.end());
  return true;
}

BeladySizeCache::BeladySizeCache(const Trace& trace, const SimulationOptions& options)
    : Cache(trace, options),
      next_uses_(next_uses(trace)),
      next_use_of_(trace.sizes.size(), kNeverAgain),
      place_of_(trace.sizes.size(), 0) {}

double BeladySizeCache::cost(std::uint32_t object, std::uint32_t next_use,
                             std::uint32_t now) const {
  // Larger than every other distance, so that objects that are never used again are evicted first.
  const double distance =
      next_use == kNeverAgain ? 1e18 : static_cast<double>(next_use) - static_cast<double>(now);
  return static_cast<double>(size_of(object)) * distance;
}

std::size_t BeladySizeCache::worst_of_sample(std::uint32_t now) {
  constexpr std::size_t kSample = 128;
  std::size_t worst = 0;
  double worst_cost = -1;
  for (std::size_t i = 0; i < std::min(kSample, cached_.size()); ++i) {
    const std::size_t place = cached_.size() <= kSample ? i : random_() % cached_.size();
    const double this_cost = cost(cached_[place], next_use_of_[cached_[place]], now);
    if (this_cost > worst_cost) {
      worst = place;
      worst_cost = this_cost;
    }
  }
  return worst;
}

void BeladySizeCache::drop(std::size_t place) {
  put_out(cached_[place]);
  cached_[place] = cached_.back();
  place_of_[cached_[place]] = static_cast<std::uint32_t>(place);
  cached_.pop_back();
}

bool BeladySizeCache::access(std::uint32_t record, Access kind) {
  const auto object = object_of(record);
  const auto next = next_uses_[record];
  if (contains(object)) {
    next_use_of_[object] = next;
    if (next == kNeverAgain) drop(place_of_[object]);
    return true;
  }
  if (next == kNeverAgain || !fits(object)) return false;
  const double own_cost = cost(object, next, record);
  while (!has_room_for(object)) {
    const auto place = worst_of_sample(record);
    if (cost(cached_[place], next_use_of_[cached_[place]], record) <= own_cost) return false;
    drop(place);
  }
  place_of_[object] = static_cast<std::uint32_t>(cached_.size());
  cached_.push_back(object);
  next_use_of_[object] = next;
  take_in(object, kind);
  return false;
}

}  // namespace sluice::tools::lab
