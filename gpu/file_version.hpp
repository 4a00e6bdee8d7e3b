// SPDX-License-Identifier: BSD-2-Clause
// FileVersion identifies a file and its current content, by the values of fstat(2).
#pragma once

#include <sys/stat.h>

#include <cstdint>

namespace sluice {

struct FileId {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const FileId&) const = default;
};

struct FileVersion {
  FileId id;
  std::uint64_t size = 0;
  std::int64_t modified = 0, changed = 0;  // nanoseconds since 1970
  bool operator==(const FileVersion&) const = default;

  static std::int64_t nanoseconds(const timespec& time) {
    return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
  }
  static FileVersion of(const struct stat& stat) {
    return {{stat.st_dev, stat.st_ino},
            static_cast<std::uint64_t>(stat.st_size),
            nanoseconds(stat.st_mtim),
            nanoseconds(stat.st_ctim)};
  }
  // Whether the open file still is this version.
  bool is_of(int fd) const {
    struct stat stat {};
    return ::fstat(fd, &stat) == 0 && of(stat) == *this;
  }
};

}  // namespace sluice
