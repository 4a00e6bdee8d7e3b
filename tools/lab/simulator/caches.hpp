// SPDX-License-Identifier: BSD-2-Clause
// Contenders that are caches: they fetch an object at once on a miss, and evict others to make
// room. The cache is the whole fastest tier. An object that is larger than the tier is never
// cached. Threads: caller locks.
#pragma once

#include <cstdint>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tools/lab/simulator/contender.hpp"
#include "tools/lab/simulator/object_list.hpp"

namespace sluice::tools::lab {

// Base of all caches: how full the cache is, and which objects are in it.
//
// An object is on one tier at a time, as in a mount: what leaves the cache is written to the next
// tier (demotion). The tiers between the cache and the slowest one pass on first the objects that
// they got first.
class Cache : public Contender {
 public:
  TierIndex locate(std::uint32_t record) final;

 protected:
  Cache(const Trace& trace, const SimulationOptions& options);

  bool contains(std::uint32_t object) const { return tier_of_[object] == 0; }
  bool fits(std::uint32_t object) const { return size_of(object) <= capacity_; }
  std::uint64_t used() const { return used_; }
  bool has_room_for(std::uint32_t object) const { return used_ + size_of(object) <= capacity_; }
  void take_in(std::uint32_t object, Access kind);
  void put_out(std::uint32_t object);

  const std::uint64_t capacity_;

 private:
  void demote(std::uint32_t object, std::size_t from);

  std::uint64_t used_ = 0;
  double now_ = 0;
  std::vector<TierIndex> tier_of_;
  ObjectList::Links links_;
  std::vector<ObjectList> between_;  // by tier - 1
};

// Evicts the least recently used object.
class LruCache final : public Cache {
 public:
  LruCache(const Trace& trace, const SimulationOptions& options);
  bool access(std::uint32_t record, Access kind) override;

 private:
  ObjectList::Links links_;
  ObjectList list_;
};

// Evicts the object with the fewest uses since it was cached; among equals, the least recently
// used.
class LfuCache final : public Cache {
 public:
  LfuCache(const Trace& trace, const SimulationOptions& options);
  bool access(std::uint32_t record, Access kind) override;

 private:
  struct Use {
    std::uint32_t count = 0, last = 0;
  };
  std::vector<Use> uses_;
  std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>> order_;  // count, last, object
};

// Greedy-Dual-Size-Frequency (Cherkasova 1998): the worth of an object is its uses per byte since
// it was cached, plus the worth of the last victim at its last use. Evicts the object of least
// worth.
class GdsfCache final : public Cache {
 public:
  GdsfCache(const Trace& trace, const SimulationOptions& options);
  bool access(std::uint32_t record, Access kind) override;

 private:
  struct Standing {
    double worth = 0;
    std::uint32_t count = 0;
  };
  std::vector<Standing> standings_;
  std::set<std::pair<double, std::uint32_t>> order_;  // worth, object
  double age_ = 0;
};

// Megiddo and Modha, FAST 2003: two lists, of recent and of frequent objects. Requests for ghosts
// of evicted objects shift the balance between them. Lengths are in bytes; for equal sizes this is
// the original.
class ArcCache final : public Cache {
 public:
  ArcCache(const Trace& trace, const SimulationOptions& options);
  bool access(std::uint32_t record, Access kind) override;

 private:
  enum class Where : std::uint8_t { Nowhere, Recent, Frequent, RecentGhost, FrequentGhost };

  void learn(std::uint32_t object, Where where);
  void make_room(std::uint32_t object, Where where);
  void replace(Where incoming);
  void bound_history(std::uint32_t object);
  void insert(std::uint32_t object, ObjectList& list, Where where);

  ObjectList::Links links_;
  ObjectList recent_, frequent_, recent_ghosts_, frequent_ghosts_;
  std::vector<Where> where_;
  double target_ = 0;  // bytes that `recent_` should have
};

// Yang et al., SOSP 2023: a small queue for new objects, a main queue, and ghosts of the objects
// that were evicted from the small queue.
class S3FifoCache final : public Cache {
 public:
  S3FifoCache(const Trace& trace, const SimulationOptions& options);
  bool access(std::uint32_t record, Access kind) override;

 private:
  enum class Where : std::uint8_t { Nowhere, Small, Main, Ghost };

  void evict();
  void evict_small();
  void evict_main();
  void remember(std::uint32_t object);

  const std::uint64_t small_capacity_, main_capacity_;
  ObjectList::Links links_;
  ObjectList small_, main_, ghosts_;
  std::vector<Where> where_;
  std::vector<std::uint8_t> uses_;  // since it was cached or last kept, at most 3
};

// Belady's MIN: evicts the object whose next use is furthest away, and does not cache an object
// that would be evicted at once.
class BeladyCache final : public Cache {
 public:
  BeladyCache(const Trace& trace, const SimulationOptions& options);
  bool access(std::uint32_t record, Access kind) override;

 private:
  bool make_room(std::uint32_t object, std::uint32_t next);

  const std::vector<std::uint32_t> next_uses_;
  std::set<std::pair<std::uint32_t, std::uint32_t>>
      by_next_use_;  // of cached objects: next use, object
};

// The same for unequal sizes: evicts the object of a random sample with the largest product of size
// and distance to the next use. (The order of these products changes with every record, so they
// cannot be kept in a queue.)
class BeladySizeCache final : public Cache {
 public:
  BeladySizeCache(const Trace& trace, const SimulationOptions& options);
  bool access(std::uint32_t record, Access kind) override;

 private:
  double cost(std::uint32_t object, std::uint32_t next_use, std::uint32_t now) const;
  std::size_t worst_of_sample(std::uint32_t now);
  void drop(std::size_t place);

  const std::vector<std::uint32_t> next_uses_;
  std::vector<std::uint32_t> next_use_of_;  // by object, if cached
  std::vector<std::uint32_t> cached_;       // in any order, for sampling
  std::vector<std::uint32_t> place_of_;     // in cached_
  std::minstd_rand random_;                 // from a fixed seed: a run can be repeated
};

}  // namespace sluice::tools::lab
