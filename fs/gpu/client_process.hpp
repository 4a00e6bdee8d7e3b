// SPDX-License-Identifier: BSD-2-Clause
// A ClientProcess is a process that owns buffers or rings. What it owns can be used only by it, and
// ends with it.
//
// Threads: thread-safe.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

// The process that a thread belongs to; ESRCH if it has ended.
Result<pid_t> process_of(pid_t thread);
// Opens a pidfd; empty, with errno set, if there is no such process.
UniqueFd open_process(pid_t process);
bool has_ended(const UniqueFd& process);

// Tells a long request that its caller was killed. The kernel does not: the caller stays until the
// request ends. Threads: caller locks.
class CallerWatch {
 public:
  // `thread` 0: the caller is in another PID namespace.
  explicit CallerWatch(pid_t thread) : thread_(thread) {}
  // Looks in /proc now and then. A caller that can't be seen counts as killed after a second.
  bool is_killed();

 private:
  const pid_t thread_;
  std::chrono::steady_clock::time_point look_ = std::chrono::steady_clock::now();  // next time
  bool killed_ = false;
};

class ClientProcess {
 public:
  ClientProcess(pid_t process, UniqueFd fd) : process_(process), fd_(std::move(fd)) {}

  pid_t process() const { return process_; }
  const UniqueFd& fd() const { return fd_; }

  // True if `thread` belongs to this process. Looks in /proc at most once a second for each thread.
  bool has(pid_t thread);

 private:
  const pid_t process_;  // 0: in another PID namespace; identified only by the open file
  const UniqueFd fd_;    // a pidfd
  Mutex mutex_;
  std::vector<pid_t> threads_ GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point looked_ GUARDED_BY(mutex_){};
};

}  // namespace sluice
