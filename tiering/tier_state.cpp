// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/tier_state.hpp"

#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <sstream>

#include "base/disk_counters.hpp"
#include "base/small_file.hpp"
#include "base/units.hpp"

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

// Whether a filesystem writes nothing any more because it found errors. Newer kernels say so only
// in the list of mounts.
bool has_given_up(dev_t device) {
  std::istringstream mounts(text_of_file("/proc/self/mountinfo"));
  const std::string wanted = " " + number_of(device) + " ";
  for (std::string line; std::getline(mounts, line);) {
    const std::size_t options = line.find(" - ");
    if (options == std::string::npos || line.find(wanted) > options) continue;
    if (line.find("emergency_ro", options) != std::string::npos) return true;
  }
  return false;
}

bool is_read_only(const Tier& tier) {
  const auto root = tier.root();
  struct statvfs fs {};
  if (root && ::fstatvfs((*root)->get(), &fs) == 0 && (fs.f_flag & ST_RDONLY) != 0) return true;
  return has_given_up(tier.device());
}

}  // namespace

std::string disk_damage(dev_t device) {
  const std::string block = "/sys/dev/block/" + number_of(device);
  if (const auto lost = number_in(block + "/md/degraded"); lost > 0) {
    return "its RAID array has lost " + std::to_string(lost) + (lost == 1 ? " disk" : " disks") +
           "; see /proc/mdstat";
  }
  const auto disk = disk_counters(device);
  if (!disk || disk->name.empty()) return "";
  if (const auto errors = number_in("/sys/fs/ext4/" + disk->name + "/errors_count"); errors > 0) {
    return "its filesystem found " + std::to_string(errors) + (errors == 1 ? " error" : " errors") +
           " on " + disk->name + "; see dmesg, and check it with fsck while it is not mounted";
  }
  return "";
}

std::vector<TierState> states_of(const Tier& tier, Leaving leaving) {
  if (!tier.online()) return {{"offline", tier.why_offline(), true}};
  std::vector<TierState> out;
  if (is_read_only(tier))
    out.push_back({"read-only", "nothing can be written or moved there", true});
  if (std::string damage = disk_damage(tier.device()); !damage.empty())
    out.push_back({"degraded", std::move(damage), true});
  const Space space = tier.space();
  if (tier.low_on_space()) {
    out.push_back({"full",
                   format_size(space.free) + " free, less than its reserve of " +
                       format_size(tier.reserve()) + ": new files go to other tiers",
                   false});
  }
  if (tier.above_high_watermark()) {
    const std::string mark = std::to_string(tier.limits().high_watermark) + "%";
    out.push_back(
        {"above-watermark",
         "more than " + mark + " is used: " +
             (leaving == Leaving::Possible ? "files leave it" : "no files leave it by themselves"),
         false});
  }
  if (tier.is_draining()) out.push_back({"draining", "it is being emptied", false});
  return out;
}

}  // namespace sluice
