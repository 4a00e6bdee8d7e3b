// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/cached_reads.hpp"

#include <fcntl.h>
#include <sys/uio.h>

#include "gpu/file_reader.hpp"

namespace sluice {

Result<std::optional<std::size_t>> CachedReads::read(std::uint64_t offset, std::byte* to,
                                                     std::size_t length) {
  std::size_t got = 0;
  while (can_tell_ && got < length) {
    iovec part{to + got, length - got};
    const ssize_t count = ::preadv2(fd_, &part, 1, static_cast<off_t>(offset + got), RWF_NOWAIT);
    if (count == 0) return std::optional(got);
    if (count > 0) got += static_cast<std::size_t>(count);
    if (count > 0 || errno == EINTR) continue;
    if (errno == EAGAIN) {
      ::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(length),
                      POSIX_FADV_WILLNEED);
      return std::optional<std::size_t>();
    }
    // Filesystems that do not support RWF_NOWAIT, such as FUSE.
    if (errno != EOPNOTSUPP && errno != ENOSYS) return Error::last("read the file");
    can_tell_ = false;
  }
  if (got < length) got += SLUICE_TRY(read_buffered(fd_, offset + got, to + got, length - got));
  return std::optional(got);
}

}  // namespace sluice
