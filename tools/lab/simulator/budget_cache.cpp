// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/simulator/budget_cache.hpp"

#include <algorithm>

#include "tiering/choose/budget.hpp"

namespace sluice::tools::lab {

bool BudgetCache::access(std::uint32_t record, Access kind) {
  const auto object = object_of(record);
  // Records of one moment are accesses one after the other, which a clock would tell apart.
  constexpr double kMicrosecond = 1e-6;
  clock_ = std::max(time_of(record), clock_ + kMicrosecond);
  Use& use = uses_[object];
  if (contains(object)) {
    ++use.count;
    use.last = clock_;
    return true;
  }
  if (!fits(object)) return false;
  if (!has_room_for(object)) {
    const std::uint64_t needed = used() + size_of(object) - capacity_;
    make_room(std::max(needed, budget_step(capacity_)));
  }
  use = {1, clock_, clock_};
  places_[object] = static_cast<std::uint32_t>(cached_.size());
  cached_.push_back(object);
  take_in(object, kind);
  return false;
}

void BudgetCache::make_room(std::uint64_t bytes) {
  std::vector<Expendable> files;
  files.reserve(cached_.size());
  for (const auto object : cached_) {
    const Use& use = uses_[object];
    files.push_back({size_of(object), use.count, use.last, use.written});
  }
  std::vector<std::uint32_t> victims;
  for (const auto index : choose_victims(files, bytes, clock_)) victims.push_back(cached_[index]);
  for (const auto object : victims) {
    const auto place = places_[object];
    cached_[place] = cached_.back();
    places_[cached_[place]] = place;
    cached_.pop_back();
    put_out(object);
  }
}

}  // namespace sluice::tools::lab
