// SPDX-License-Identifier: BSD-2-Clause
// HotList stores the few hottest files, for display. Each migration pass knows the heat of every
// file and refills the list; between passes, the files with the most new accesses are offered to
// it. So a query is cheap in a pool of millions of files. A hot file may be missing until the next
// pass if many others were used more at the same time.
//
// Threads: every member may be called from any thread at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.hpp"
#include "base/mutex.hpp"

namespace sluice {

class Census;

class HotList {
 public:
  // More than is ever shown, because some files may be deleted before the next pass.
  static constexpr std::size_t kMost = 64;

  struct File {
    InodeId id{};
    std::string path;     // below the mount, as last known
    double score = 0;     // as of `time`
    std::int64_t time{};  // seconds since the epoch
  };

  explicit HotList(std::chrono::seconds half_life) : half_life_(half_life) {}

  // Replaces the list by the hottest files of the census. Its scores are as of `time`.
  void take(const Census& census, std::int64_t time);
  // Adds these files or updates their scores.
  void offer(std::vector<File> files);
  void forget(InodeId id);

  // The `most` hottest files, hottest first, with scores as of `now`.
  std::vector<File> hottest(std::size_t most, std::int64_t now) const;

 private:
  void keep_hottest(std::int64_t now) REQUIRES(mutex_);

  const std::chrono::seconds half_life_;
  mutable Mutex mutex_;
  std::vector<File> files_ GUARDED_BY(mutex_);  // at most kMost, unsorted
};

}  // namespace sluice
