// SPDX-License-Identifier: BSD-2-Clause
// What movebench moves: sets of files. Failures are thrown.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::tools::lab::bench {

inline constexpr std::uint64_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;

// Files that move together.
struct FileSet {
  std::string name;
  std::string title;
  unsigned files;
  std::uint64_t bytes;    // of data in each
  std::uint64_t stretch;  // 1: no holes; otherwise each block of data is followed by a hole, and
                          // the file is this many times longer
  double data() const { return double(files) * double(bytes); }
};

std::vector<FileSet> file_sets(bool quick);

// Makes the directory and the files in it, of bytes that are not zero.
void make_files(const std::string& directory, const FileSet& set);
std::size_t count_files(const std::string& directory);

}  // namespace sluice::tools::lab::bench
