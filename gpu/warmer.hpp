// SPDX-License-Identifier: BSD-2-Clause
// The Warmer reads ranges of files into the page cache in the background, while there is nothing
// more important to do. Users take turns, in steps of 1 MiB.
//
// Holes cost nothing. A job reads at most half of the machine's memory; with more, its first pages
// would be dropped again.
// Threads: thread-safe; one of its own, "sluice-warm", started by the first job.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <thread>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "gpu/file_version.hpp"

namespace sluice {

class Warmer {
 public:
  // The most jobs of one user and of all users; beyond that, EAGAIN. Each job keeps a descriptor
  // open.
  static constexpr std::size_t kMostOfUser = 64, kMostOfAll = 1024;

  // `is_busy` tells whether there is something more important to do now.
  explicit Warmer(std::function<bool()> is_busy) : is_busy_(std::move(is_busy)) {}
  ~Warmer();  // stops all jobs
  Warmer(const Warmer&) = delete;
  Warmer& operator=(const Warmer&) = delete;

  // Reads file[begin, end). Nothing is added if a job of this user still has to read that range.
  Result<void> add(uid_t user, int fd, std::uint64_t begin, std::uint64_t end);
  // Ends the jobs of matching files, and closes them.
  void forget(const std::function<bool(const FileId&)>& is_meant);

  std::size_t jobs() const;
  std::size_t most_of_user() const;  // number of jobs of the user with the most

 private:
  struct Job {
    UniqueFd fd;
    bool seeks = false;  // no other code uses the descriptor's position
    FileId file;
    std::uint64_t at = 0, end = 0;
    std::uint64_t left = 0;  // bytes that it may still read
    bool stopped = false;    // guarded by mutex_
  };
  static bool step(Job& job);  // false: done
  void work(const std::stop_token& stop);

  const std::function<bool()> is_busy_;
  mutable Mutex mutex_;
  StopCondVar wanted_;
  std::map<uid_t, std::list<Job>> users_ GUARDED_BY(mutex_);  // no list is empty
  std::size_t count_ GUARDED_BY(mutex_) = 0;
  // The current job. step() uses it without the lock, except for `stopped`.
  std::list<Job> current_ GUARDED_BY(mutex_);
  uid_t current_user_ GUARDED_BY(mutex_) = 0;
  std::jthread thread_ GUARDED_BY(mutex_);
};

}  // namespace sluice
