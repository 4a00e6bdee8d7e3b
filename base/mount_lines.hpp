// SPDX-License-Identifier: BSD-2-Clause
// The kernel's table of mounts. Threads: thread-safe; no state but the kernel's.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// A line of /proc/self/mountinfo.
struct MountLine {
  unsigned major = 0, minor = 0;  // st_dev of what is mounted
  std::string root;               // the directory of the filesystem that is seen here
  std::string point;
  std::string flags;    // of this mount, separated by commas: "rw,noatime"
  std::string type;     // "ext4"
  std::string source;   // "/dev/sda1"
  std::string options;  // of the filesystem itself

  bool operator==(const MountLine&) const = default;
};
std::vector<MountLine> parse_mount_lines(std::string_view text);
// The mount that contains `path`, an absolute path without links: the innermost, and of two at the
// same point the later one, which hides the other.
std::optional<MountLine> mount_holding(const std::vector<MountLine>& lines,
                                       const std::string& path);
// Whether `word` is among `words`, which are separated by commas.
bool has_word(std::string_view words, std::string_view word);
// Whether `path` is the mount point or below it. Both are absolute, without links.
bool mount_holds(const std::string& point, const std::string& path);
// Those of this process, in the kernel's order: later ones lie on top of earlier ones.
std::vector<MountLine> mount_lines();

}  // namespace sluice
