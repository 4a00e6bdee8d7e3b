// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/origin/origin_file.hpp"

#include <fcntl.h>
#include <linux/limits.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "base/file_at.hpp"

namespace sluice {
namespace {

constexpr std::size_t kLongestValue = 256;

std::int64_t in_nanoseconds(const timespec& time) {
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

// Whether the filesystem answers about attributes of this space at all.
bool has_space(int fd, AttributeSpace space) {
  const std::string name = std::string(prefix_of(space)) + "v";
  return getxattr_at(fd, "", name.c_str(), nullptr, 0) >= 0 || errno == ENODATA;
}

}  // namespace

const char* prefix_of(AttributeSpace space) {
  return space == AttributeSpace::Trusted ? "trusted.sluice." : "user.sluice.";
}

Result<AttributeSpace> attribute_space(int fd) {
  if (has_space(fd, AttributeSpace::Trusted)) return AttributeSpace::Trusted;
  if (errno != EOPNOTSUPP) return Error::last("read an extended attribute");
  if (has_space(fd, AttributeSpace::User)) return AttributeSpace::User;
  return Error::last("read an extended attribute");
}

Result<FileStat> OriginFd::stat() const {
  struct stat st {};
  if (::fstat(fd_, &st) < 0) return Error::last("stat a file of the origin");
  return FileStat{.inode = st.st_ino,
                  .size = st.st_size,
                  .mtime = in_nanoseconds(st.st_mtim),
                  .ctime = in_nanoseconds(st.st_ctim)};
}

Result<std::string> OriginFd::get(const std::string& name) const {
  std::array<char, kLongestValue> value{};
  const ssize_t size = getxattr_at(fd_, "", full(name).c_str(), value.data(), value.size());
  if (size < 0) return Error::last("read a stamp");
  return std::string(value.data(), static_cast<std::size_t>(size));
}

// By path, because fsetxattr(2) does not take O_PATH.
Result<void> OriginFd::set(const std::string& name, const std::string& value) {
  if (::setxattr(proc_path(fd_).c_str(), full(name).c_str(), value.data(), value.size(), 0) < 0)
    return Error::last("write a stamp");
  return {};
}

Result<void> OriginFd::remove(const std::string& name) {
  if (::removexattr(proc_path(fd_).c_str(), full(name).c_str()) < 0)
    return Error::last("remove a stamp");
  return {};
}

Result<std::vector<std::string>> OriginFd::names() const {
  // As large as a list can be, so that one call returns all names of one moment.
  std::string list(XATTR_LIST_MAX, '\0');
  const ssize_t size = ::listxattr(proc_path(fd_).c_str(), list.data(), list.size());
  if (size < 0) return Error::last("list stamps");
  const std::string_view prefix = prefix_of(space_);
  std::vector<std::string> names;
  std::string_view rest(list.data(), static_cast<std::size_t>(size));
  while (!rest.empty()) {
    const std::string_view name = rest.substr(0, rest.find('\0'));
    if (name.starts_with(prefix)) names.emplace_back(name.substr(prefix.size()));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
  }
  return names;
}

Result<void> OriginFd::sync() {
  // Not retried: after a failed fsync the kernel may have dropped the dirty pages.
  if (::fsync(fd_) < 0) return Error::last("sync a file of the origin");
  return {};
}

}  // namespace sluice
