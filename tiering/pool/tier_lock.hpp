// SPDX-License-Identifier: BSD-2-Clause
// The lock that gives a tier to one daemon at a time: the file .sluice/lock in its root, locked
// while its descriptor is open. The file contains one line that identifies the owner. Threads: pure
// functions.
#pragma once

#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

// Takes the lock of the tier at `root_fd` for `user` ("mounted at /mnt"). Fails with EBUSY if
// another process has it; the error's detail then says which. If the owner's mount is gone already,
// waits for the owner to exit, because umount(8) returns before the daemon exits.
// ENOENT if the tier has no marker yet.
Result<UniqueFd> lock_tier(int root_fd, const std::string& user);

}  // namespace sluice
