// SPDX-License-Identifier: BSD-2-Clause
// Child processes and the signals that end a run. Threads: the program has only one.
//
// The program is two processes. The first makes the mounts and scratch directories, waits, and
// removes them; the second measures. So whatever happens to the measuring (a failure, SIGBUS in a
// mapping, Ctrl-C), the first process cleans up.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"

namespace sluice::tools::lab::bench {

using Command = std::vector<std::string>;

// "sluice mount --tier ..." for messages and reports.
std::string to_string(const Command& command);

// Runs a command to its end with its stdout dropped. Throws a Failure unless it exits 0.
void run(const Command& command);

// The same for commands that could hang on a broken mount: they are killed after `limit`. Returns
// their stdout.
std::string run_within(const Command& command, std::chrono::seconds limit);

// A process that is not our child; safe against reuse of its PID.
class ProcessHandle {
 public:
  explicit ProcessHandle(pid_t pid);

  // True once the process has ended (or if it never was).
  bool wait_ended(std::chrono::milliseconds limit) const;
  void kill() const;

 private:
  UniqueFd pidfd_;
};

// Blocks SIGINT, SIGTERM and SIGHUP during its life, so that they do not end this process before it
// has cleaned up. Children start with the usual signals.
class BlockedSignals {
 public:
  BlockedSignals();

  // The first signal that arrived, or 0.
  int arrived();

  // Runs `work` in a child and returns its exit status, or 128 + the signal that ended the run.
  int supervise(const std::function<int()>& work);

 private:
  UniqueFd signals_;
  int arrived_ = 0;
};

}  // namespace sluice::tools::lab::bench
