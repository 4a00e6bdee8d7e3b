// SPDX-License-Identifier: BSD-2-Clause
// Lists the files below one directory of the pool, and finds the directories that have a budget.
// The tiers are walked together, as by the Census: of two files with one path, the one on the
// faster tier counts. Threads: pure functions; the walk does not disturb other threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.hpp"
#include "base/result.hpp"
#include "tiering/choose/budget.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

struct TreeList {
  struct File {
    InodeId id{};
    std::uint32_t directory = 0;  // index into `directories`
    std::string name;
    std::uint64_t bytes = 0;
    std::int64_t mtime = 0;
    bool has_links = false;  // it has more than one name, here or elsewhere
  };
  struct Directory {
    std::uint32_t parent = 0;  // index into `directories`, before this one
    std::string name;          // "" is the listed one, which is the first
  };
  // The names from the directory up to the listed one, which is left out: "b", "a" for "/a/b".
  std::vector<std::string> names_up(std::uint32_t directory) const;
  std::string path(const File& file) const;  // "/a/b/file"
  std::vector<Directory> directories;
  std::vector<File> files;  // a file with several names occurs once for each
};

// Returning false stops the walk with ECANCELED.
using GoOn = std::function<bool()>;

// `path` is "" for the root, or "/a/b". Directories that cannot be read are left out.
Result<TreeList> list_tree(const Pool& pool, const std::string& path, const GoOn& go_on);

// The directories of the pool that have a budget of their own, or match one of the rules, and that
// budget; the smaller one if there are two. The root never has one.
Result<std::vector<std::pair<std::string, Budget>>> find_budgets(
    const Pool& pool, const std::vector<BudgetRule>& rules, const GoOn& go_on);

// The budget of the directory `dirfd` itself; nothing if it has none or it cannot be read.
std::optional<Budget> own_budget(int dirfd);
// That budget, or the smallest that a rule gives to `path`.
std::optional<Budget> budget_of(const std::optional<Budget>& own,
                                const std::vector<BudgetRule>& rules, const std::string& path);

}  // namespace sluice
