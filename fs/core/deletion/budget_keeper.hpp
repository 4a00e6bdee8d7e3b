// SPDX-License-Identifier: BSD-2-Clause
// BudgetKeeper keeps the trees of BudgetTrees within their budgets: it finds them, lists them,
// watches the files that are being written, and deletes files of least value.
//
// DeletionRule says which files must stay. Each deletion leaves a receipt, which is stored first.
//
// Threads: it owns three. "sluice-budget" deletes and never waits for a user. "sluice-list" reads
// directories. "sluice-tell" tells the kernel, which makes it wait for users who change the same
// directory.
#pragma once

#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "fs/core/budget/budgets.hpp"
#include "fs/core/deletion/budget_forecast.hpp"
#include "fs/core/deletion/deletion_rule.hpp"
#include "fs/core/inodes/kernel_side.hpp"
#include "fs/core/names/names.hpp"
#include "metadata/store.hpp"

namespace sluice {

class BudgetKeeper {
 public:
  struct Parts {
    Pool& pool;
    Store& store;
    InodeTable& table;
    DirectoryTree& tree;
    Descriptors& descriptors;
    KernelSide& kernel;
    Names& names;
    BudgetTrees& trees;
    Budgets& budgets;
    const Clock& clock;
    std::chrono::seconds rest;  // see BudgetTrees
    std::function<void(InodeId)> file_is_gone;
    std::function<void()> flush;  // stores the accesses of the last seconds
  };
  explicit BudgetKeeper(Parts parts)
      : parts_(std::move(parts)),
        rule_({parts_.pool, parts_.table, parts_.tree, parts_.descriptors, parts_.clock,
               parts_.rest}),
        forecast_({parts_.pool, parts_.tree, parts_.descriptors, parts_.trees, rule_, parts_.clock,
                   parts_.flush}) {}
  ~BudgetKeeper() { stop(); }
  BudgetKeeper(const BudgetKeeper&) = delete;
  BudgetKeeper& operator=(const BudgetKeeper&) = delete;

  // Starts the threads, which run until stop(). CHECKED: called at most once.
  void start();
  void stop();
  // What it will delete.
  BudgetForecast& forecast() { return forecast_; }

 private:
  using Place = BudgetTrees::Place;
  struct Removed {
    InodeId parent{}, file{};
    std::string name;
  };

  void keep(const std::stop_token& stop);
  // True if it has deleted something.
  bool trim(const std::stop_token& stop, BudgetTrees::Tree& tree);
  // EBUSY: the file must stay for now. ESTALE: it is not where it was. Otherwise it stays until the
  // tree is listed again.
  // `parents` are the directories of the names that were removed.
  Result<void> remove(const Place& place, const BudgetTrees::Victim& victim,
                      std::vector<InodePtr>& parents);
  Result<void> remove_named(const Place& place, const BudgetTrees::Victim& victim,
                            std::vector<InodePtr>& parents);
  Receipt receipt_for(const Place& place, const BudgetTrees::Victim& victim, TierIndex tier) const;

  void list(const std::stop_token& stop);
  void list_trees(const std::stop_token& stop);
  bool search(const GoOn& go_on);
  // The budget that the directory has now, by its xattr or by a rule.
  std::optional<Budget> budget_now(const InodePtr& directory);
  // Makes the directory with this path a tree if it has a budget; nullptr if not.
  InodePtr put(const std::string& path);
  void look_at(const InodePtr& directory);
  void give_back(const std::vector<InodeId>& references);

  void tell(const std::stop_token& stop);

  const Parts parts_;
  DeletionRule rule_;
  BudgetForecast forecast_;
  unsigned searched_ = 0;  // BudgetTrees::searches_wanted() at the last search
  Mutex mutex_;
  StopCondVar wake_;
  std::deque<Removed> removed_ GUARDED_BY(mutex_);  // the kernel must be told
  std::jthread keeper_, lister_, teller_;
};

}  // namespace sluice
