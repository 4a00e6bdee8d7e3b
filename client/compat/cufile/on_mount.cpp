// SPDX-License-Identifier: BSD-2-Clause
// In a file of its own, so that a test can replace it.
#include "client/compat/cufile/on_mount.hpp"

#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "client/include/sluice/ioctl.h"

namespace sluice::dropin {

bool is_on_mount(int fd) {
  // Only FUSE files are asked: for a device, the same ioctl number may have another meaning.
  struct statfs volume {};
  struct stat status {};
  if (::fstatfs(fd, &volume) < 0 || volume.f_type != FUSE_SUPER_MAGIC) return false;
  if (::fstat(fd, &status) < 0 || !S_ISREG(status.st_mode)) return false;
  struct sluice_query query {};
  query.kind = SLUICE_BUFFER_MEMFD;  // for host memory, so that the daemon does not need its GPU
  return ::ioctl(fd, SLUICE_IOC_QUERY, &query) == 0 && query.abi_version != 0;
}

}  // namespace sluice::dropin
