// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/disk_health.hpp"

#include <sys/sysmacros.h>

#include <cstdint>
#include <sstream>

#include "base/disk_counters.hpp"
#include "base/small_file.hpp"

namespace sluice {
namespace {

// The number in a file of sysfs; 0 if there is none.
std::uint64_t number_in(const std::string& path) {
  std::istringstream file(text_of_file(path));
  std::uint64_t number = 0;
  file >> number;
  return file ? number : 0;
}

std::string number_of(dev_t device) {
  return std::to_string(major(device)) + ":" + std::to_string(minor(device));
}

std::uint64_t errors_of(const std::string& disk) {
  return disk.empty() ? 0 : number_in("/sys/fs/ext4/" + disk + "/errors_count");
}

}  // namespace

std::string disk_damage(dev_t device) {
  const std::string block = "/sys/dev/block/" + number_of(device);
  if (const auto lost = number_in(block + "/md/degraded"); lost > 0) {
    return "its RAID array has lost " + std::to_string(lost) + (lost == 1 ? " disk" : " disks") +
           "; see /proc/mdstat";
  }
  const auto disk = disk_counters(device);
  if (const auto errors = errors_of(disk ? disk->name : ""); errors > 0) {
    return "its filesystem found " + std::to_string(errors) + (errors == 1 ? " error" : " errors") +
           " on " + disk->name + "; see dmesg, and check it with fsck while it is not mounted";
  }
  return "";
}

bool has_given_up(dev_t device) {
  const auto disk = disk_counters(device);
  if (errors_of(disk ? disk->name : "") == 0) return false;  // the list may have a thousand mounts
  // Newer kernels say so only in the list of mounts.
  std::istringstream mounts(text_of_file("/proc/self/mountinfo"));
  const std::string wanted = " " + number_of(device) + " ";
  for (std::string line; std::getline(mounts, line);) {
    const std::size_t options = line.find(" - ");
    if (options == std::string::npos || line.find(wanted) > options) continue;
    if (line.find("emergency_ro", options) != std::string::npos) return true;
  }
  return false;
}

}  // namespace sluice
