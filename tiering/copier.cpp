// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/copier.hpp"

#include <fcntl.h>
#include <linux/limits.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <string>

#include "tiering/identity.hpp"

namespace sluice {
namespace {

constexpr std::size_t kChunk = 1 << 20;

Result<void> copy_range(int from, int to, off_t offset, off_t end, char* buffer) {
  while (offset < end) {
    const auto want = static_cast<std::size_t>(std::min<off_t>(end - offset, kChunk));
    const ssize_t got = ::pread(from, buffer, want, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::last("read source");
    if (got == 0) return {};  // truncated meanwhile; the caller decides what that means
    for (ssize_t done = 0; done < got;) {
      const ssize_t put =
          ::pwrite(to, buffer + done, static_cast<std::size_t>(got - done), offset + done);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return Error::last("write copy");
      done += put;
    }
    offset += got;
  }
  return {};
}

Result<std::set<std::string>> xattr_names(int fd) {
  std::string list;
  for (;;) {
    const ssize_t size = ::flistxattr(fd, nullptr, 0);
    if (size < 0) {
      if (errno == EOPNOTSUPP) return std::set<std::string>{};
      return Error::last("list xattrs");
    }
    list.resize(static_cast<std::size_t>(size));
    const ssize_t got = ::flistxattr(fd, list.data(), list.size());
    if (got < 0 && errno == ERANGE) continue;
    if (got < 0) return Error::last("list xattrs");
    list.resize(static_cast<std::size_t>(got));
    break;
  }
  std::set<std::string> names;
  for (std::size_t at = 0; at < list.size();) {
    const std::string name = &list[at];
    at += name.size() + 1;
    names.insert(name);
  }
  names.erase(kIdentityXattr);
  return names;
}

Result<void> copy_xattrs(int from, int to) {
  const auto wanted = SLUICE_TRY(xattr_names(from));
  const auto present = SLUICE_TRY(xattr_names(to));
  for (const std::string& name : present) {
    if (!wanted.contains(name) && ::fremovexattr(to, name.c_str()) < 0 && errno != ENODATA) {
      return Error::last("remove xattr");
    }
  }
  std::string value;
  for (const std::string& name : wanted) {
    value.resize(XATTR_SIZE_MAX);
    const ssize_t size = ::fgetxattr(from, name.c_str(), value.data(), value.size());
    if (size < 0) return Error::last("read xattr");
    if (::fsetxattr(to, name.c_str(), value.data(), static_cast<std::size_t>(size), 0) < 0) {
      return Error::last("write xattr");
    }
  }
  return {};
}

}  // namespace

Result<void> copy_data(int from, int to) {
  struct stat st {};
  if (::fstat(from, &st) < 0) return Error::last("stat source");
  const auto buffer = std::make_unique<char[]>(kChunk);
  for (off_t at = 0; at < st.st_size;) {
    const off_t data = ::lseek(from, at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;  // only a hole is left
    if (data < 0) return Error::last("seek data");
    const off_t hole = ::lseek(from, data, SEEK_HOLE);
    if (hole < 0) return Error::last("seek hole");
    SLUICE_TRY(copy_range(from, to, data, hole, buffer.get()));
    at = hole;
  }
  if (::ftruncate(to, st.st_size) < 0) return Error::last("size copy");
  return {};
}

Result<void> copy_attributes(int from, int to) {
  struct stat st {};
  if (::fstat(from, &st) < 0) return Error::last("stat source");
  // Owner first: chown clears setuid and capabilities. Then mode, then xattrs (an ACL also writes
  // the mode's group bits, to the value it has on the source), times last, because everything
  // before moves ctime only.
  if (::fchown(to, st.st_uid, st.st_gid) < 0) return Error::last("chown copy");
  if (::fchmod(to, st.st_mode & 07777) < 0) return Error::last("chmod copy");
  SLUICE_TRY(copy_xattrs(from, to));
  const std::array<timespec, 2> times{st.st_atim, st.st_mtim};
  if (::futimens(to, times.data()) < 0) return Error::last("set times of copy");
  return {};
}

}  // namespace sluice
