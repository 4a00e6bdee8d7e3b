// SPDX-License-Identifier: BSD-2-Clause
// The paper's T1, T2, B1 and B2 are recent_, frequent_, recent_ghosts_ and frequent_ghosts_ here,
// its p is target_. Where it compares a number of pages with a bound, we compare bytes with and
// without the new object, which is the same for pages of size 1.
#include <algorithm>

#include "tools/lab/simulator/caches.hpp"

namespace sluice::tools::lab {

ArcCache::ArcCache(const Trace& trace, const SimulationOptions& options)
    : Cache(trace, options),
      links_(trace.sizes.size()),
      recent_(links_, trace),
      frequent_(links_, trace),
      recent_ghosts_(links_, trace),
      frequent_ghosts_(links_, trace),
      where_(trace.sizes.size(), Where::Nowhere) {}

bool ArcCache::access(std::uint32_t record, Access kind) {
  const auto object = object_of(record);
  const auto where = where_[object];
  if (where == Where::Recent || where == Where::Frequent) {
    (where == Where::Recent ? recent_ : frequent_).remove(object);
    insert(object, frequent_, Where::Frequent);
    return true;
  }
  if (!fits(object)) return false;
  if (where == Where::Nowhere) {
    bound_history(object);
    make_room(object, where);
    insert(object, recent_, Where::Recent);
  } else {
    learn(object, where);
    make_room(object, where);
    (where == Where::RecentGhost ? recent_ghosts_ : frequent_ghosts_).remove(object);
    insert(object, frequent_, Where::Frequent);
  }
  take_in(object, kind);
  return false;
}

// A request for a ghost shows which list was too short.
void ArcCache::learn(std::uint32_t object, Where where) {
  const auto recent = static_cast<double>(recent_ghosts_.bytes());
  const auto frequent = static_cast<double>(frequent_ghosts_.bytes());
  const auto step = [&](double mine, double other) {
    const double times = mine >= other || mine == 0 ? 1 : other / mine;
    return times * static_cast<double>(size_of(object));
  };
  if (where == Where::RecentGhost) {
    target_ = std::min(target_ + step(recent, frequent), static_cast<double>(capacity_));
  } else {
    target_ = std::max(target_ - step(frequent, recent), 0.0);
  }
}

// The recent list and its ghosts stay within the capacity, all four within twice that.
void ArcCache::bound_history(std::uint32_t object) {
  const auto size = size_of(object);
  const auto recent = [&] { return recent_.bytes() + recent_ghosts_.bytes(); };
  while (recent() + size > capacity_ && !recent_ghosts_.empty()) {
    where_[recent_ghosts_.remove_oldest()] = Where::Nowhere;
  }
  while (recent() + size > capacity_) {
    const auto victim = recent_.remove_oldest();
    where_[victim] = Where::Nowhere;
    put_out(victim);
  }
  while (recent() + frequent_.bytes() + frequent_ghosts_.bytes() + size > 2 * capacity_ &&
         !frequent_ghosts_.empty()) {
    where_[frequent_ghosts_.remove_oldest()] = Where::Nowhere;
  }
}

void ArcCache::make_room(std::uint32_t object, Where where) {
  while (!has_room_for(object)) replace(where);
}

void ArcCache::replace(Where incoming) {
  const auto recent = static_cast<double>(recent_.bytes());
  const bool from_recent =
      !recent_.empty() && (frequent_.empty() || recent > target_ ||
                           (incoming == Where::FrequentGhost && recent == target_));
  const auto victim = (from_recent ? recent_ : frequent_).remove_oldest();
  (from_recent ? recent_ghosts_ : frequent_ghosts_).add_newest(victim);
  where_[victim] = from_recent ? Where::RecentGhost : Where::FrequentGhost;
  put_out(victim);
}

void ArcCache::insert(std::uint32_t object, ObjectList& list, Where where) {
  list.add_newest(object);
  where_[object] = where;
}

}  // namespace sluice::tools::lab
