// SPDX-License-Identifier: BSD-2-Clause
// What the kernel reports as wrong with a disk or its filesystem. Threads: pure functions.
#pragma once

#include <sys/types.h>

#include <string>

namespace sluice {

// What is wrong with the disk or filesystem of `device`: an array that lost a disk, errors that the
// filesystem found. Empty if nothing is known.
std::string disk_damage(dev_t device);

// Whether the filesystem writes nothing any more because it found errors, although it is mounted
// writable. It may be called every second.
bool has_given_up(dev_t device);

}  // namespace sluice
