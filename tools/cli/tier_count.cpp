// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/tier_count.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace sluice::tools::cli {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};
using Directory = std::unique_ptr<DIR, CloseDirectory>;

Directory open_directory(int parent, const char* name) {
  const int fd = ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return nullptr;
  Directory directory(::fdopendir(fd));
  if (!directory) ::close(fd);
  return directory;
}

constexpr std::uint64_t kEntriesBetweenChecks = 256;  // of the clock and calls of `progress`

}  // namespace

TierCount count_tier(const std::string& path, std::chrono::steady_clock::time_point deadline,
                     const std::function<void(const TierCount&)>& progress) {
  TierCount count;
  std::set<std::pair<dev_t, ino_t>> linked;  // hard-linked files that have been counted
  std::uint64_t seen = 0;
  bool skipped = false;

  // Depth first with a descriptor for each level, because a path may be longer than PATH_MAX.
  std::vector<Directory> open;
  open.push_back(open_directory(AT_FDCWD, (path + "/").c_str()));
  if (!open.back()) return count;
  while (!open.empty()) {
    DIR* here = open.back().get();
    const dirent* entry = ::readdir(here);
    if (entry == nullptr) {
      open.pop_back();
      continue;
    }
    const char* name = entry->d_name;
    if (std::strcmp(name, ".") == 0 || std::strcmp(name, "..") == 0) continue;
    if (open.size() == 1 && std::strcmp(name, ".sluice") == 0) continue;
    if (++seen % kEntriesBetweenChecks == 0) {
      if (std::chrono::steady_clock::now() >= deadline) return count;
      progress(count);
    }
    struct stat status {};
    if (::fstatat(::dirfd(here), name, &status, AT_SYMLINK_NOFOLLOW) < 0) {
      skipped = skipped || errno != ENOENT;  // it may have been removed meanwhile
      continue;
    }
    if (S_ISDIR(status.st_mode)) {
      if (Directory below = open_directory(::dirfd(here), name)) {
        open.push_back(std::move(below));
      } else {
        skipped = skipped || errno != ENOENT;
      }
      continue;
    }
    if (status.st_nlink > 1 && !linked.emplace(status.st_dev, status.st_ino).second) continue;
    ++count.files;
    if (S_ISREG(status.st_mode)) count.bytes += static_cast<std::uint64_t>(status.st_size);
  }
  count.complete = !skipped;
  return count;
}

}  // namespace sluice::tools::cli
