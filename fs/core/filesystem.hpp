// SPDX-License-Identifier: BSD-2-Clause
// Filesystem owns the parts of the core and connects them. fs/fuse (requests of the kernel), fs/gpu
// (ioctls and rings) and fs/control call the parts through it. It does not depend on FUSE.
//
// Each part is constructed from the parts that it needs; the order of the members is the order of
// construction. The header of each part says what it owns and which threads may call it.
//
// Threads: thread-safe, except that only one thread may call tick().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "fs/core/budget/budgets.hpp"
#include "fs/core/deletion/budget_keeper.hpp"
#include "fs/core/files/access_tracker.hpp"
#include "fs/core/files/files.hpp"
#include "fs/core/files/gpu_files.hpp"
#include "fs/core/files/move_requests.hpp"
#include "fs/core/files/xattrs.hpp"
#include "fs/core/inodes/engine_link.hpp"
#include "fs/core/inodes/inode_table.hpp"
#include "fs/core/inodes/kernel_side.hpp"
#include "fs/core/inodes/lock_order.hpp"
#include "fs/core/inodes/names_lock.hpp"
#include "fs/core/inodes/shown_times.hpp"
#include "fs/core/move/relocator.hpp"
#include "fs/core/names/attributes.hpp"
#include "fs/core/names/names.hpp"
#include "fs/core/tree/away_tiers.hpp"
#include "fs/core/tree/descriptors.hpp"
#include "fs/core/tree/directory_tree.hpp"
#include "fs/core/tree/page_watch.hpp"
#include "fs/core/tree/pins.hpp"
#include "gpu/engine.hpp"
#include "metadata/store.hpp"
#include "tiering/heat/file_lists.hpp"
#include "tiering/move/migration.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

class Filesystem {
 public:
  struct Settings {
    std::uint64_t small_file = 128 << 10;  // see Files
    AccessTracker::Settings accesses = {};
    std::optional<Migration::Settings> migration = {};  // nothing: files are never moved
    std::vector<BudgetRule> budgets = {};
    std::chrono::seconds budget_rest = std::chrono::minutes(1);  // see BudgetTrees
    Handover* handover = nullptr;  // where a successor finds what it needs; nullptr: nowhere
    FileLists* lists = nullptr;    // where the names on each disk are kept; nullptr: nowhere
    std::string hbm_list = {};     // the file with the pins to GPU memory, see HbmPins
  };

  // The settings that can change while it is used.
  struct Tuning {
    Migration::Tuning migration;
    std::vector<BudgetRule> budgets;
    Migration::Limits limits;  // whether those of tiers were changed
  };

  // `engine` may be nullptr: then GPU requests fail with EOPNOTSUPP.
  Filesystem(Pool& pool, Store& store, KernelSide& kernel, Settings settings,
             Engine* engine = nullptr, const Clock& clock = real_clock());
  ~Filesystem();
  Filesystem(const Filesystem&) = delete;
  Filesystem& operator=(const Filesystem&) = delete;

  Names& names() { return names_; }
  Files& files() { return files_; }
  Attributes& attributes() { return attributes_; }
  Xattrs& xattrs() { return xattrs_; }
  GpuFiles& gpu() { return gpu_; }
  MoveRequests& moves() { return moves_; }
  AccessTracker& accesses() { return accesses_; }
  Relocator& relocator() { return relocator_; }
  Budgets& budgets() { return budgets_; }
  BudgetForecast& budget_forecast() { return budget_keeper_.forecast(); }
  // nullptr if files are never moved.
  Migration* migration() { return migration_.get(); }

  // Restores the inodes that a predecessor left. False if names that the kernel has cached may mean
  // other files now. REQUIRES: no other member was called.
  bool inherit();
  void change(Tuning tuning);
  // Begins to keep directories within their budgets. Called once, after inherit().
  void keep_budgets() { budget_keeper_.start(); }
  // Called every second. Detects tiers that went offline or came back, finishes interrupted moves,
  // and writes access counts to the store.
  void tick();
  // Writes access counts and shown times to the store.
  Result<void> flush();
  // Ends all moves and writes unsaved data to the store. No other member may be called afterwards.
  Result<void> close();
  // Must be called after names have changed that the kernel may remember.
  void names_changed() { drop_names_and_listings({}); }
  // Adds a tier to the pool, see Pool::add(), or puts a new disk in the place of a dead one, see
  // Pool::replace(). The tier is online when this returns, unless an error says why not.
  Result<void> add_tier(const TierSettings& settings);
  Result<void> replace_tier(const TierSettings& settings);
  std::size_t known_inodes() const { return table_.size(); }

 private:
  void check_tiers();
  void tier_added(TierIndex tier);
  Result<void> bring_online(Tier& tier) REQUIRES(presence_);
  void tier_went_offline(Tier& tier);
  void tier_returned(Tier& tier);
  void drop_names_and_listings(const std::vector<InodeId>& directories);
  void file_is_free(InodeId id);
  void file_is_gone(InodeId id);
  AccessTracker::Settings with_budgets(AccessTracker::Settings settings);
  Migration::Settings with_census(Migration::Settings settings);

  Pool& pool_;
  KernelSide& kernel_;
  FileLists* const lists_;
  InodeTable table_;
  NamesLock names_lock_;
  ShownTimes times_;
  DirectoryTree tree_;
  AwayTiers away_;
  EngineLink engine_;
  Descriptors descriptors_;
  PageWatch pages_;
  Budgets budgets_;
  AccessTracker accesses_;
  Relocator relocator_;
  Pins pins_;
  Attributes attributes_;
  Names names_;
  Files files_;
  std::unique_ptr<Migration> migration_;  // destroyed before the parts that its threads use
  MoveRequests moves_;
  GpuFiles gpu_;
  BudgetKeeper budget_keeper_;
  Xattrs xattrs_;
  // Held while a tier goes offline or online, or another disk takes its place.
  Mutex presence_ ACQUIRED_AFTER(lock_order::presence) ACQUIRED_BEFORE(lock_order::listing);
  unsigned ticks_ = 0;
};

}  // namespace sluice
