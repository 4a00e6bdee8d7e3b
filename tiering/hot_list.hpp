// SPDX-License-Identifier: BSD-2-Clause
// HotList remembers the few hottest files, for people who watch. Each pass of migration knows the
// heat of every file and fills it anew; between two passes the files that are used most are offered
// to it. So asking for them costs nothing in a pool of millions, and the price is that a file may
// be missing until the next pass, if at every moment many others were used more.
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
  // More than anybody is shown: some will have been removed meanwhile.
  static constexpr std::size_t kMost = 64;

  struct File {
    InodeId id{};
    std::string path;     // below the mount, when it was last heard of
    double score = 0;     // as of `time`
    std::int64_t time{};  // seconds since the epoch
  };

  explicit HotList(std::chrono::seconds half_life) : half_life_(half_life) {}

  // Forgets what it knew, which may be of files that are gone, and takes the census's hottest. Its
  // scores are as of `time`.
  void take(const Census& census, std::int64_t time);
  // These are as hot as they say. What is known of them already is replaced.
  void offer(std::vector<File> files);
  void forget(InodeId id);

  // The hottest `most`, hottest first, scores as of `now`.
  std::vector<File> hottest(std::size_t most, std::int64_t now) const;

 private:
  void keep_hottest(std::int64_t now) REQUIRES(mutex_);

  const std::chrono::seconds half_life_;
  mutable Mutex mutex_;
  std::vector<File> files_ GUARDED_BY(mutex_);  // at most kMost, in no order
};

}  // namespace sluice
