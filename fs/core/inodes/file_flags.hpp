// SPDX-License-Identifier: BSD-2-Clause
// The flags that chattr(1) sets: +a (append-only) and +i (immutable).
//
// Threads: thread-safe.
#pragma once

#include <sys/stat.h>

#include "base/result.hpp"
#include "fs/core/inodes/inode.hpp"

namespace sluice {

// Size, blocks and flags of an open file.
Result<struct statx> statx_of(int fd);
bool only_appends(const struct statx& st);
// Sets Inode::append_only from `st`. `state` is the inode's.
void note_flags(Inode& inode, InodeState& state, const struct statx& st);

}  // namespace sluice
