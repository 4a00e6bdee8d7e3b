// SPDX-License-Identifier: BSD-2-Clause
// DaemonKiller kills the daemon of a mount with SIGKILL again and again. The keeper starts a
// successor each time. It never uses the mount, because that would wait for the daemon.
//
// Threads: caller locks.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <vector>

namespace sluice::test {

class DaemonKiller {
 public:
  // After several kills the keeper waits, unless it was started with --debug=crash_limit=0.
  explicit DaemonKiller(pid_t keeper) : keeper_(keeper) {}

  // The daemon that serves, or that is starting. Waits until there is one; throws
  // std::runtime_error if there is none after a minute or if the keeper has ended.
  pid_t daemon() const;
  // Kills the daemon and waits for its end. Returns when it was killed.
  std::chrono::steady_clock::time_point kill();

  int kills() const { return kills_; }

 private:
  const pid_t keeper_;
  int kills_ = 0;
};

// The processes that `pid` started and that have not ended.
std::vector<pid_t> children_of(pid_t pid);

}  // namespace sluice::test
