// SPDX-License-Identifier: BSD-2-Clause
// BudgetForecast says what budgets delete: what goes next ('sluice plan'), when a file goes
// ('sluice explain'), and what a budget would delete that is not set yet ('sluice budget'). It
// deletes nothing and changes no budget. Files are judged by DeletionRule, as for the deletion.
//
// What it says is true at that moment: files that are used, written or closed later change it.
//
// Threads: thread-safe. Calls may take long, because each file that would be deleted is examined.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "fs/core/budget/budget_trees.hpp"
#include "fs/core/deletion/deletion_rule.hpp"

namespace sluice {

class BudgetForecast {
 public:
  struct Parts {
    const Pool& pool;
    DirectoryTree& tree;
    Descriptors& descriptors;
    BudgetTrees& trees;
    DeletionRule& rule;
    const Clock& clock;
    std::function<void()> flush;  // stores the accesses of the last seconds
  };
  explicit BudgetForecast(Parts parts) : parts_(std::move(parts)) {}

  // The files that are deleted first if `bytes` more are written than there is room for, at most
  // `most`. Without those that may not be deleted now.
  struct Next {
    std::string path;  // below the directory: "/a/b"
    std::uint64_t bytes = 0;
    double uses = 0;
    double last_use = 0;
  };
  std::vector<Next> next(InodeId directory, std::uint64_t bytes, std::size_t most);

  // What each budget above a file means for it.
  struct Standing {
    std::string directory;
    Budget budget;
    std::uint64_t used = 0;
    std::uint64_t before = 0;  // bytes of the files that go first
    std::optional<Kept> kept;  // why the file may not be deleted
  };
  std::vector<Standing> standing(const InodePtr& file);

  // What would go if the user gave this budget to the directory.
  struct Sum {
    std::uint64_t files = 0, bytes = 0;
  };
  struct Going {
    std::string path;  // below the directory: "a/b"; "" if the user could not find it
    std::uint64_t bytes = 0;
    double last_use = 0;
    std::optional<Kept> why;  // what it waits for
  };
  struct Preview {
    Budget budget;  // a rule may give less than what was asked for
    std::uint64_t used = 0, files = 0;
    // The budget that the directory has, if it lets as many files be deleted.
    std::optional<std::uint64_t> in_force;
    Sum now;                   // these go at once
    Sum later;                 // these are needed, too, and go as soon as they may
    std::map<Kept, Sum> kept;  // the turn of these has come, but they stay
    std::uint64_t over = 0;    // bytes above the budget that stay when all those are gone
    std::vector<Going> first;  // at most kMostNamed
    bool is_complete = true;   // false: there was no time to look at all
  };
  static constexpr std::size_t kMostNamed = 10;
  // `asked.user` is who asks. EBUSY if a preview for the same user is running, unless that is root;
  // ETIMEDOUT if the directory has too many files to list; EAGAIN if the daemon ends.
  Result<Preview> preview(const InodePtr& directory, const Budget& asked);
  // Makes running previews end soon. Called before the daemon ends.
  void stop() { stops_ = true; }

 private:
  using Victim = BudgetTrees::Victim;
  class Turns;
  class Asking;
  Result<Preview> preview_now(const InodePtr& directory, const Budget& asked);
  void foresee(Turns& turns, uid_t asks, const std::function<bool()>& go_on, Preview& out);
  std::string path_for(const DeletionRule::Candidate& file, const Victim& victim,
                       const BudgetTrees::Place& place, uid_t asks);
  bool may_list(const InodePtr& parent, const InodePtr& top, uid_t user);

  const Parts parts_;
  std::atomic<bool> stops_{false};  // read while files are looked at; never becomes false again
  Mutex mutex_;
  std::set<uid_t> asking_ GUARDED_BY(mutex_);  // users with a preview under way
};

}  // namespace sluice
