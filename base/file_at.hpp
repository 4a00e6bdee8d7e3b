// SPDX-License-Identifier: BSD-2-Clause
// System calls relative to a directory descriptor that the C library lacks. Pure functions.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

// Opens the directory `path` below `root` ("/a/b", "a/b", or empty for the root itself). Does not
// leave the tree through symlinks or "..".
Result<UniqueFd> open_beneath(int root, const std::string& path);

// getxattr(2) of `name` in `dirfd`, or of `dirfd` itself if `name` is empty. Does not follow
// symlinks.
ssize_t getxattr_at(int dirfd, const char* name, const char* attribute, char* value,
                    std::size_t size);

// The names in the directory, without "." and "..".
Result<std::vector<std::string>> names_in(
    int dirfd, std::size_t most = std::numeric_limits<std::size_t>::max());

// Opens a file with `call(flags)`, one of the open system calls, without blocking on a lease (fcntl
// F_SETLEASE). If another process keeps a lease on the file, fails with EAGAIN; that process is
// asked to give the lease up, and loses it after /proc/sys/fs/lease-break-time seconds. Waits a few
// milliseconds, because our own leases are given up within that time.
template <typename Call>
Result<UniqueFd> open_without_waiting(Call call, int flags, Operation operation) {
  constexpr int kTries = 20;
  constexpr std::chrono::microseconds kPause{100};
  if (!(flags & O_PATH)) flags |= O_NONBLOCK;
  for (int tries = 1;; ++tries) {
    UniqueFd fd(call(flags | O_CLOEXEC));
    if (fd) return fd;
    if (errno != EWOULDBLOCK || tries == kTries) return Error::last(operation);
    std::this_thread::sleep_for(kPause);
  }
}

// A path that leads to the file of a descriptor independently of its name: "/proc/self/fd/7".
std::string proc_path(int fd);

// The present path of that file according to the kernel.
Result<std::string> current_path(int fd);

}  // namespace sluice
