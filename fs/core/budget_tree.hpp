// SPDX-License-Identifier: BSD-2-Clause
// A tree with a budget, as Budgets sees it; included only by the sources of Budgets. Its
// mutex_ guards all of it.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "fs/core/budgets.hpp"

namespace sluice {

struct Budgets::Tree {
  InodePtr directory;
  std::vector<InodeId> references;  // keep the directory, and those above it, in memory
  Budget budget;
  BudgetFiles files;
  std::map<InodeId, std::chrono::steady_clock::time_point>
      growing;                // open for writing, and when it last grew
  std::uint64_t largest = 0;  // bytes of the largest file that was written of late
  unsigned admitted = 0;      // new files that are not in `growing` yet

  bool is_known = false;    // it was listed
  bool must_list = true;    // something is missing in `files`
  bool is_suspect = false;  // `used` may be too high: nothing is deleted until it was listed again
  // While it is listed: what users changed.
  bool is_listing = false;
  std::unordered_set<InodeId> touched;
  struct DirectoryChange {
    std::string from, to;  // `to` is empty if it has left the tree
  };
  std::vector<DirectoryChange> directory_changes;
  std::chrono::steady_clock::time_point listing_began{}, soonest_listing{}, next_listing{};

  unsigned waiting = 0;     // new files that wait for room
  std::uint64_t stuck = 0;  // how often nothing could be deleted
  bool is_stuck = false;
  std::uint64_t deleted = 0, deleted_bytes = 0;
};

inline void apply(BudgetFiles& files, const std::string& from, const std::string& to) {
  to.empty() ? files.directory_left(from) : files.directory_renamed(from, to);
}

// Bytes on the disk; for a file without a name, they no longer count.
struct BudgetSize {
  std::uint64_t bytes = 0;
  bool has_name = true;
};
BudgetSize size_of(Descriptors& descriptors, const InodePtr& file);

bool has_writers(Inode& file);

}  // namespace sluice
