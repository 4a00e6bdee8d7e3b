// SPDX-License-Identifier: BSD-2-Clause
// Pool is the ordered set of tiers of one mount. It locks them against a second daemon and chooses
// where new files go. Threads: thread-safe. Tiers are only added, as the slowest, and never
// removed. A new disk may take the place of a dead one; the Tier of the dead one lives on, offline,
// because threads may still refer to it.
#pragma once

#include <array>
#include <atomic>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "tiering/pool/tier.hpp"

namespace sluice {

class Twins;

class Pool {
 public:
  ~Pool();

  enum class Missing { Refuse, Tolerate };
  enum class NewTiers { Adopt, Refuse };

  // Opens and locks the tiers. Makes markers in directories that are new to the pool, if allowed.
  // An error says what, where and what to do. `user` describes the caller to other processes that
  // find the pool locked: "mounted at /mnt".
  static Result<std::unique_ptr<Pool>> open(const std::vector<TierSettings>& settings,
                                            Missing missing, NewTiers new_tiers,
                                            const std::string& user);

  const std::string& id() const { return id_; }
  std::size_t size() const { return size_.load(std::memory_order_acquire); }
  Tier& operator[](TierIndex index) const { return *tiers_[index].load(std::memory_order_acquire); }
  // Iterates over Tier*.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Tier*;
    using difference_type = std::ptrdiff_t;
    using pointer = Tier* const*;
    using reference = Tier*;
    explicit Iterator(const std::atomic<Tier*>* at = nullptr) : at_(at) {}
    Tier* operator*() const { return at_->load(std::memory_order_acquire); }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    Iterator operator++(int) { return Iterator(at_++); }
    bool operator==(const Iterator&) const = default;

   private:
    const std::atomic<Tier*>* at_;
  };
  Iterator begin() const { return Iterator(tiers_.data()); }
  Iterator end() const { return Iterator(tiers_.data() + size()); }
  // nullptr if no configured tier has this slot.
  Tier* by_slot(unsigned slot) const;
  // nullptr if no configured tier has this name.
  Tier* by_name(std::string_view name) const;

  // The copies that files left behind; nothing keeps any before Twins::start().
  Twins& twins() const { return *twins_; }

  // The tiers to try for a new file, best first: by their Intake, and the fastest first. Empty if
  // none takes files.
  std::vector<TierIndex> placement() const;

  // Records the size of a file of the pool. The largest one tells how much room a writer may need.
  void note_file_size(std::uint64_t bytes);
  std::uint64_t largest_file() const { return largest_.load(std::memory_order_relaxed); }
  // Whether a file with `bytes` on the tier `at` could fill that tier by growing by `growth`, while
  // another tier has room for it. Always true below the tier's reserve.
  bool may_outgrow(TierIndex at, std::uint64_t bytes, std::uint64_t growth) const;
  // The tiers that can take a file of `bytes` that has outgrown the tier `from`, best first.
  // Because the file may keep growing, tiers with room for several times its size come first, in
  // the order of placement(), then those with the most room.
  std::vector<TierIndex> refuges(TierIndex from, std::uint64_t bytes) const;

  // Adds a directory to the pool as the slowest tier. An error says what, where and what to do. A
  // disk that was part of this pool before is offline until check_presence() finds it, because
  // changes may have to be applied to it first.
  Result<void> add(const TierSettings& settings);
  // Puts another directory under the name of a tier whose disk is gone, at the same place in the
  // order; or adds it as the slowest, if that tier is not configured. Three steps, because only the
  // second is quick: the others use disks. REQUIRES: one thread at a time does all three, and no
  // other one calls add() or check_presence() meanwhile.
  struct Replacement {
    Member before;  // the disk that had the name
    bool is_same_disk = false;
    std::unique_ptr<Tier> tier;
  };
  Result<Replacement> prepare_replacement(const TierSettings& settings);
  // The new tier is offline until check_presence() finds it. Returns the slot of the disk that is
  // gone for good, which no tier has any more; nothing if the same disk is merely found elsewhere.
  std::optional<unsigned> replace(Replacement replacement);
  void announce() const;  // tells the tiers that are online
  // Every disk that the pool ever had; see Member::is_replaced().
  std::vector<Member> members() const;
  // Whether another disk took the place of the one with this slot.
  bool is_lost(unsigned slot) const;
  // Whether the pool may be mounted without this tier: it is empty, or lost.
  Result<void> set_retired(TierIndex index, bool retired);
  bool is_retired(TierIndex index) const;
  // Makes a tier required again that was given up as lost, if it is present and not being drained:
  // it may have files that are nowhere else.
  void take_back_tiers();

  // Deletes what interrupted operations left in .sluice/tmp of each tier. REQUIRES: intents were
  // replayed.
  // By the slot of its tier. Those that are `needed` stay.
  using TemporaryNames = std::set<std::pair<unsigned, std::string>>;
  void clear_temporaries(const TemporaryNames& needed = {}) const;

 private:
  Pool();
  void place(std::unique_ptr<Tier> tier) REQUIRES(roster_mutex_);
  Result<void> readmit(const TierSettings& settings, int root, const Marker& marker)
      REQUIRES(roster_mutex_);
  void tell_all_of_news() const REQUIRES(roster_mutex_);
  Result<void> tell_all() const REQUIRES(roster_mutex_);

  std::string id_;
  std::string user_;
  mutable Mutex roster_mutex_;
  std::map<std::string, Member> roster_ GUARDED_BY(roster_mutex_);  // all it ever had, by name
  // Those in `tiers_`, and those that were replaced.
  std::vector<std::unique_ptr<Tier>> owned_ GUARDED_BY(roster_mutex_);
  std::array<std::atomic<Tier*>, kMaxSlot> tiers_{};
  std::atomic<std::uint64_t> largest_{0};  // only ever grows
  std::atomic<std::size_t> size_{0};       // raised after the tier is in its place
  std::unique_ptr<Twins> twins_;           // its thread uses the tiers
};

}  // namespace sluice
