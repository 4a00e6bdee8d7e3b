// SPDX-License-Identifier: BSD-2-Clause
// A Pool is the ordered set of tiers behind one mount, locked against a second daemon, and the
// choice of where new files go. Threads: every member may be called from any thread at once; tiers
// are only ever added, behind those there are.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "tiering/tier.hpp"

namespace sluice {

class Pool {
 public:
  enum class Missing { Refuse, Tolerate };
  enum class NewTiers { Adopt, Refuse };

  // Opens and locks the tiers, making markers where a directory is new to the pool and that is
  // allowed. An error says what, where and what to do. `user` is told to whoever finds the pool
  // locked: "mounted at /mnt".
  static Result<std::unique_ptr<Pool>> open(const std::vector<TierSettings>& settings,
                                            Missing missing, NewTiers new_tiers,
                                            const std::string& user);

  const std::string& id() const { return id_; }
  std::size_t size() const { return size_.load(std::memory_order_acquire); }
  Tier& operator[](TierIndex index) const { return *tiers_[index]; }
  auto begin() const { return tiers_.begin(); }
  auto end() const { return tiers_.begin() + static_cast<std::ptrdiff_t>(size()); }
  // nullptr if no configured tier has this slot.
  Tier* by_slot(unsigned slot) const;
  // nullptr if no configured tier has this name.
  Tier* by_name(std::string_view name) const;

  // The tiers to try for a new file, best first: the fastest below its high watermark and above its
  // reserve, then those with room, then the rest. Empty if none is online.
  std::vector<TierIndex> placement() const;

  // The pool has a file of so many bytes. How much room a writer needs is judged by the largest.
  void note_file_size(std::uint64_t bytes);
  std::uint64_t largest_file() const { return largest_.load(std::memory_order_relaxed); }
  // Whether a file on the tier `at` that has `bytes` there, and may grow by `growth`, could meet
  // the end of its tier while another has room for it. Always so below the tier's reserve.
  bool may_outgrow(TierIndex at, std::uint64_t bytes, std::uint64_t growth) const;
  // The tiers to which a file of `bytes` may go that has outgrown the tier `from`, best first. It
  // may go on growing: tiers with room for several times as much come first, in the order of
  // placement(), then those with most room.
  std::vector<TierIndex> refuges(TierIndex from, std::uint64_t bytes) const;

  // Makes one more directory a tier of the pool, the slowest. An error says what, where and what
  // to do.
  Result<void> add(const TierSettings& settings);
  // Whether the pool may be mounted without this tier: it holds nothing any more, or is lost.
  Result<void> set_retired(TierIndex index, bool retired);
  // A tier that was given up as lost, is there all the same and not being emptied, may hold what
  // is nowhere else: the pool is not whole without it any more.
  void welcome_back();

  // Deletes what half-finished work left in .sluice/tmp of each tier. REQUIRES: intents have been
  // replayed.
  void clear_temporaries() const;

 private:
  Pool() = default;
  void append(std::unique_ptr<Tier> tier);
  Result<void> tell_all() const REQUIRES(roster_mutex_);

  std::string id_;
  std::string user_;
  Mutex roster_mutex_;
  std::map<std::string, Member> roster_ GUARDED_BY(roster_mutex_);  // all it ever had, by name
  std::array<std::unique_ptr<Tier>, kMaxSlot> tiers_;
  std::atomic<std::uint64_t> largest_{0};  // only ever grows
  std::atomic<std::size_t> size_{0};       // raised after the tier is in its place
};

}  // namespace sluice
