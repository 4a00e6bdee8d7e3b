// SPDX-License-Identifier: BSD-2-Clause
// Finds out whether one directory lies in another, even if they are named through different mounts.
// Threads: thread-safe; depends only on its arguments and the filesystem.
#pragma once

#include <string>

namespace sluice {

enum class Nesting { Apart, Same, Inside };

// How `inner` lies relative to `outer`. Compares the paths, and then the devices and inodes on the
// way up from `inner`: a bind mount gives a directory another path, and so does /proc/PID/root. If
// `inner` does not exist, the directories above it are compared. If `outer` cannot be opened, only
// the paths are compared.
Nesting nesting(const std::string& inner, const std::string& outer);

}  // namespace sluice
