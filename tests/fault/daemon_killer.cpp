// SPDX-License-Identifier: BSD-2-Clause
#include "tests/fault/daemon_killer.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <stdexcept>
#include <string>

#include "base/unique_fd.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {

std::vector<pid_t> children_of(pid_t pid) {
  const std::string name = std::to_string(pid);
  std::ifstream list("/proc/" + name + "/task/" + name + "/children");
  std::vector<pid_t> out;
  for (pid_t child = 0; list >> child;) {
    if (!has_ended(child)) out.push_back(child);
  }
  return out;
}

pid_t DaemonKiller::daemon() const {
  std::vector<pid_t> found;
  const bool is_there = eventually([&] {
    found = children_of(keeper_);
    return !found.empty() || has_ended(keeper_);
  });
  if (has_ended(keeper_)) throw std::runtime_error("the keeper has ended");
  if (!is_there) throw std::runtime_error("the keeper starts no daemon");
  return found[0];
}

std::chrono::steady_clock::time_point DaemonKiller::kill() {
  const pid_t pid = daemon();
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const auto moment = std::chrono::steady_clock::now();
  ::kill(pid, SIGKILL);
  ++kills_;
  pollfd end{process.get(), POLLIN, 0};
  if (process && ::poll(&end, 1, 20'000) != 1)
    throw std::runtime_error("the daemon survives SIGKILL");
  return moment;
}

}  // namespace sluice::test
