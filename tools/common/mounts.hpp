// SPDX-License-Identifier: BSD-2-Clause
// The mounts of Sluice on this machine, and which of them a verb refers to. Threads: thread-safe;
// no state but the kernel's mount table.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mount_lines.hpp"
#include "base/result.hpp"

namespace sluice::tools {

struct MountEntry {
  std::string point;
  // Mounted by root or by the user who asks: anybody can mount a filesystem that claims to be ours
  // and that names any file of the machine as its configuration.
  bool is_sluice = false;
  bool is_whole = true;           // false: a bind mount of a directory of it
  unsigned major = 0, minor = 0;  // st_dev

  bool operator==(const MountEntry&) const = default;
};

// The kernel's table, in its order: later entries lie on top of earlier ones.
std::vector<MountEntry> mount_table();
// The same from the text of /proc/self/mountinfo.
std::vector<MountEntry> parse_mountinfo(std::string_view text);

// The mount point of the Sluice mount that contains `path`, an absolute path without links. Nothing
// if there is none.
std::optional<std::string> sluice_mount_of(const std::vector<MountEntry>& mounts,
                                           const std::string& path);

// Chooses a mount: the one that contains `given`; if that is empty, the one that contains the
// current `directory`, or else the only one. For a path in a bind mount of a subdirectory it is the
// whole mount, if that is mounted here. EXDEV if `given` is not on a mount, ENOENT if there is no
// mount, ENOTUNIQ if there are several; sluice_mounts() lists them.
Result<std::string> choose_mount(const std::vector<MountEntry>& mounts, const std::string& given,
                                 const std::string& directory);
// The same with the machine's table and current directory. Does not wait for the daemon of a mount
// that is given by its mount point or contains the current directory.
Result<std::string> choose_mount(const std::string& given);
// The mount points of all Sluice mounts, without bind mounts of subdirectories.
std::vector<std::string> sluice_mounts();

}  // namespace sluice::tools
