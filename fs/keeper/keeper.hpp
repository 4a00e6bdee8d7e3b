// SPDX-License-Identifier: BSD-2-Clause
// The keeper: the process that `sluice mount` leaves behind. It starts the daemon, which serves the
// mount, and holds the descriptors that the mount consists of. If the daemon crashes, the kernel
// keeps its requests, because /dev/fuse is still open here, and the keeper starts a successor that
// takes over. protocol.hpp lists what the two say to each other.
//
// The keeper must not fail: it has no threads, loads no library and never waits for the mount.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "base/service_notice.hpp"

namespace sluice {

// The exit code of a keeper that gave up a mount for which no daemon could be started. What is left
// is a mount point that fails with ENOTCONN until somebody unmounts it.
inline constexpr int kGaveUp = 70;

struct KeeperSettings {
  std::string executable;              // of the daemon
  std::vector<std::string> arguments;  // argv of the daemon
  // After this many crashes in a row, the keeper waits before it starts the next daemon: first
  // `first_wait`, then twice as long after each crash, at most `longest_wait`. 0: it never waits.
  // The count starts again after a daemon has served for `longest_wait`, or has handed over.
  unsigned crash_limit = 5;
  std::chrono::milliseconds first_wait{1000};
  std::chrono::milliseconds longest_wait{60'000};
  // It gives up if no daemon has begun to serve for this long.
  std::chrono::milliseconds patience{600'000};
  // Whether nobody reads stderr once the mount answers.
  bool detached = false;
  std::string log_name;  // for messages
  log::Format log_format = log::Format::Text;
  // Called once: when the mount answers, or with the reason why it never will.
  std::function<void(const Result<void>& mounted)> started;
  // Of an earlier keeper. If there are any, the daemon takes over instead of mounting.
  NamedDescriptors held;
};

// Runs until the mount ends and returns the exit code: 0 after an unmount, that of the daemon if it
// could not mount, kGaveUp. SIGTERM, SIGINT and SIGHUP go to the daemon. If none runs, they start
// one at once. REQUIRES: the process has no other threads.
int run_keeper(KeeperSettings settings);

// How a process ended: "signal 9, Killed" or "exit code 1".
std::string describe_end(int wait_status);

}  // namespace sluice
