// SPDX-License-Identifier: BSD-2-Clause
#include "metadata/store_directory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/clock.hpp"

namespace sluice {
namespace {

constexpr mode_t kMode = 0700;  // intents hold the names of users' files

// The names in `path`, read whole: callers rename what they list.
Result<std::vector<std::string>> names_in(const std::string& path) {
  std::vector<std::string> names;
  std::error_code failure;
  std::filesystem::directory_iterator entry(path, failure);
  while (!failure && entry != std::filesystem::directory_iterator()) {
    names.push_back(entry->path().filename().string());
    entry.increment(failure);
  }
  if (failure) return Error(failure.value(), "list metadata directory");
  return names;
}

Result<void> sync_directory(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) < 0) return Error::last("sync metadata directory");
  return {};
}

std::string utc_time() {
  const std::time_t now = real_clock().seconds();
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  const std::size_t length = std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &parts);
  return {text, length};
}

// Whether only the place stands in the way of a rename, so that moving the contents may still work.
bool is_immovable(int code) {
  return code == EBUSY || code == EACCES || code == EPERM || code == EXDEV || code == EINVAL;
}

}  // namespace

Result<StoreDirectory> StoreDirectory::open(const std::string& path) {
  const bool made = ::mkdir(path.c_str(), kMode) == 0;
  if (!made && errno != EEXIST) return Error::last("make metadata directory");
  // "<path>.broken-..." must land beside the directory itself: not in it for a trailing slash, not
  // on another disk for a symlink, not elsewhere once a daemon has changed its working directory.
  std::error_code failure;
  std::string name = std::filesystem::canonical(path, failure).string();
  if (failure) return Error(failure.value(), "open metadata directory");
  // RocksDB syncs the directory but not its parent: without this, a crash could take the whole
  // database, synced intents included.
  if (made) SLUICE_TRY(sync_directory(std::filesystem::path(name).parent_path().string()));
  UniqueFd fd(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return Error::last("open metadata directory");
  // RocksDB has a lock of its own, but says "in use" only in prose, and lets go before a broken
  // database is moved. Filesystems that cannot lock a directory (NFS) are left to that one.
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
    return Error(EBUSY, "lock metadata directory");
  }
  // Whoever had it may have moved it aside between our open() and our lock.
  struct stat locked {};
  struct stat named {};
  if (::fstat(fd.get(), &locked) < 0) return Error::last("stat metadata directory");
  if (::stat(name.c_str(), &named) < 0 || named.st_ino != locked.st_ino ||
      named.st_dev != locked.st_dev) {
    return Error(EBUSY, "lock metadata directory");
  }
  return StoreDirectory(std::move(name), std::move(fd));
}

Result<StoreDirectory::Contents> StoreDirectory::contents() const {
  Contents found = Contents::Nothing;
  const std::vector<std::string> names = SLUICE_TRY(names_in(path_));
  for (const std::string& name : names) {
    if (name == "CURRENT") return Contents::Database;
    if (name.starts_with("MANIFEST-") || name.ends_with(".sst")) found = Contents::Remains;
  }
  return found;
}

Result<std::string> StoreDirectory::move_aside() {
  const std::string stamp = "broken-" + utc_time();
  std::string target = path_ + "." + stamp;
  // Two within a second need two names; a hundred would mean that something else is wrong.
  for (int n = 2; ::rename(path_.c_str(), target.c_str()) < 0; ++n) {
    if (is_immovable(errno)) return move_contents_aside(stamp);
    const bool taken = errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR;
    if (!taken || n > 100) return Error::last("move broken metadata aside");
    target = path_ + "." + stamp + "-" + std::to_string(n);
  }
  // The old lock is held until the new one is: nobody finds a moment in which both are free.
  *this = SLUICE_TRY(open(path_));
  return target;
}

Result<std::string> StoreDirectory::move_contents_aside(const std::string& name) {
  const std::vector<std::string> names = SLUICE_TRY(names_in(path_));
  std::string target = path_ + "/" + name;
  for (int n = 2; ::mkdir(target.c_str(), kMode) < 0; ++n) {
    if (errno != EEXIST || n > 100) return Error::last("move broken metadata aside");
    target = path_ + "/" + name + "-" + std::to_string(n);
  }
  for (const std::string& old : names) {
    if (old.starts_with("broken-")) continue;
    if (::rename((path_ + "/" + old).c_str(), (target + "/" + old).c_str()) < 0) {
      return Error::last("move broken metadata aside");
    }
  }
  return target;
}

}  // namespace sluice
