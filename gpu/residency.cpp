// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/residency.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace sluice {
namespace {

// Neither call nor fields are in the headers of the systems we build on. cachestat has this number
// on every architecture; the offsets in struct statx are of the kernel's ABI.
constexpr long kCachestat = 451;
struct CachestatRange {
  std::uint64_t offset, length;
};
struct Cachestat {
  std::uint64_t cached, dirty, writeback, evicted, recently_evicted;
};
constexpr unsigned kStatxDirectAlignment = 0x2000;
constexpr std::size_t kStatxSize = 256, kMemoryAlignmentAt = 0x98, kOffsetAlignmentAt = 0x9c;

// Files that are read through another filesystem's: the pages are there, and the kernel counts
// those of the upper one, which has none.
bool is_stacked(int fd) {
  struct statfs volume {};
  if (::fstatfs(fd, &volume) != 0) return false;
  return volume.f_type == FUSE_SUPER_MAGIC || volume.f_type == OVERLAYFS_SUPER_MAGIC;
}

}  // namespace

std::optional<double> cached_share(int fd, std::uint64_t offset, std::uint64_t length) {
  if (length == 0) return 1.0;
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  CachestatRange range{offset, length};
  Cachestat answer{};
  if (::syscall(kCachestat, fd, &range, &answer, 0) != 0) return std::nullopt;
  if (answer.cached == 0 && is_stacked(fd)) return std::nullopt;
  const std::uint64_t pages = (offset + length - 1) / page - offset / page + 1;
  return std::min(1.0, static_cast<double>(answer.cached) / static_cast<double>(pages));
}

std::uint32_t direct_alignment(int fd) {
  alignas(8) std::array<char, kStatxSize> statx{};
  if (::syscall(SYS_statx, fd, "", AT_EMPTY_PATH, kStatxDirectAlignment, statx.data()) != 0) {
    return 4096;
  }
  std::uint32_t mask = 0, memory = 0, offset = 0;
  std::memcpy(&mask, statx.data(), sizeof mask);
  std::memcpy(&memory, statx.data() + kMemoryAlignmentAt, sizeof memory);
  std::memcpy(&offset, statx.data() + kOffsetAlignmentAt, sizeof offset);
  return mask & kStatxDirectAlignment ? std::max(memory, offset) : 4096;
}

}  // namespace sluice
