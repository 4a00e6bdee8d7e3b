// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/inodes/file_flags.hpp"

#include <fcntl.h>
#include <linux/stat.h>

namespace sluice {

bool only_appends(const struct statx& st) { return (st.stx_attributes & STATX_ATTR_APPEND) != 0; }

Result<struct statx> statx_of(int fd) {
  struct statx st {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_BLOCKS, &st) < 0)
    return Error::last("statx");
  return st;
}

void note_flags(Inode& inode, InodeState& state, const struct statx& st) {
  const bool before = inode.append_only.exchange(only_appends(st));
  // The descriptor may have been opened with O_APPEND.
  if (before && !inode.append_only && state.open) state.open->writer = nullptr;
}

}  // namespace sluice
