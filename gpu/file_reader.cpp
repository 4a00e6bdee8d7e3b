// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/file_reader.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <ctime>
#include <string>
#include <utility>

#include "gpu/residency.hpp"

namespace sluice {
namespace {

// If at least this share is in the page cache, reading the rest through it costs less than reading
// everything from the disk.
constexpr double kCached = 0.9;

// Filling the page cache takes 0.3 core seconds per GB, O_DIRECT 0.06. If threads are busy with
// that more than they wait for the disk, the disk is faster without. Judged after this many bytes.
constexpr std::uint64_t kJudged = 256 << 20;

constexpr std::uint64_t down(std::uint64_t value, std::uint64_t alignment) {
  return value & ~(alignment - 1);
}
constexpr std::uint64_t up(std::uint64_t value, std::uint64_t alignment) {
  return down(value + alignment - 1, alignment);
}

std::chrono::nanoseconds time_by(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

bool DirectRefusals::contains(dev_t filesystem) const {
  const MutexLock lock(mutex_);
  return std::find(filesystems_.begin(), filesystems_.end(), filesystem) != filesystems_.end();
}

void DirectRefusals::add(dev_t filesystem) {
  if (contains(filesystem)) return;
  const MutexLock lock(mutex_);
  filesystems_.push_back(filesystem);
}

Result<std::size_t> read_buffered(int fd, std::uint64_t offset, std::byte* to, std::size_t length) {
  std::size_t got = 0;
  while (got < length) {
    const ssize_t count = ::pread(fd, to + got, length - got, static_cast<off_t>(offset + got));
    if (count == 0) break;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error::last("read the file");
    got += static_cast<std::size_t>(count);
  }
  return got;
}

FileReader::FileReader(int fd, dev_t filesystem, DirectRefusals& refusals,
                       std::function<bool()> has_room)
    : fd_(fd), filesystem_(filesystem), refusals_(refusals), has_room_(std::move(has_room)) {}

void FileReader::open_direct() {
  refused_ = true;
  if (refusals_.contains(filesystem_)) return;
  alignment_ = direct_alignment(fd_);
  if (std::has_single_bit(alignment_) && alignment_ <= kGrain) {
    // A separate open file: setting O_DIRECT on the caller's would affect everyone who uses it.
    const std::string path = "/proc/self/fd/" + std::to_string(fd_);
    direct_.reset(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    // Other errors, such as too many open files, say nothing about the filesystem.
    if (!direct_ && errno != EINVAL) return;
  }
  if (direct_) {
    refused_ = false;
  } else {
    refusals_.add(filesystem_);
  }
}

// Read-ahead is for one thread that reads in order. Here it would read what other threads are about
// to, in pieces of its own size. Without it, the kernel reads each of our pieces at once. A
// separate open file: the caller's may be used by others. On a stacked file, the page cache would
// be filled twice.
void FileReader::open_filling() {
  if (!has_room_ || is_stacked(fd_) || !has_room_()) return;
  const std::string path = "/proc/self/fd/" + std::to_string(fd_);
  filling_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  fills_ = filling_ && ::posix_fadvise(filling_.get(), 0, 0, POSIX_FADV_RANDOM) == 0;
}

FileReader::Way FileReader::way_for(std::uint64_t offset, std::size_t length) {
  // If the kernel can't tell, the read is buffered, which is always correct.
  const bool cold = cached_share(fd_, offset, length).value_or(1) < kCached;
  cold_now_.store(cold, std::memory_order_relaxed);
  if (!cold) {
    warm_ += length;
    return {fd_};
  }
  cold_ += length;
  std::call_once(opened_filling_, [this] { open_filling(); });
  if (fills_) return {.fd = filling_.get(), .fills = true};
  std::call_once(opened_, [this] { open_direct(); });
  if (refused_) return {fd_};
  return {.fd = direct_.get(), .direct = true};
}

bool FileReader::keeps_up(std::chrono::nanoseconds busy, std::chrono::nanoseconds took,
                          std::size_t bytes) {
  const auto all_busy = busy_ns_ += busy.count();
  const auto all_took = took_ns_ += took.count();
  return (filled_ += bytes) < kJudged || 2 * all_busy < all_took;
}

Result<std::size_t> FileReader::read_cached(const Way& way, std::uint64_t offset, std::byte* to,
                                            std::size_t length) {
  if (!way.fills) return read_buffered(way.fd, offset, to, length);
  const auto busy = time_by(CLOCK_THREAD_CPUTIME_ID), began = time_by(CLOCK_MONOTONIC);
  const std::size_t got = SLUICE_TRY(read_buffered(way.fd, offset, to, length));
  if (!keeps_up(time_by(CLOCK_THREAD_CPUTIME_ID) - busy, time_by(CLOCK_MONOTONIC) - began, got))
    fills_ = false;
  return got;
}

// Reads up to `room` bytes, and at least `enough` unless the file ends before. The rest that
// O_DIRECT does not read, at the end of the file or after a short read, is read through the page
// cache.
Result<std::size_t> FileReader::read_direct(int direct, std::uint64_t offset, std::byte* to,
                                            std::size_t room, std::size_t enough) {
  std::size_t got = 0;
  while (got < enough && got % alignment_ == 0) {
    const ssize_t count = ::pread(direct, to + got, room - got, static_cast<off_t>(offset + got));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EINVAL) {  // some filesystems accept O_DIRECT in open() but not here
      refused_ = true;
      refusals_.add(filesystem_);
      break;
    }
    if (count < 0) return Error::last("read the file directly");
    if (count == 0) break;
    got += static_cast<std::size_t>(count);
  }
  if (got >= enough) return got;
  return got + SLUICE_TRY(read_buffered(fd_, offset + got, to + got, enough - got));
}

Result<FileReader::Piece> FileReader::read_to_slot(std::uint64_t offset, std::size_t length,
                                                   std::byte* slot) {
  const Way way = way_for(offset, length);
  if (!way.direct) return Piece{0, SLUICE_TRY(read_cached(way, offset, slot, length))};
  const std::uint64_t begin = down(offset, alignment_), end = up(offset + length, alignment_);
  const std::size_t skip = offset - begin;
  const std::size_t got = SLUICE_TRY(read_direct(way.fd, begin, slot, end - begin, skip + length));
  return Piece{skip, got <= skip ? 0 : std::min(got - skip, length)};
}

Result<std::size_t> FileReader::read_to(std::uint64_t offset, std::size_t length, std::byte* to) {
  const Way way = way_for(offset, length);
  if (!way.direct) return read_cached(way, offset, to, length);
  const auto address = reinterpret_cast<std::uintptr_t>(to);
  if ((address - offset) % alignment_ != 0 || length < 2 * alignment_) {
    return read_buffered(fd_, offset, to, length);
  }
  const std::size_t head = up(offset, alignment_) - offset;
  const std::size_t body = down(length - head, alignment_);
  std::size_t got = SLUICE_TRY(read_buffered(fd_, offset, to, head));
  if (got < head) return got;
  got += SLUICE_TRY(read_direct(way.fd, offset + head, to + head, body, body));
  if (got < head + body) return got;
  return got + SLUICE_TRY(read_buffered(fd_, offset + got, to + got, length - got));
}

}  // namespace sluice
