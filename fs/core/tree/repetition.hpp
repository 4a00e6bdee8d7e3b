// SPDX-License-Identifier: BSD-2-Clause
// For requests that are repeated (fs/core/inodes/kernel_request.hpp): finds out on the tiers what
// the first attempt has done. While a request changes names in a directory, the kernel lets no
// other request change them, so what is found there now is the work of the first attempt.
//
// Threads: thread-safe.
#pragma once

#include <sys/types.h>

#include <optional>

#include "base/result.hpp"
#include "fs/core/inodes/kernel_request.hpp"
#include "fs/core/tree/directory_tree.hpp"

namespace sluice {

// Stores the time of day, unless an earlier attempt has. Must be called before a name is made.
void remember_beginning(const KernelRequest& request);

// What the first attempt made with this name. It must have that type and owner, and must not be
// older than the request. Nothing if there is no such file, or if the request is not a repetition.
Result<std::optional<Located>> made_by_first_attempt(const OpenCopies& directory, const char* name,
                                                     mode_t type, uid_t owner,
                                                     const KernelRequest& request);

// Whether `name` means the file or directory `id` in any copy of the directory.
Result<bool> has_identity(const OpenCopies& directory, const char* name, InodeId id);

}  // namespace sluice
