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

// Filling the page cache takes 0.3 core seconds per GB, O_DIRECT 0.13. On a virtual disk, 12
// threads that fill had 3.2 GB/s, and 4.6 with O_DIRECT into the same memory again and again. A
// disk is fast if threads that fill do not wait for it so many times longer than they work. Judged
// after so many bytes.
constexpr int kMostlyWaits = 20;
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

ReaderNotes::Traits& ReaderNotes::of(dev_t filesystem) {
  const auto found = std::find_if(
      all_.begin(), all_.end(), [&](const Traits& each) { return each.filesystem == filesystem; });
  return found == all_.end() ? all_.emplace_back(Traits{filesystem}) : *found;
}

bool ReaderNotes::refuses_direct(dev_t filesystem) {
  const MutexLock lock(mutex_);
  return of(filesystem).refuses_direct;
}

void ReaderNotes::refused_direct(dev_t filesystem) {
  const MutexLock lock(mutex_);
  of(filesystem).refuses_direct = true;
}

bool ReaderNotes::is_fast(dev_t filesystem) {
  const MutexLock lock(mutex_);
  return of(filesystem).is_fast;
}

void ReaderNotes::filled(dev_t filesystem, std::uint64_t bytes, std::chrono::nanoseconds busy,
                         std::chrono::nanoseconds took) {
  const MutexLock lock(mutex_);
  Traits& traits = of(filesystem);
  traits.bytes += bytes;
  traits.busy += busy;
  traits.took += took;
  if (traits.bytes < kJudged) return;
  if (traits.took < kMostlyWaits * traits.busy) traits.is_fast = true;
  traits.bytes = 0;
  traits.busy = traits.took = {};
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

std::optional<ReaderNotes::Claim> ReaderNotes::begin_direct(const Range& range) {
  const MutexLock lock(mutex_);
  const bool is_taken = std::any_of(direct_.begin(), direct_.end(), [&](const Range& other) {
    return other.file == range.file && other.begin < range.end && range.begin < other.end;
  });
  if (is_taken) return std::nullopt;
  return direct_.insert(direct_.end(), range);
}

void ReaderNotes::end_direct(Claim claim) {
  const MutexLock lock(mutex_);
  direct_.erase(claim);
}

FileReader::FileReader(int fd, const ReaderNotes::Range& range, ReaderNotes& notes,
                       std::function<bool()> has_room)
    : fd_(fd), range_(range), notes_(notes), has_room_(std::move(has_room)) {}

FileReader::~FileReader() {
  if (claim_) notes_.end_direct(*claim_);
}

void FileReader::open_direct() {
  refused_ = true;
  if (notes_.refuses_direct(range_.file.device)) return;
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
    notes_.refused_direct(range_.file.device);
  }
}

// Whether bytes from the disk go through the page cache.
bool FileReader::fills() {
  // The page cache of a stacked file is that of another one, and would be filled twice.
  std::call_once(asked_for_room_, [this] { room_ = has_room_ && !is_stacked(fd_) && has_room_(); });
  if (!room_ || cannot_fill_) return false;
  if (!notes_.is_fast(range_.file.device)) return true;
  std::call_once(claimed_, [this] { claim_ = notes_.begin_direct(range_); });
  return !claim_;
}

FileReader::Way FileReader::way_for(std::uint64_t offset, std::size_t length) {
  // If the kernel can't tell, the read is buffered, which is always correct.
  if (cached_share(fd_, offset, length).value_or(1) >= kCached) {
    warm_ += length;
    return Way::Cached;
  }
  cold_ += length;
  if (fills()) return Way::Filling;
  std::call_once(opened_, [this] { open_direct(); });
  if (refused_) return Way::Cached;
  if (room_) left_room_ = true;
  return Way::Direct;
}

Result<std::size_t> FileReader::read_cached(Way way, std::uint64_t offset, std::byte* to,
                                            std::size_t length) {
  if (way != Way::Filling) return read_buffered(fd_, offset, to, length);
  const auto busy = time_by(CLOCK_THREAD_CPUTIME_ID), began = time_by(CLOCK_MONOTONIC);
  filled_ = true;
  if (!fill_page_cache(fd_, offset, length)) cannot_fill_ = true;
  const std::size_t got = SLUICE_TRY(read_buffered(fd_, offset, to, length));
  notes_.filled(range_.file.device, got, time_by(CLOCK_THREAD_CPUTIME_ID) - busy,
                time_by(CLOCK_MONOTONIC) - began);
  return got;
}

// Reads up to `room` bytes, and at least `enough` unless the file ends before. The rest that
// O_DIRECT does not read, at the end of the file or after a short read, is read through the page
// cache.
Result<std::size_t> FileReader::read_direct(std::uint64_t offset, std::byte* to, std::size_t room,
                                            std::size_t enough) {
  std::size_t got = 0;
  while (got < enough && got % alignment_ == 0) {
    const ssize_t count =
        ::pread(direct_.get(), to + got, room - got, static_cast<off_t>(offset + got));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EINVAL) {  // some filesystems accept O_DIRECT in open() but not here
      refused_ = true;
      notes_.refused_direct(range_.file.device);
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
  direct_now_.store(way == Way::Direct, std::memory_order_relaxed);
  if (way != Way::Direct) return Piece{0, SLUICE_TRY(read_cached(way, offset, slot, length))};
  const std::uint64_t begin = down(offset, alignment_), end = up(offset + length, alignment_);
  const std::size_t skip = offset - begin;
  const std::size_t got = SLUICE_TRY(read_direct(begin, slot, end - begin, skip + length));
  return Piece{skip, got <= skip ? 0 : std::min(got - skip, length)};
}

Result<std::size_t> FileReader::read_to(std::uint64_t offset, std::size_t length, std::byte* to) {
  const Way way = way_for(offset, length);
  if (way != Way::Direct) return read_cached(way, offset, to, length);
  const auto address = reinterpret_cast<std::uintptr_t>(to);
  if ((address - offset) % alignment_ != 0 || length < 2 * alignment_) {
    return read_buffered(fd_, offset, to, length);
  }
  const std::size_t head = up(offset, alignment_) - offset;
  const std::size_t body = down(length - head, alignment_);
  std::size_t got = SLUICE_TRY(read_buffered(fd_, offset, to, head));
  if (got < head) return got;
  got += SLUICE_TRY(read_direct(offset + head, to + head, body, body));
  if (got < head + body) return got;
  return got + SLUICE_TRY(read_buffered(fd_, offset + got, to + got, length - got));
}

}  // namespace sluice
