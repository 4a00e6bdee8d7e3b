// SPDX-License-Identifier: BSD-2-Clause
// Contenders that are caches: they fetch on a miss, at once, and evict to make room. The fastest
// tier is the cache, and filled to the last byte. An object larger than it is never taken in.
// Threads: caller locks.
#pragma once

#include <cstdint>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tools/lab/simulator/contender.hpp"
#include "tools/lab/simulator/object_list.hpp"

namespace sluice {

// What all caches share: how full they are, and which objects they hold.
class Cache : public Contender {
 protected:
  Cache(const Trace& trace, std::uint64_t capacity)
      : Contender(trace), capacity_(capacity), is_held_(trace.sizes.size(), 0) {}

  bool holds(std::uint32_t object) const { return is_held_[object] != 0; }
  bool can_hold(std::uint32_t object) const { return size_of(object) <= capacity_; }
  std::uint64_t used() const { return used_; }
  bool has_room_for(std::uint32_t object) const { return used_ + size_of(object) <= capacity_; }
  void take_in(std::uint32_t object, Access kind) {
    is_held_[object] = 1;
    used_ += size_of(object);
    count_in(object, kind);
  }
  void put_out(std::uint32_t object) {
    is_held_[object] = 0;
    used_ -= size_of(object);
    count_out(object);
  }

  const std::uint64_t capacity_;

 private:
  std::uint64_t used_ = 0;
  std::vector<std::uint8_t> is_held_;
};

// Evicts what was used least recently.
class LruCache final : public Cache {
 public:
  LruCache(const Trace& trace, std::uint64_t capacity);
  bool access(std::uint32_t record, Access kind) override;

 private:
  ObjectList::Links links_;
  ObjectList list_;
};

// Evicts what was used least often since it came in; among equals, least recently.
class LfuCache final : public Cache {
 public:
  LfuCache(const Trace& trace, std::uint64_t capacity);
  bool access(std::uint32_t record, Access kind) override;

 private:
  struct Use {
    std::uint32_t count = 0, last = 0;
  };
  std::vector<Use> uses_;
  std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>> order_;  // count, last, object
};

// Greedy-Dual-Size-Frequency (Cherkasova 1998): evicts the least uses per byte, counted since it
// came in, plus what the last victim had: what isn't used ages by standing still.
class GdsfCache final : public Cache {
 public:
  GdsfCache(const Trace& trace, std::uint64_t capacity);
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

// Megiddo and Modha, FAST 2003: recent and frequent objects in two lists whose balance follows what
// the ghosts of evicted ones say. Lengths are in bytes here; with equal sizes it is the original.
class ArcCache final : public Cache {
 public:
  ArcCache(const Trace& trace, std::uint64_t capacity);
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

// Yang et al., SOSP 2023: a small queue on probation, a main queue, and ghosts of those that did
// not pass it.
class S3FifoCache final : public Cache {
 public:
  S3FifoCache(const Trace& trace, std::uint64_t capacity);
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
  std::vector<std::uint8_t> uses_;  // since it came in or was last spared, 3 at most
};

// Belady's MIN: evicts what is used again last, and takes nothing in that would be the victim.
class BeladyCache final : public Cache {
 public:
  BeladyCache(const Trace& trace, std::uint64_t capacity);
  bool access(std::uint32_t record, Access kind) override;

 private:
  bool make_room(std::uint32_t object, std::uint32_t next);

  const std::vector<std::uint32_t> next_uses_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> by_next_use_;  // of what is held: use, object
};

// The same for unequal sizes: evicts where size times distance to the next use is greatest, of a
// random sample (the order of these products changes all the time, so no queue can hold it).
class BeladySizeCache final : public Cache {
 public:
  BeladySizeCache(const Trace& trace, std::uint64_t capacity);
  bool access(std::uint32_t record, Access kind) override;

 private:
  double cost(std::uint32_t object, std::uint32_t next_use, std::uint32_t now) const;
  std::size_t worst_of_sample(std::uint32_t now);
  void drop(std::size_t place);

  const std::vector<std::uint32_t> next_uses_;
  std::vector<std::uint32_t> next_use_of_;  // by object, if held
  std::vector<std::uint32_t> held_;         // in any order, for sampling
  std::vector<std::uint32_t> place_of_;     // in held_
  std::minstd_rand random_;                 // from a fixed seed: a run can be repeated
};

}  // namespace sluice
