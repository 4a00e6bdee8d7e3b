// SPDX-License-Identifier: BSD-2-Clause
// A tree with a budget, as Budgets sees it; included only by the sources of Budgets. Each has a
// lock of its own, because choosing what to delete takes long in a large tree, and others must not
// wait for that.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "fs/core/budget/budget_trees.hpp"
#include "fs/core/inodes/lock_order.hpp"

namespace sluice {

struct BudgetTrees::Tree {
  using Time = std::chrono::steady_clock::time_point;

  Mutex mutex ACQUIRED_AFTER(lock_order::budget) ACQUIRED_BEFORE(lock_order::budgets);
  InodePtr directory GUARDED_BY(mutex);
  // These keep the directory, and those above it, in memory.
  std::vector<InodeId> references GUARDED_BY(mutex);
  Budget budget GUARDED_BY(mutex);
  BudgetFiles files GUARDED_BY(mutex);
  // Files that are open for writing, and when each last grew.
  std::map<InodeId, Time> growing GUARDED_BY(mutex);
  // New files that found no room, and since when they wait for it.
  std::map<InodeId, Time> owing GUARDED_BY(mutex);
  // Bytes of the largest file that was written recently.
  std::uint64_t largest GUARDED_BY(mutex) = 0;
  unsigned admitted GUARDED_BY(mutex) = 0;  // new files that are not in `growing` yet

  bool is_known GUARDED_BY(mutex) = false;  // it was listed
  bool must_list GUARDED_BY(mutex) = true;  // something is missing in `files`
  // `used` may be too high: nothing is deleted until it was listed again.
  bool is_suspect GUARDED_BY(mutex) = false;
  // While it is listed: what users changed.
  bool is_listing GUARDED_BY(mutex) = false;
  std::unordered_set<InodeId> touched GUARDED_BY(mutex);
  struct DirectoryChange {
    std::vector<std::string> from, to;  // as in BudgetFiles::Below; `to` is empty if it has left
  };
  std::vector<DirectoryChange> directory_changes GUARDED_BY(mutex);
  std::size_t noted_bytes GUARDED_BY(mutex) = 0;     // of directory_changes
  bool is_listed_in_vain GUARDED_BY(mutex) = false;  // more was changed than is noted
  Time listing_began GUARDED_BY(mutex){}, soonest_listing GUARDED_BY(mutex){},
      next_listing GUARDED_BY(mutex){}, next_choice GUARDED_BY(mutex){};

  bool is_stuck GUARDED_BY(mutex) = false;  // nothing could be deleted when it was last tried
  std::uint64_t deleted GUARDED_BY(mutex) = 0, deleted_bytes GUARDED_BY(mutex) = 0;
  std::uint64_t let_in GUARDED_BY(mutex) = 0;

  std::uint64_t expected_size() const REQUIRES(mutex);
  std::uint64_t expected_growth() const REQUIRES(mutex);
  bool has_room() const REQUIRES(mutex);
  bool is_full() const REQUIRES(mutex) { return is_stuck && files.used() >= budget.bytes; }
  std::size_t wanting() const REQUIRES(mutex);  // how many of `owing` still want room
  void put_growing(InodeId id) REQUIRES(mutex);
  void erase(InodeId id) REQUIRES(mutex);
  // A file that the tree no longer has does not grow.
  void erase_gone() REQUIRES(mutex);
  // Notes for install() what a user changes while the tree is listed.
  void note(InodeId id) REQUIRES(mutex);
  void note(DirectoryChange change) REQUIRES(mutex);
  void begin_notes() REQUIRES(mutex);
};

inline void apply(BudgetFiles& files, BudgetFiles::Below from, BudgetFiles::Below to) {
  to.empty() ? files.directory_left(from) : files.directory_renamed(from, to);
}

// Bytes on the disk; for a file without a name, they no longer count.
struct BudgetSize {
  std::uint64_t bytes = 0;
  bool has_name = true;
  bool has_links = false;  // it has more than one name
};
BudgetSize size_of(Descriptors& descriptors, const InodePtr& file);

bool has_writers(Inode& file);

}  // namespace sluice
