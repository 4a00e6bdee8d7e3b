// SPDX-License-Identifier: BSD-2-Clause
// The flags that chattr(1) sets: +a and +i. Threads: functions without state.
#pragma once

#include <sys/stat.h>

#include "base/result.hpp"
#include "fs/core/inode.hpp"

namespace sluice {

// Size, blocks and flags of an open file.
Result<struct statx> look_at(int fd);
bool only_appends(const struct statx& st);
// Remembers whether the file is append-only. `state` is the inode's.
void note_flags(Inode& inode, InodeState& state, const struct statx& st);

}  // namespace sluice
