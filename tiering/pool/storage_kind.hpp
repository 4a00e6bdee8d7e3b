// SPDX-License-Identifier: BSD-2-Clause
// What kind of storage a filesystem is on, for tiers whose speed was not measured. Threads: pure
// functions, except that they read sysfs.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "tiering/choose/tier_speed.hpp"

namespace sluice {

const char* name_of(StorageKind kind);  // "memory", "NVMe", "SSD", "hard disk", ...

// `filesystem` as Tier::filesystem() names it, `device` its st_dev. A volume of several disks is of
// the slowest disk's kind. `sysfs` is another directory in tests.
StorageKind storage_kind(std::string_view filesystem, dev_t device,
                         const std::string& sysfs = "/sys");

}  // namespace sluice
