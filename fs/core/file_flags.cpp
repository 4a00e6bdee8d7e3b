// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/file_flags.hpp"

#include <fcntl.h>
#include <linux/stat.h>

namespace sluice {

bool only_appends(const struct statx& st) { return (st.stx_attributes & STATX_ATTR_APPEND) != 0; }

Result<struct statx> look_at(int fd) {
  struct statx st {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_BLOCKS, &st) < 0)
    return Error::last("statx");
  return st;
}

// REQUIRES: the inode's mutex is held.
void note_flags(const InodePtr& inode, const struct statx& st) NO_THREAD_SAFETY_ANALYSIS {
  const bool before = inode->append_only.exchange(only_appends(st));
  // Our descriptor may be one that only appends.
  if (before && !inode->append_only && inode->open) inode->open->writer = nullptr;
}

}  // namespace sluice
