// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/tier_lock.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/vfs.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>

#include "tiering/pool/marker.hpp"

namespace sluice {
namespace {

constexpr std::string_view kMountedAt = "mounted at ";
constexpr auto kOwnerTimeout = std::chrono::seconds(30);

// Whether the daemon that wrote `owner` into the lock file still has its mount.
bool is_mounted(std::string_view owner) {
  const auto at = owner.find(kMountedAt);
  if (at == std::string_view::npos) return true;
  struct statfs fs {};
  const std::string mountpoint(owner.substr(at + kMountedAt.size()));
  return ::statfs(mountpoint.c_str(), &fs) < 0 || fs.f_type == FUSE_SUPER_MAGIC;
}

}  // namespace

Result<UniqueFd> lock_tier(int root_fd, const std::string& user) {
  const std::string name = std::string(kPrivateDirectory) + "/lock";
  UniqueFd lock(::openat(root_fd, name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return Error::last("open .sluice/lock");
  const auto deadline = std::chrono::steady_clock::now() + kOwnerTimeout;
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) < 0) {
    std::string owner(4200, '\0');
    const ssize_t got = ::pread(lock.get(), owner.data(), owner.size(), 0);
    owner.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (owner.empty()) owner = "another process";
    if (is_mounted(owner) || std::chrono::steady_clock::now() > deadline) {
      return Error(EBUSY, "lock .sluice/lock", std::move(owner));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const std::string line = "pid " + std::to_string(::getpid()) + ", " + user;
  if (::ftruncate(lock.get(), 0) == 0) {
    // Only informative, so a failure does not matter.
    [[maybe_unused]] const ssize_t wrote = ::pwrite(lock.get(), line.data(), line.size(), 0);
  }
  return lock;
}

}  // namespace sluice
