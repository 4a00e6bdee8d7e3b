// SPDX-License-Identifier: BSD-2-Clause
#include "base/file_at.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string_view>

namespace sluice {

Result<UniqueFd> open_beneath(int root, const std::string& path) {
  constexpr int kAttempts = 100;
  open_how how{};
  how.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  const char* relative = path.c_str();
  while (*relative == '/') ++relative;
  UniqueFd fd;
  // EAGAIN: a rename on the machine raced with "..", and the kernel cannot tell where that leads.
  for (int attempt = 0; !fd && (attempt == 0 || (errno == EAGAIN && attempt < kAttempts));
       ++attempt) {
    fd.reset(static_cast<int>(
        ::syscall(SYS_openat2, root, *relative == '\0' ? "." : relative, &how, sizeof how)));
  }
  if (!fd) return Error::last("open directory");
  return fd;
}

// Linux 6.13 added getxattrat(2); before that, the file is reached through /proc/self/fd.
ssize_t getxattr_at(int dirfd, const char* name, const char* attribute, char* value,
                    std::size_t size) {
  struct {
    alignas(8) std::uint64_t value;
    std::uint32_t size, flags;
  } args{reinterpret_cast<std::uintptr_t>(value), static_cast<std::uint32_t>(size), 0};
  constexpr long kGetxattrat = 464;
  static std::atomic<bool> missing{false};  // once true, it stays true
  if (*name != '\0' && !missing.load(std::memory_order_relaxed)) {
    const long got =
        ::syscall(kGetxattrat, dirfd, name, AT_SYMLINK_NOFOLLOW, attribute, &args, sizeof args);
    if (got >= 0 || errno != ENOSYS) return got;
    missing = true;
  }
  std::array<char, 64 + 256> path{};
  std::snprintf(path.data(), path.size(),
                *name == '\0' ? "/proc/self/fd/%d" : "/proc/self/fd/%d/%s", dirfd, name);
  return *name == '\0' ? ::getxattr(path.data(), attribute, value, size)
                       : ::lgetxattr(path.data(), attribute, value, size);
}

Result<std::vector<std::string>> names_in(int dirfd, std::size_t most) {
  UniqueFd fd(::openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(fd ? ::fdopendir(fd.get()) : nullptr,
                                                   ::closedir);
  if (!stream) return Error::last("open directory");
  fd.release();
  std::vector<std::string> names;
  while (names.size() < most) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (entry == nullptr && errno != 0) return Error::last("read directory");
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return names;
}

std::string proc_path(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

Result<std::string> current_path(int fd) {
  std::string path(PATH_MAX, '\0');
  const ssize_t size = ::readlink(proc_path(fd).c_str(), path.data(), path.size());
  if (size < 0) return Error::last("read the path of a descriptor");
  path.resize(static_cast<std::size_t>(size));
  return path;
}

}  // namespace sluice
