// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/bench/move_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "tools/lab/bench/fixtures.hpp"
#include "tools/lab/bench/syscalls.hpp"

namespace sluice::tools::lab::bench {
namespace {
constexpr std::uint64_t kExtent = 64 * kKiB;  // of data in a sparse file
}  // namespace

std::vector<FileSet> file_sets(bool quick) {
  if (quick) {
    return {{"large", "4 files of 16 MiB", 4, 16 * kMiB, 1},
            {"mid", "100 files of 256 KiB", 100, 256 * kKiB, 1},
            {"small", "400 files of 4 KiB", 400, 4 * kKiB, 1},
            {"sparse", "4 files, 2 MiB in 64 MiB", 4, 2 * kMiB, 32}};
  }
  return {{"large", "8 files of 128 MiB", 8, 128 * kMiB, 1},
          {"mid", "1000 files of 256 KiB", 1000, 256 * kKiB, 1},
          {"small", "4000 files of 4 KiB", 4000, 4 * kKiB, 1},
          {"sparse", "16 files, 8 MiB in 256 MiB", 16, 8 * kMiB, 32}};
}

void make_files(const std::string& directory, const FileSet& set) {
  make_directory(directory);
  std::vector<std::byte> block(std::min(set.bytes, set.stretch > 1 ? kExtent : kMiB));
  std::uint64_t state = 1;
  for (const std::string& name : file_names(set.files)) {
    const std::string path = directory + "/" + name;
    UniqueFd fd = open_file(path, O_WRONLY | O_CREAT | O_EXCL);
    for (std::uint64_t done = 0; done < set.bytes; done += block.size()) {
      for (std::size_t i = 0; i < block.size(); i += 8) {
        state = state * 6364136223846793005 + 1442695040888963407;  // so that no block is all zero
        std::memcpy(&block[i], &state, sizeof state);
      }
      write_at(fd, block, static_cast<off_t>(done * set.stretch), path);
    }
    if (::ftruncate(fd.get(), static_cast<off_t>(set.bytes * set.stretch)) < 0)
      throw_failure("resize", path);
    close_file(std::move(fd), path);
  }
}

std::size_t count_files(const std::string& directory) {
  std::error_code error;
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(directory, error)) {
    ++count;
  }
  return count;
}

}  // namespace sluice::tools::lab::bench
