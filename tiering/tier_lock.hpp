// SPDX-License-Identifier: BSD-2-Clause
// One daemon at a time has a tier: the file .sluice/lock in its root, locked as long as its
// descriptor is open, and holding a line on who that is. Threads: pure functions.
#pragma once

#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

// Takes the lock of the tier at `root_fd` for `user` ("mounted at /mnt"). EBUSY if another process
// has it: the error's detail says which. A daemon whose mount is gone already is waited for;
// umount(8) returns before it ends. REQUIRES: the tier has its marker.
Result<UniqueFd> lock_tier(int root_fd, const std::string& user);

}  // namespace sluice
