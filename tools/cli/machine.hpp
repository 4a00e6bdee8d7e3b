// SPDX-License-Identifier: BSD-2-Clause
// Reads facts about the machine from /proc and /sys, for `sluice doctor` and `sluice init`.
// Threads: immutable; each call reads the current state of the machine.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::tools::cli {

// A machine as its files show it. `root` is prepended to every path, so that tests can fake one.
class MachineView {
 public:
  explicit MachineView(std::string root = {}) : root_(std::move(root)) {}

  // The file without the newline at its end; nothing if it can't be read.
  std::optional<std::string> text(const std::string& path) const;
  // The same as a number; nothing if it is not a number.
  std::optional<std::uint64_t> number(const std::string& path) const;
  bool has(const std::string& path) const;
  bool is_directory(const std::string& path) const;
  // Sorted; nothing if it is not a directory or can't be read.
  std::optional<std::vector<std::string>> listing(const std::string& path) const;
  // The same; empty if it is not a directory or can't be read.
  std::vector<std::string> names(const std::string& path) const;
  // With links resolved, as a path of this machine; empty if there is none.
  std::string resolved(const std::string& path) const;

 private:
  const std::string root_;
};

// The non-empty parts of `text` between separators.
std::vector<std::string> parts_of(std::string_view text, char separator);

// "6.18.44-generic" is 6.18; 0.0 for something else.
struct KernelVersion {
  unsigned major = 0, minor = 0;
  auto operator<=>(const KernelVersion&) const = default;
};
KernelVersion parse_kernel(std::string_view release);

// Whether the kernel, or a module of it, has a function whose name begins with `name`. Nothing if
// that is unknown.
std::optional<bool> kernel_has(const MachineView& machine, const std::string& name);

// A limit in the text of /proc/PID/limits, by its name there ("Max locked memory"); the largest
// number for "unlimited", nothing if it is not there.
struct Limit {
  std::uint64_t soft = 0, hard = 0;
  bool operator==(const Limit&) const = default;
};
inline constexpr std::uint64_t kUnlimited = UINT64_MAX;
std::optional<Limit> parse_limit(std::string_view limits, std::string_view name);

// The disk behind a device number, through partitions, device mapper and md.
struct Disk {
  std::string name;  // "nvme0n1", "md0", "dm-3"
  std::string raid;  // "raid0"; empty: none
  bool is_nvme = false;
  bool is_rotational = false;
  bool is_removable = false;
  bool is_virtual = false;  // calls itself rotational, whatever it is
};
std::optional<Disk> disk_of(const MachineView& machine, unsigned major, unsigned minor);

}  // namespace sluice::tools::cli
