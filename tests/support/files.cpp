// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "base/unique_fd.hpp"

namespace sluice::test {

void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

void write_file(const std::string& path, std::string_view content, mode_t mode) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
  if (!fd) fail("create " + path);
  while (!content.empty()) {
    const ssize_t written = ::write(fd.get(), content.data(), content.size());
    if (written < 0) fail("write " + path);
    content.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string read_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) fail("open " + path);
  std::string content;
  char chunk[65536];
  for (;;) {
    const ssize_t got = ::read(fd.get(), chunk, sizeof chunk);
    if (got < 0) fail("read " + path);
    if (got == 0) return content;
    content.append(chunk, static_cast<std::size_t>(got));
  }
}

std::string pattern(std::size_t size, std::uint64_t seed) {
  std::string out(size, '\0');
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::size_t i = 0; i < size; i += sizeof state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(out.data() + i, &state, std::min(sizeof state, size - i));
  }
  return out;
}

struct stat lstat_of(const std::string& path) {
  struct stat out {};
  if (::lstat(path.c_str(), &out) < 0) fail("lstat " + path);
  return out;
}

bool exists(const std::string& path) {
  struct stat out {};
  if (::lstat(path.c_str(), &out) == 0) return true;
  if (errno != ENOENT && errno != ENOTDIR) fail("lstat " + path);
  return false;
}

std::optional<std::string> xattr_of(const std::string& path, const std::string& name) {
  std::string value(65536, '\0');
  const ssize_t size = ::lgetxattr(path.c_str(), name.c_str(), value.data(), value.size());
  if (size < 0 && errno == ENODATA) return std::nullopt;
  if (size < 0) fail("getxattr " + name + " of " + path);
  value.resize(static_cast<std::size_t>(size));
  return value;
}

std::vector<std::string> names_in(const std::string& directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(directory.c_str()), ::closedir);
  if (!stream) fail("opendir " + directory);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  if (errno != 0) fail("readdir " + directory);
  std::ranges::sort(names);
  return names;
}

std::string errno_name(int code) {
  if (code == 0) return "ok";
  const char* name = ::strerrorname_np(code);
  return name ? name : "errno " + std::to_string(code);
}

}  // namespace sluice::test
