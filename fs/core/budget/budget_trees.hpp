// SPDX-License-Identifier: BSD-2-Clause
// BudgetTrees owns what is known of the directories that have a budget: which they are, the files
// below each of them, and how many bytes they take. A tree is listed once from the tiers; from then
// on Budgets keeps the sums current, and a listing from time to time corrects what was changed
// directly on the tiers. BudgetKeeper lists the trees and deletes files, BudgetForecast says which
// will go.
//
// A file counts once in each tree that has a name of it.
//
// Threads: thread-safe. Only one tree is locked at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "fs/core/budget/budget_files.hpp"
#include "fs/core/inodes/inode_table.hpp"
#include "fs/core/inodes/lock_order.hpp"
#include "fs/core/tree/descriptors.hpp"
#include "fs/core/tree/directory_tree.hpp"
#include "metadata/store.hpp"
#include "tiering/choose/budget.hpp"
#include "tiering/move/tree_list.hpp"

namespace sluice {

class BudgetTrees {
 public:
  struct Parts {
    const Store& store;
    InodeTable& table;
    DirectoryTree& tree;
    Descriptors& descriptors;
    const Clock& clock;
    std::chrono::seconds rest;  // how long a file is kept after it was written
  };
  BudgetTrees(const Parts& parts, std::vector<BudgetRule> rules)
      : parts_(parts), rules_(std::make_shared<const Rules>(std::move(rules))) {}

  struct Tree;
  using TreePtr = std::shared_ptr<Tree>;

  // Which directories have a budget.
  //
  using Rules = std::vector<BudgetRule>;
  std::shared_ptr<const Rules> rules();
  // The trees of the new rules are searched soon; those that no rule names any more are dropped.
  void change_rules(Rules rules);
  // Counts a budget that the user is about to set. EDQUOT if the user has too many; root has no
  // limit. changed() must follow.
  static constexpr std::size_t kMostOfUser = 32;
  Result<void> count_budget(const InodePtr& directory, uid_t user);
  std::size_t most_of_user();  // how many the user with the most has, without root
  // The budget of the directory was set or removed, or pins below it have changed.
  void changed(const InodePtr& directory);
  void directory_made(const InodePtr& parent, const std::string& name);
  void directory_removed(const InodePtr& directory);
  void paths_changed();
  // A tier came online or went offline, and its directories and files with it.
  void search_again();
  // The budget of the directory, or of the nearest one above it that has one.
  std::optional<Budget> nearest(const InodePtr& directory);

  // For Budgets: the trees that an operation concerns.
  //
  // False while no directory can have a budget, so that requests need not look for one.
  bool is_active() const { return is_active_.load(std::memory_order_relaxed); }
  // A directory and those above it, without the root.
  struct Way {
    std::vector<InodeId> ids;
    std::vector<std::string> names;
  };
  // A tree on the way. The directory where the way began has the names before `depth` below it.
  struct Above {
    TreePtr tree;
    InodeId id{};
    std::size_t depth = 0;
    BudgetFiles::Below below(const Way& way) const { return std::span(way.names).first(depth); }
  };
  static constexpr std::size_t kNotAbove = SIZE_MAX;  // Above::depth
  Way climb(const InodePtr& directory);
  Way climb_from_file(const InodePtr& file);
  // The trees on the way, innermost first.
  std::vector<Above> above(const Way& way);
  // The same, and all other trees if the file may have names elsewhere.
  std::vector<Above> trees_of(const Way& way, bool has_links);
  void note_unknown(const Way& way);

  // For reports.
  struct Report {
    InodeId directory{};
    std::string path;
    Budget budget;
    std::uint64_t used = 0, files = 0;
    bool is_known = false;  // the tree was listed; until then nothing is deleted
    std::uint64_t deleted = 0, deleted_bytes = 0;  // since the mount
    std::uint64_t let_in = 0;  // files that were written before there was room for them
    bool is_stuck = false;     // it is full, and nothing in it may be deleted now
  };
  std::vector<Report> reports();
  // A file to be deleted next.
  struct Victim {
    InodeId id{};
    std::vector<std::string> names;  // every one that the tree knows, below its directory
    std::uint64_t bytes = 0;
    double uses = 0, last_use = 0;
    std::int64_t written = 0;  // seconds since the epoch
  };

  // For BudgetForecast.
  TreePtr tree_of(InodeId directory);  // nullptr if it has none
  std::vector<TreePtr> trees_with(const InodePtr& file);
  // The tree of a directory that nobody keeps within a budget. It does not follow what users do.
  TreePtr draft(const InodePtr& directory, const TreeList& list);
  struct Contents {
    bool is_known = false;  // false: the rest is missing
    std::uint64_t used = 0;
    std::vector<InodeId> ids;
    std::vector<Expendable> files;  // as many
  };
  Contents contents(Tree& tree);
  // Without names if the file has left the tree.
  Victim victim(Tree& tree, InodeId file);
  // The reason not to delete the file has ended; see spare().
  void unspare(Tree& tree, InodeId file);

  // For BudgetKeeper.
  void begin() { is_active_ = true; }
  std::vector<TreePtr> all();
  struct Place {
    InodePtr directory;
    std::string path;  // "" if it is not known
    Budget budget;
  };
  Place place(Tree& tree);
  void put_tree(const InodePtr& directory, std::vector<InodeId> references, const Budget& budget);
  bool has_tree(InodeId directory);
  // Returns the references of the tree, to give back.
  std::vector<InodeId> drop_tree(InodeId directory);
  unsigned searches_wanted() const { return searches_wanted_.load(); }
  void searched();                         // every tree is known
  std::vector<InodePtr> found_by_users();  // directories that may have a budget, not known so far
  // Whether the tree must be listed now; if so, changes are noted until install() or fail().
  bool begin_listing(Tree& tree);
  void install(Tree& tree, const TreeList& list);
  void fail_listing(Tree& tree);
  // What must go now, first to go first. Empty if there is nothing to do.
  std::vector<Victim> choose(Tree& tree);
  // `parents`: the directories in which the victim had its names.
  void deleted(Tree& tree, const Victim& victim, const std::vector<InodePtr>& parents);
  enum class Spare { ForNow, Always };  // Always: until the tree is listed again
  void spare(Tree& tree, InodeId file, Spare how_long);
  // The victim was not where the tree says. Unless a user moved it just now, nothing more is
  // deleted until the tree was listed again: returns true.
  bool suspect(Tree& tree, const Victim& victim);
  // Blocks until the keeper may have work, at most for `time`.
  void wait_for_work(const std::stop_token& stop, std::chrono::milliseconds time);
  void wake();  // ends wait_for_work()

 private:
  void set_owner(InodeId directory, std::optional<uid_t> user) REQUIRES(mutex_);
  std::vector<InodePtr> unseen();  // directories that got a budget just now
  struct Facts {
    std::unordered_map<InodeId, BudgetFiles::File> files;
    std::vector<InodeId> growing;
  };
  Facts facts_of(const TreeList& list);
  // CHECKED: the tree is locked.
  std::vector<Expendable> candidates(Tree& tree, std::vector<InodeId>& ids) const;
  static Victim victim_locked(Tree& tree, InodeId file);
  void update_active() REQUIRES(mutex_);

  const Parts parts_;
  std::atomic<bool> is_active_{false};
  std::atomic<bool> is_searched_{false};  // all trees are known: the pool was searched once
  std::atomic<unsigned> searches_wanted_{1};
  Mutex mutex_ ACQUIRED_AFTER(lock_order::budgets);
  std::shared_ptr<const Rules> rules_ GUARDED_BY(mutex_);  // never null; replaced as a whole
  StopCondVar work_;
  bool has_work_ GUARDED_BY(mutex_) = false;
  std::map<InodeId, TreePtr> trees_ GUARDED_BY(mutex_);
  std::map<InodeId, InodePtr> found_ GUARDED_BY(mutex_);  // see found_by_users()
  // Who set the budgets of which directories, and how many each user has set.
  std::map<InodeId, uid_t> owners_ GUARDED_BY(mutex_);
  std::map<uid_t, std::size_t> of_user_ GUARDED_BY(mutex_);
};

}  // namespace sluice
