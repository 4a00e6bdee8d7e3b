// SPDX-License-Identifier: BSD-2-Clause
// Who keeps a mount alive after it was unmounted here: other mount namespaces (containers,
// services, `unshare -m`) that have a mount of it, and bind mounts of its directories. Reads /proc
// only and never accesses the mount, so that it works for a mount that does not respond.
// Threads: immutable; each call reads the current state of the machine.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace sluice::tools::cli {

struct MountHolder {
  std::string point;       // where the mount is, in that namespace
  bool is_here = false;    // in the namespace of this process
  pid_t pid = 0;           // a process of that namespace
  std::string command;     // "sleep"
  std::size_t others = 0;  // further processes of that namespace
  // The files of it that they have open: "4711 (sleep): /mnt/pool/f". At most kMostShown of them.
  std::vector<std::string> open = {};
  static constexpr std::size_t kMostShown = 5;
};

// Mounts of the filesystem with this device number. Processes that may not be looked at are left
// out: root sees all of its own PID namespace and of those below.
std::vector<MountHolder> mount_holders(unsigned major, unsigned minor);

// Describes one holder and what to do about it. Several lines, each ends with a newline.
std::string to_text(const MountHolder& holder);

}  // namespace sluice::tools::cli
