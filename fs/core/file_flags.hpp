// SPDX-License-Identifier: BSD-2-Clause
// What chattr set on a file: +a and +i. Threads: any.
#pragma once

#include <sys/stat.h>

#include "base/result.hpp"
#include "fs/core/inode.hpp"

namespace sluice {

// Size, blocks and flags of an open file.
Result<struct statx> look_at(int fd);
bool only_appends(const struct statx& st);
// Remembers whether the file is append-only. REQUIRES: the inode's mutex is held.
void note_flags(const InodePtr& inode, const struct statx& st);

}  // namespace sluice
