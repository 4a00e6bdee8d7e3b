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

constexpr mode_t kMode = 0700;  // intents contain the names of users' files

// The names in `path`. All are read before returning, because callers rename what they list.
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

// Whether a rename failed only because of the directory's place, so that its contents may still be
// moved.
bool is_immovable(int code) {
  return code == EBUSY || code == EACCES || code == EPERM || code == EXDEV || code == EINVAL;
}

}  // namespace

Result<StoreDirectory> StoreDirectory::open(const std::string& path) {
  const bool made = ::mkdir(path.c_str(), kMode) == 0;
  if (!made && errno != EEXIST) return Error::last("make metadata directory");
  // "<path>.broken-..." must be next to the directory itself. So a trailing slash, symlinks and a
  // relative path are resolved first.
  std::error_code failure;
  std::string name = std::filesystem::canonical(path, failure).string();
  if (failure) return Error(failure.value(), "open metadata directory");
  // RocksDB syncs the directory but not its parent. Without this, a crash could lose the whole
  // database, including synced intents.
  if (made) SLUICE_TRY(sync_directory(std::filesystem::path(name).parent_path().string()));
  UniqueFd fd(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return Error::last("open metadata directory");
  // RocksDB has its own lock, but reports "in use" only as text, and releases it before a damaged
  // database is moved. On filesystems that cannot lock a directory (NFS), only RocksDB's lock is
  // used.
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
    return Error(EBUSY, "lock metadata directory");
  }
  // The previous owner may have moved the directory aside between open() and flock().
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
  // Two databases moved within a second need two names; a hundred would indicate another problem.
  for (int n = 2; ::rename(path_.c_str(), target.c_str()) < 0; ++n) {
    if (is_immovable(errno)) return move_contents_aside(stamp);
    const bool taken = errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR;
    if (!taken || n > 100) return Error::last("move broken metadata aside");
    target = path_ + "." + stamp + "-" + std::to_string(n);
  }
  // The old lock is released only after the new one was taken, so that no other process can take
  // the directory in between.
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
