// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/residency.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

namespace sluice {
namespace {

// Neither the call nor the fields are in the headers of the systems we build on. cachestat has this
// number on every architecture; the offsets in struct statx are part of the kernel's ABI.
constexpr long kCachestat = 451;
struct CachestatRange {
  std::uint64_t offset, length;
};
struct Cachestat {
  std::uint64_t cached, dirty, writeback, evicted, recently_evicted;
};
constexpr unsigned kStatxDirectAlignment = 0x2000;
constexpr std::size_t kStatxSize = 256, kMemoryAlignmentAt = 0x98, kOffsetAlignmentAt = 0x9c;

std::uint64_t page_size() {
  static const auto size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

// A mapping of such a file is a mapping of the lower file. The kernel reports the pages only to
// users who own the file or may write it; for others all pages seem to be there.
std::optional<double> mapped_share(int fd, std::uint64_t offset, std::uint64_t length) {
  const std::uint64_t begin = offset / page_size() * page_size();
  const std::size_t size = offset + length - begin;
  void* at = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(begin));
  if (at == MAP_FAILED) return std::nullopt;
  std::vector<unsigned char> pages((size + page_size() - 1) / page_size());
  const bool told = ::mincore(at, size, pages.data()) == 0;
  ::munmap(at, size);
  if (!told) return std::nullopt;
  const auto there = std::count_if(pages.begin(), pages.end(), [](auto page) { return page & 1; });
  return static_cast<double>(there) / static_cast<double>(pages.size());
}

}  // namespace

// The pages belong to the lower file, but the kernel would count those of the upper one, which has
// few or none.
bool is_stacked(int fd) {
  struct stat stat {};
  if (::fstat(fd, &stat) != 0) return false;
  // The last result of fstatfs, which is a request to the daemon on FUSE. The result and its device
  // are in one word, so no lock is needed; no real device is 0.
  static std::atomic<std::uint64_t> last{0};
  const std::uint64_t known = last.load(std::memory_order_relaxed);
  if (known >> 1 == stat.st_dev) return known & 1;
  struct statfs volume {};
  if (::fstatfs(fd, &volume) != 0) return false;
  const bool stacked = volume.f_type == FUSE_SUPER_MAGIC || volume.f_type == OVERLAYFS_SUPER_MAGIC;
  last.store(static_cast<std::uint64_t>(stat.st_dev) << 1 | stacked, std::memory_order_relaxed);
  return stacked;
}

std::optional<double> cached_share(int fd, std::uint64_t offset, std::uint64_t length) {
  if (length == 0) return 1.0;
  const std::uint64_t page = page_size();
  CachestatRange range{offset, length};
  Cachestat answer{};
  if (::syscall(kCachestat, fd, &range, &answer, 0) != 0) return std::nullopt;
  const std::uint64_t pages = (offset + length - 1) / page - offset / page + 1;
  if (answer.cached < pages && is_stacked(fd)) return mapped_share(fd, offset, length);
  return std::min(1.0, static_cast<double>(answer.cached) / static_cast<double>(pages));
}

// A mapping with huge pages makes the kernel read 4 MiB at once, into folios of 2 MiB. read(2) in
// pieces and readahead(2) fill single pages. On an H200's host, filling took 0.2 core seconds per
// GB with large folios and 0.5 to 1.3 with single pages; later reads from them took 0.16 and 0.45.
bool fill_page_cache(int fd, std::uint64_t offset, std::uint64_t length) {
  const std::uint64_t begin = offset / page_size() * page_size();
  const std::size_t size = offset + length - begin;
  void* const at = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(begin));
  if (at == MAP_FAILED) return false;
  // A machine that refuses this reads smaller folios.
  static_cast<void>(::madvise(at, size, MADV_HUGEPAGE));
  const bool can = ::madvise(at, size, MADV_POPULATE_READ) == 0 || errno != EINVAL;
  ::munmap(at, size);
  return can;
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
