// SPDX-License-Identifier: BSD-2-Clause
// Xattrs implements extended attributes: those that the tiers store, and the virtual ones named
// user.sluice.*. Users read virtual attributes to learn about a file and set them to pin, move or
// prefetch it. Virtual attributes are never listed, so that cp and rsync do not copy them.
//
// Threads: thread-safe.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "fs/core/budget/budget_trees.hpp"
#include "fs/core/deletion/budget_forecast.hpp"
#include "fs/core/files/access_tracker.hpp"
#include "fs/core/files/gpu_files.hpp"
#include "fs/core/files/move_requests.hpp"
#include "fs/core/inodes/caller.hpp"
#include "fs/core/inodes/kernel_request.hpp"
#include "fs/core/names/attributes.hpp"
#include "fs/core/tree/pins.hpp"
#include "tiering/move/migration.hpp"

namespace sluice {

inline constexpr std::string_view kVirtualPrefix = "user.sluice.";

class Xattrs {
 public:
  struct Parts {
    Pool& pool;
    Store& store;
    DirectoryTree& tree;
    Descriptors& descriptors;
    Attributes& attributes;
    Pins& pins;
    HbmPins& hbm;
    AccessTracker& accesses;
    GpuFiles& gpu;
    MoveRequests& moves;
    BudgetTrees& budget_trees;
    BudgetForecast& forecast;
    const Clock& clock;
    Migration* migration;  // nullptr: files are never moved
  };
  explicit Xattrs(const Parts& parts) : parts_(parts) {}

  // May take long if is_slow(name).
  Result<std::string> get(InodeId id, const char* name);
  // Whether the value depends on many files.
  static bool is_slow(std::string_view name);
  Result<std::string> list(InodeId id, const Caller& caller);
  Result<void> set(InodeId id, const char* name, const char* value, std::size_t size, int flags,
                   const Caller& caller, const KernelRequest& request = {});
  Result<void> remove(InodeId id, const char* name, const Caller& caller,
                      const KernelRequest& request = {});

 private:
  // `name`: without the prefix.
  Result<std::string> virtual_value(const InodePtr& inode, std::string_view name);
  Result<void> set_virtual(const InodePtr& inode, std::string_view name, std::string_view value,
                           uid_t user, const KernelRequest& request);
  Result<void> remove_virtual(const InodePtr& inode, std::string_view name, uid_t user,
                              const KernelRequest& request);
  Result<void> set_budget(const InodePtr& directory, std::string_view value, uid_t user,
                          const KernelRequest& request);
  // The pin to GPU memory and the copies there, for explain().
  nlohmann::json hbm_of(const InodePtr& inode);
  // Whether this user may change the budget of the directory.
  Result<void> check_budget(const InodePtr& directory, uid_t user);
  Result<std::string> budget_of(const InodePtr& inode);
  // The value of user.sluice.budget.SIZE, as JSON: what that budget would delete.
  Result<std::string> preview_budget(const InodePtr& directory, std::string_view size);
  void pin_changed(const InodePtr& inode);
  // The value of user.sluice.explain, as JSON.
  Result<std::string> explain(const InodePtr& inode);
  Result<std::string> explain_offline(const InodePtr& inode);
  void add_moves(nlohmann::json& out, InodeId id, const std::vector<std::string>& names);
  Result<FileFacts> facts_of(const InodePtr& inode, const struct statx& st,
                             const std::vector<Rule>& rules);

  const Parts parts_;
};

}  // namespace sluice
