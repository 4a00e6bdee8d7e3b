// SPDX-License-Identifier: BSD-2-Clause
// Budgets is the part of budgets that users' operations call: they ask it for room, and tell it
// what they add to the trees and remove from them. It owns the trees (BudgetTrees).
//
// Nobody waits here for room in a tree that is full: the kernel locks directories during create,
// link and rename, and others would wait, too. A new file that found no room is made, and its first
// write waits (when_room()), as a request that no thread holds.
//
// Files that are being written are polled, because passthrough writes do not reach the daemon.
//
// Threads: thread-safe. Each call is cheap if no directory has a budget.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "fs/core/budget/budget_trees.hpp"
#include "fs/core/inodes/inode_table.hpp"
#include "fs/core/inodes/kernel_request.hpp"
#include "fs/core/inodes/lock_order.hpp"
#include "fs/core/tree/descriptors.hpp"

namespace sluice {

class Budgets {
 public:
  using Parts = BudgetTrees::Parts;
  Budgets(const Parts& parts, std::vector<BudgetRule> rules)
      : parts_(parts), trees_(parts, std::move(rules)) {}

  BudgetTrees& trees() { return trees_; }

  // Room for a new file in each tree that it will be in. Held until name_came() counts the file, so
  // that the room is not given out twice.
  class Room {
   public:
    explicit Room(Budgets& budgets) : budgets_(&budgets) {}
    Room(Room&&) = default;
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    ~Room() { give_back(); }
    // False: room is being made, and the bytes of a new file must wait for it
    // (Inode::waits_for_room).
    bool is_there() const { return is_there_; }

   private:
    friend class Budgets;
    void give_back();
    Budgets* budgets_;
    std::vector<BudgetTrees::TreePtr> trees_;
    bool is_there_ = true;
  };
  // Never waits. ENOSPC if a tree that `parent` is in is full and nothing in it may be deleted now.
  Result<Room> admit(const InodePtr& parent);
  // The same for another name of a file, if it comes from outside the tree. It brings its bytes
  // with it, so there is nothing to wait for.
  Result<Room> admit_link(const InodePtr& file, const InodePtr& to);
  Result<Room> admit_rename(const InodePtr& from, const InodePtr& to);
  // Whether a file that found no room when it was made may be written to now. ENOSPC if not; for a
  // request that must not wait, kNoRoomYet if when_room() should be called.
  Result<void> claim_room(const InodePtr& file, const KernelRequest& request);
  // Calls `go_on`, which must not throw, once claim_room() can answer: now, or in another thread.
  // It is not called after stop_waiting().
  void when_room(InodeId file, uid_t user, std::function<void()> go_on);
  void stop_waiting();
  // The file may be written to although there is no room.
  void give_up_claim(const InodePtr& file);

  enum class Growth { None, Growing };
  void name_came(const InodePtr& parent, const std::string& name, const InodePtr& file,
                 Growth growth);
  void name_gone(const InodePtr& parent, const std::string& name, InodeId file);
  void opened_for_writing(const InodePtr& file);
  void written(const InodePtr& file);  // the last writer has closed it, or it was truncated
  void accessed(InodeId file, double uses);
  void directory_renamed(const InodePtr& from, const std::string& name, const InodePtr& to,
                         const std::string& new_name);
  void directory_came(const InodePtr& parent);  // with what is in it
  void directory_gone(const InodePtr& parent, const std::string& name);

  // For BudgetKeeper.
  //
  // Reads the sizes of the files that are being written. True if there are any.
  bool poll();
  // Continues the requests in when_room() that waited long enough. True if some still wait.
  bool answer_waiting();

 private:
  using Tree = BudgetTrees::Tree;
  using TreePtr = BudgetTrees::TreePtr;
  using Way = BudgetTrees::Way;
  using Above = BudgetTrees::Above;
  // `file`, `from`: trees that have the file already need no room for it.
  Result<Room> reserve(const Way& way, const InodePtr& file, const Way& from);
  enum class Claim { Granted, Waits, Refused };
  Claim try_claim(const InodePtr& file);
  void may_have_room();

  const Parts parts_;
  BudgetTrees trees_;
  struct Waiting {
    InodePtr file;
    uid_t user = 0;
    std::chrono::steady_clock::time_point deadline;
    std::function<void()> go_on;
  };
  // Also held while go_on() runs.
  Mutex waiting_mutex_ ACQUIRED_AFTER(lock_order::waiting) ACQUIRED_BEFORE(lock_order::budget);
  std::vector<Waiting> waiting_ GUARDED_BY(waiting_mutex_);
  bool nobody_waits_ GUARDED_BY(waiting_mutex_) = false;  // after stop_waiting()
  std::atomic<bool> somebody_waits_{false};  // a hint: whether the keeper must look at `waiting_`
};

}  // namespace sluice
