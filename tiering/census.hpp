// SPDX-License-Identifier: BSD-2-Clause
// A Census is every file of the pool at one moment, with what the planner needs to know of it. The
// tiers are walked together: of a path that two tiers have, only the fastest tier's file counts.
// Paths are kept once per directory and names in one block, so that a million files take some
// hundred bytes each.
//
// Threads: a plain value; taking one may run beside anything.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "metadata/store.hpp"
#include "tiering/planner.hpp"
#include "tiering/pool.hpp"

namespace sluice {

class Census {
 public:
  struct Request {
    const Pool& pool;
    const Store& store;
    const Policy& policy;
    std::chrono::seconds half_life{};
    std::int64_t now = 0;
    // Called now and then with the files seen so far; false stops the census (ECANCELED).
    std::function<bool(std::uint64_t files)> progress = {};
  };

  static Result<Census> take(const Request& request);

  // In the order of their ids.
  const std::vector<FileFacts>& files() const { return files_; }
  // Files that can't move, because a name of theirs is missing: outside the tier, or hidden.
  bool has_all_names(std::size_t file) const;
  // Every name of the file, below the mount.
  std::vector<std::string> paths(std::size_t file) const;
  // One of them.
  std::string path(std::size_t file) const { return path_of(names_[file]); }
  // Its name, and the directory that this is in, as an index into directories().
  const char* name(std::size_t file) const { return text_.c_str() + names_[file].at; }
  std::uint32_t directory(std::size_t file) const { return names_[file].directory; }
  // "" is the root; "/a", "/a/b". Each comes after the one that it is in.
  const std::vector<std::string>& directories() const { return directories_; }
  // How many directories were left out because their path is longer than the kernel takes
  // (PATH_MAX, 4,096 bytes). Their files stay where they are.
  std::uint64_t too_deep() const { return too_deep_; }
  // Heat, ghosts and kept times of files that are no more.
  const std::vector<InodeId>& stale_heat() const { return stale_heat_; }
  const std::vector<InodeId>& stale_ghosts() const { return stale_ghosts_; }
  const std::vector<InodeId>& stale_times() const { return stale_times_; }

 private:
  struct Name {
    std::uint32_t directory = 0;  // index into directories_
    std::uint64_t at = 0;         // where it begins in text_
  };
  struct Links {
    std::uint32_t expected = 0;  // st_nlink
    std::vector<Name> names;
  };
  class Walk;

  std::string path_of(const Name& name) const;
  Result<void> join_heat(const Request& request);
  Result<void> join_ghosts(const Request& request);
  void find_stale_times(const Request& request);
  void match_rules(const Request& request);

  std::vector<FileFacts> files_;
  std::vector<Name> names_;                   // of each file, one
  std::vector<std::int64_t> sizes_, mtimes_;  // only if there are rules
  std::map<InodeId, Links> links_;            // of files that have several
  std::vector<std::string> directories_;
  std::string text_;  // names, each ended by a zero byte
  std::uint64_t too_deep_ = 0;
  bool is_whole_ = true;  // so that a file that was not found is no more
  std::vector<InodeId> stale_heat_, stale_ghosts_, stale_times_;
};

// Every name, below its root, of the inode `number` on one tier. Stops at `count` of them.
Result<std::vector<std::string>> find_names(const Tier& tier, ino_t number, nlink_t count);

}  // namespace sluice
