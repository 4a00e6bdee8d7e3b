// SPDX-License-Identifier: BSD-2-Clause
// A Census lists every file of the pool at one moment, with the facts that the planner needs. The
// tiers are walked together: if two tiers have the same path, only the file on the faster tier
// counts. Each directory's path is stored once and all names are stored in one block, so a file
// takes about a hundred bytes.
//
// Threads: a plain value; taking a census does not disturb other threads.
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
#include "tiering/choose/planner.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

class Census {
 public:
  struct Request {
    const Pool& pool;
    const Store& store;
    const Policy& policy;
    std::chrono::seconds half_life{};
    std::int64_t now = 0;
    // Called from time to time with the number of files seen so far; returning false stops the
    // census with ECANCELED.
    std::function<bool(std::uint64_t files)> progress = {};
  };

  static Result<Census> take(const Request& request);

  // Sorted by id.
  const std::vector<FileFacts>& files() const { return files_; }
  // False if some hard link of the file was not found because it is outside the tier or hidden.
  // Such a file cannot move.
  bool has_all_names(std::size_t file) const;
  // Every path of the file, below the mount.
  std::vector<std::string> paths(std::size_t file) const;
  // One of its paths.
  std::string path(std::size_t file) const { return path_of(names_[file]); }
  // The name in that path, and the directory that contains it as an index into directories().
  const char* name(std::size_t file) const { return text_.c_str() + names_[file].at; }
  std::uint32_t directory(std::size_t file) const { return names_[file].directory; }
  // The pins that were found, each at the file or directory that has it, in the order of the walk.
  struct Pinned {
    std::string path;  // below the mount; "" is the root
    TierIndex tier;
    bool is_directory;
  };
  std::size_t pin_count() const { return pins_.size(); }
  Pinned pin(std::size_t index) const;
  // "" is the root; the others are "/a", "/a/b". A directory comes after its parent.
  const std::vector<std::string>& directories() const { return directories_; }
  // For each tier the slot of its disk, if every file on it was found, or else 0.
  const std::vector<unsigned>& whole_slots() const { return whole_slots_; }
  // The number of directories that were skipped because their path is longer than PATH_MAX (4,096
  // bytes). Their files stay where they are.
  std::uint64_t too_deep() const { return too_deep_; }
  // Files that no longer exist but still have heat, ghosts or kept times in the store.
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
    bool has_own_pin = false;
    std::size_t file = 0;  // its index in files_ during the walk
    std::vector<Name> names;
  };
  // Without the path: users may pin any number of files with long ones.
  struct PinnedName {
    Name name;
    TierIndex tier;
    bool is_directory;  // directories_[name.directory] itself
  };
  class Walk;

  std::string path_of(const Name& name) const;
  Result<void> join_heat(const Request& request);
  Result<void> join_ghosts(const Request& request);
  void join_times(const Request& request);
  void match_rules(const Request& request);

  std::vector<FileFacts> files_;
  std::vector<Name> names_;                   // one name per file
  std::vector<std::int64_t> sizes_, mtimes_;  // empty if there are no rules
  std::map<InodeId, Links> links_;            // files with several hard links
  std::vector<std::string> directories_;
  std::string text_;  // names, each terminated by a zero byte
  std::vector<PinnedName> pins_;
  std::uint64_t too_deep_ = 0;
  bool is_whole_ = true;  // everything was read, so a file that was not found does not exist
  std::vector<unsigned> whole_slots_;
  std::vector<InodeId> stale_heat_, stale_ghosts_, stale_times_;
};

// The paths, below the tier's root, of the inode `number`. Stops after `count` paths.
Result<std::vector<std::string>> find_names(const Tier& tier, ino_t number, nlink_t count);

// What is known of the accesses to a file.
void set_heat(FileFacts& file, const Heat& heat, std::chrono::seconds half_life, std::int64_t now);

}  // namespace sluice
