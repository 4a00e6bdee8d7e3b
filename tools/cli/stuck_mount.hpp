// SPDX-License-Identifier: BSD-2-Clause
// What can be learned about a mount that does not answer, and about its daemon, without waiting for
// either. Threads: forks, so call it before threads are started.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/result.hpp"

namespace sluice::tools::cli {

// As mount_status(), but ETIMEDOUT if the mount has not answered after `patience`.
Result<nlohmann::ordered_json> mount_status_within(const std::string& path,
                                                   std::chrono::milliseconds patience);

// The processes that serve a mount; 0: not found, for example in another PID namespace.
struct MountServer {
  pid_t daemon = 0, keeper = 0;
};
// Finds them by their descriptors of the connection `minor`, which is the minor device number of
// the mount. Finds nothing on kernels that do not show the connection of a descriptor.
MountServer server_of(unsigned minor);

// Whether the process has a file or directory open on the filesystem with this device number. Asks
// no daemon.
bool has_open_on(pid_t pid, unsigned major, unsigned minor);

// The daemon that this keeper has started last; 0 if there is none.
pid_t daemon_of(pid_t keeper);

// Whether the process was stopped (SIGSTOP).
bool is_stopped(pid_t pid);
// Continues the process if it was stopped. Returns whether it was.
bool continue_if_stopped(pid_t pid);

// As mount_status(). If the mount does not answer because its daemon was stopped, or because there
// is none and the keeper waits before it starts one, fails with ETIMEDOUT and a detail that says
// so.
Result<nlohmann::ordered_json> mount_status_or_reason(const std::string& path);

// Finds out whether a process waits for a disk that does not answer: whether one of its threads has
// been in the same uninterruptible wait for some seconds.
class DiskWait {
 public:
  explicit DiskWait(pid_t pid) : pid_(pid) {}
  // Call it again and again. Returns the name of such a thread.
  std::optional<std::string> look();

 private:
  using Clock = std::chrono::steady_clock;
  struct Wait {
    std::string thread, switches;
    Clock::time_point since;
  };
  const pid_t pid_;
  std::map<std::string, Wait> waits_;  // by the number of the thread
};

}  // namespace sluice::tools::cli
