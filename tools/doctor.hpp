// SPDX-License-Identifier: BSD-2-Clause
// What `sluice doctor` looks at: the kernel, the driver and its gates to GPUDirect Storage, and the
// disk below a directory. Threads: immutable; each look reads the machine as it is then.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct Check {
  enum class Verdict { Ok, Warn, No };
  Verdict verdict = Verdict::Ok;
  std::string what;      // "io_uring"
  std::string words;     // what was found
  std::string fix = {};  // the one thing to do; empty: nothing, or nothing that can be done here

  bool operator==(const Check&) const = default;
};
std::string_view name_of(Check::Verdict verdict);  // "ok", "warn", "no"

// A machine as its /proc, /sys, /run, /boot and /etc show it. `root` is put before every path, so
// that a test can make one up.
class MachineView {
 public:
  explicit MachineView(std::string root = {}) : root_(std::move(root)) {}

  // The file without the newline at its end; nothing if it can't be read.
  std::optional<std::string> text(const std::string& path) const;
  bool has(const std::string& path) const;
  // Sorted; none if there is no such directory.
  std::vector<std::string> names(const std::string& path) const;
  // With links resolved, as a path of this machine; empty if there is none.
  std::string resolved(const std::string& path) const;

 private:
  const std::string root_;
};

// "6.18.44-generic" is 6.18; 0.0 for something else.
struct KernelVersion {
  unsigned major = 0, minor = 0;
  auto operator<=>(const KernelVersion&) const = default;
};
KernelVersion parse_kernel(std::string_view release);

// The soft limit of locked memory in the text of /proc/PID/limits; the largest number for
// "unlimited", nothing if it is not there.
std::optional<std::uint64_t> parse_memlock(std::string_view limits);

// Of /proc/driver/nvidia/version.
struct NvidiaDriver {
  std::string version;  // "580.65.06"
  bool is_open = false;

  bool operator==(const NvidiaDriver&) const = default;
};
std::optional<NvidiaDriver> parse_driver(std::string_view text);

// Whether cuFile's configuration asks for P2PDMA. False for a text that is none.
bool asks_for_p2pdma(std::string_view cufile_json);

// What a directory is on.
struct MountedFilesystem {
  std::string type;     // "ext4"
  std::string options;  // of the filesystem itself, separated by commas

  bool operator==(const MountedFilesystem&) const = default;
};
// From the text of /proc/self/mountinfo; `path` is absolute and without links.
std::optional<MountedFilesystem> filesystem_of(std::string_view mountinfo, const std::string& path);

// The disk behind a device number, through partitions, device mapper and md.
struct Disk {
  std::string name;  // "nvme0n1", "md0", "dm-3"
  std::string raid;  // "raid0"; empty: none
  bool is_nvme = false;
  bool is_rotational = false;
};
std::optional<Disk> disk_of(const MachineView& machine, unsigned major, unsigned minor);

// The kernel and its limits. `daemon` is the one of a mount; 0: none, this process counts.
std::vector<Check> kernel_checks(const MachineView& machine, pid_t daemon);
// What stands between the GPUs at these PCI addresses and GPUDirect Storage; only the first line if
// there is no driver.
std::vector<Check> driver_checks(const MachineView& machine,
                                 const std::vector<std::string>& pci_addresses);
// The filesystem and disk of a directory on a device.
std::vector<Check> disk_checks(const MachineView& machine, const std::string& path, dev_t device);

}  // namespace sluice
