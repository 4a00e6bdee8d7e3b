// SPDX-License-Identifier: BSD-2-Clause
// FileLists keeps the names of the files on each disk of the pool, to report which files are lost
// when a disk dies. The lists are in the state directory, one a disk, by slot: what the last census
// found, and what was in memory when the disk went away. docs/metadata-format.md describes the
// format.
//
// Nothing depends on the lists: a failure to write one is logged. Threads: thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"

namespace sluice {

class Census;

class FileLists {
 public:
  // `directory` is made when there is something to write.
  explicit FileLists(std::string directory) : directory_(std::move(directory)) {}

  struct File {
    InodeId id{};
    std::uint64_t bytes = 0;
    std::string path;  // below the mount
  };

  // Replaces the list of each disk that the census found completely.
  void take(const Census& census, std::int64_t time);
  // Adds files to the list of a disk that has just gone away.
  void add(unsigned slot, const std::vector<File>& files, std::int64_t time);

  struct List {
    std::int64_t census_time = 0;  // 0: there was no census
    std::int64_t added_time = 0;   // 0: nothing was added since
    std::vector<File> files;       // sorted by path, each path once
  };
  // An empty list if none was kept. A list that was damaged ends where the damage begins.
  Result<List> read(unsigned slot) const;

 private:
  std::string path_of(unsigned slot) const { return directory_ + "/" + std::to_string(slot); }
  Result<void> write(unsigned slot, const Census& census, TierIndex tier, std::int64_t time)
      REQUIRES(mutex_);

  const std::string directory_;
  mutable Mutex mutex_;  // held while a list is written or read
};

}  // namespace sluice
