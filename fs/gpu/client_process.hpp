// SPDX-License-Identifier: BSD-2-Clause
// A ClientProcess is a process that has something with us (a buffer, a ring): what belongs to it is
// its own, and ends with it.
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

// The process that a thread belongs to; ESRCH if it has gone.
Result<pid_t> process_of(pid_t thread);
// A pidfd; empty, with errno, if there is no such process.
UniqueFd open_process(pid_t process);
bool has_ended(const UniqueFd& process);

class ClientProcess {
 public:
  ClientProcess(pid_t process, UniqueFd fd) : process_(process), fd_(std::move(fd)) {}

  pid_t process() const { return process_; }
  const UniqueFd& fd() const { return fd_; }

  // Whether `thread` is one of this process. Looks in /proc once a second and thread.
  bool has(pid_t thread);

 private:
  const pid_t process_;  // 0: in another PID namespace; told apart by the open file alone
  const UniqueFd fd_;    // a pidfd
  Mutex mutex_;
  std::vector<pid_t> threads_ GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point looked_ GUARDED_BY(mutex_){};
};

}  // namespace sluice
