// SPDX-License-Identifier: BSD-2-Clause
// What kind of storage a filesystem is on, and how fast such storage usually is: for tiers whose
// speed was not measured. Threads: pure functions, except that they read sysfs.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "tiering/tier_speed.hpp"

namespace sluice {

enum class StorageKind : std::uint8_t {
  Memory,
  Nvme,
  Ssd,
  Virtual,  // a disk of a virtual machine or a loop device; it may call itself rotational
  Hdd,
  Network,
  Unknown,
};
const char* name_of(StorageKind kind);  // "memory", "NVMe", "SSD", "hard disk", ...

// `filesystem` as Tier::filesystem() names it, `device` its st_dev. A volume of several disks is of
// the slowest disk's kind. `sysfs` is another directory in tests.
StorageKind storage_kind(std::string_view filesystem, dev_t device,
                         const std::string& sysfs = "/sys");

// The usual speed of such storage.
TierSpeed usual_speed(StorageKind kind);

}  // namespace sluice
