// SPDX-License-Identifier: BSD-2-Clause
// The mounts of Sluice on this machine, and which of them a verb is meant for. Threads: pure
// functions, but for the look at the kernel's table.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct MountEntry {
  std::string point;
  bool is_sluice = false;
  bool is_whole = true;  // false: a bind mount of a directory of it

  bool operator==(const MountEntry&) const = default;
};

// The kernel's table, in its order: later entries lie on top of earlier ones.
std::vector<MountEntry> mount_table();
// The same from the text of /proc/self/mountinfo.
std::vector<MountEntry> parse_mountinfo(std::string_view text);

// The mount point of the Sluice that `path`, an absolute path without links, is in. Nothing if it
// is in none.
std::optional<std::string> sluice_mount_of(const std::vector<MountEntry>& mounts,
                                           const std::string& path);

// The mount that is meant: the one that holds `given`, or if that is empty the one that holds
// `directory`, the current one, or else the only one there is. `problem` says why there is no
// answer.
struct MountChoice {
  std::string point;
  std::string problem;
};
MountChoice choose_mount(const std::vector<MountEntry>& mounts, const std::string& given,
                         const std::string& directory);
// With the machine's table and current directory.
MountChoice choose_mount(const std::string& given);

}  // namespace sluice
