// SPDX-License-Identifier: BSD-2-Clause
// Who keeps a mount alive after it was unmounted here: other mount namespaces (containers,
// services, `unshare -m`) that have a mount of it, and bind mounts of its directories. Reads /proc
// alone, and asks the mount itself nothing, so that a mount that does not answer is no matter.
// Threads: pure but for the look at the machine as it is then.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace sluice {

struct MountHolder {
  std::string point;       // where the mount is, in that namespace
  bool is_here = false;    // in the namespace of this process
  pid_t pid = 0;           // a process of that namespace
  std::string command;     // "sleep"
  std::size_t others = 0;  // further processes of that namespace
  // What they have open of it: "4711 (sleep): /mnt/pool/f". At most kMostShown of them.
  std::vector<std::string> open = {};
  static constexpr std::size_t kMostShown = 5;
};

// Mounts of the filesystem with this device number. Processes that may not be looked at are left
// out: root sees all of its own PID namespace and of those below.
std::vector<MountHolder> mount_holders(unsigned major, unsigned minor);

// One holder in words, with what one would do about it. Several lines, each ends with a newline.
std::string to_text(const MountHolder& holder);

}  // namespace sluice
