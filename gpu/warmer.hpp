// SPDX-License-Identifier: BSD-2-Clause
// The Warmer reads ranges of files into the page cache in the background, while there is nothing
// more important to do. Users take turns, in steps of 4 MiB. What nobody asked for is read last,
// and only while the disk has nothing else to do.
//
// Holes cost nothing. A job reads at most half of the machine's memory; with more, its first pages
// would be dropped again.
// Threads: thread-safe; one of its own, "sluice-warm", started by the first job.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
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

  // The bytes that a disk has transferred since boot, for all programs; nothing if it can't tell.
  using DiskBytes = std::function<std::optional<std::uint64_t>(dev_t)>;
  static std::optional<std::uint64_t> disk_bytes(dev_t filesystem);
  // Whether so many bytes that nobody asked for may go into the page cache now.
  using HasRoom = std::function<bool(std::uint64_t)>;
  // `is_busy` tells whether there is something more important to do now.
  explicit Warmer(
      std::function<bool()> is_busy, DiskBytes bytes = disk_bytes,
      HasRoom has_room = [](std::uint64_t) { return true; })
      : is_busy_(std::move(is_busy)),
        disk_bytes_(std::move(bytes)),
        has_room_(std::move(has_room)) {}
  ~Warmer();  // stops all jobs
  Warmer(const Warmer&) = delete;
  Warmer& operator=(const Warmer&) = delete;

  // Reads file[begin, end). Nothing is added if a job of this user still has to read that range.
  Result<void> add(uid_t user, int fd, std::uint64_t begin, std::uint64_t end);
  // Reads the whole file when its disk is idle, after everything else. Ends when the file has
  // changed, was deleted, or has no room any more. Does nothing if too many files wait, or if no
  // thread can be started.
  void add_when_idle(int fd, const FileVersion& version);
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
    std::uint64_t left = 0;                     // bytes that it may still read
    bool stopped = false;                       // guarded by mutex_
    std::optional<FileVersion> when_idle = {};  // of jobs of add_when_idle()
  };
  // The last look at a disk.
  struct Disk {
    std::chrono::steady_clock::time_point next_look = {};
    std::uint64_t bytes = 0;  // that it had transferred
    std::uint64_t own = 0;    // that we have read since
    bool is_idle = false;
  };
  enum class End { Done, GoesOn, Waits };  // of a step
  static Result<Job> make_job(int fd, std::uint64_t begin, std::uint64_t end);
  static End step(Job& job);
  End step_when_idle(Job& job);
  bool is_idle(Disk& disk, dev_t filesystem) const;
  bool start() REQUIRES(mutex_);   // false: no thread can be started
  void choose() REQUIRES(mutex_);  // moves the next job to current_
  bool works_for(uid_t user) const REQUIRES(mutex_);
  void work(const std::stop_token& stop);

  const std::function<bool()> is_busy_;
  const DiskBytes disk_bytes_;
  const HasRoom has_room_;
  std::map<dev_t, Disk> disks_;  // used by the thread only
  mutable Mutex mutex_;
  StopCondVar wanted_;
  std::map<uid_t, std::list<Job>> users_ GUARDED_BY(mutex_);  // no list is empty
  std::list<Job> when_idle_ GUARDED_BY(mutex_);
  std::size_t count_ GUARDED_BY(mutex_) = 0;  // of users_, and of current_ if asked for
  // The current job. It is used without the lock, except for `stopped`.
  std::list<Job> current_ GUARDED_BY(mutex_);
  uid_t current_user_ GUARDED_BY(mutex_) = 0;
  std::jthread thread_ GUARDED_BY(mutex_);
};

}  // namespace sluice
