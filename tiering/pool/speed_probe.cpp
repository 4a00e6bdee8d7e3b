// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/speed_probe.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "base/unique_fd.hpp"
#include "tiering/pool/tier.hpp"

namespace sluice {
namespace {

using Seconds = std::chrono::duration<double>;
using std::chrono::steady_clock;

constexpr std::size_t kPiece = 1 << 20;  // of writing, and of reading from beginning to end
constexpr std::size_t kBlock = 4096;     // of reading at random; a multiple of any sector's size
constexpr unsigned kMostReads = 32;
constexpr Seconds kMostTime{0.15};  // for each of the three parts

struct Freed {
  void operator()(void* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<std::byte, Freed>;

Result<UniqueFd> make_file(int directory) {
  constexpr int kFlags = O_RDWR | O_DIRECT | O_CLOEXEC;
  UniqueFd fd(::openat(directory, ".", kFlags | O_TMPFILE, 0600));
  if (fd) return fd;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT) return Error::last("make a file");
  const std::string name = Tier::new_temp_name();
  fd.reset(::openat(directory, name.c_str(), kFlags | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
  if (!fd) return Error::last("make a file");
  if (::unlinkat(directory, name.c_str(), 0) < 0) return Error::last("remove a file");
  return fd;
}

// One reading or writing of a whole buffer.
Result<Seconds> timed(const std::stop_token& stop, std::size_t size, auto call) {
  if (stop.stop_requested()) return Error(ECANCELED, "measure a tier");
  const auto start = steady_clock::now();
  const ssize_t done = call();
  const Seconds took = steady_clock::now() - start;
  if (done < 0) return Error::last("measure a tier");
  if (static_cast<std::size_t>(done) != size) return Error(EIO, "measure a tier");
  return took;
}

// Fills the file with bytes that no disk can compress; returns how many.
Result<std::size_t> fill(int fd, std::byte* buffer, const std::stop_token& stop) {
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i < kPiece; i += sizeof(std::uint64_t))
    *reinterpret_cast<std::uint64_t*>(buffer + i) = random();
  Seconds all{};
  std::size_t size = 0;
  while (size < kProbeBytes && (size < 2 * kPiece || all < kMostTime)) {
    *reinterpret_cast<std::uint64_t*>(buffer) = size;  // no two pieces are equal
    all += SLUICE_TRY(timed(
        stop, kPiece, [&] { return ::pwrite(fd, buffer, kPiece, static_cast<off_t>(size)); }));
    size += kPiece;
  }
  return size;
}

// The median time of reads at random places.
Result<double> read_at_random(int fd, std::byte* buffer, std::size_t size,
                              const std::stop_token& stop) {
  std::mt19937_64 random(2);
  std::vector<double> times;
  Seconds all{};
  while (times.size() < kMostReads && (times.size() < 3 || all < kMostTime)) {
    const auto place = static_cast<off_t>(random() % (size / kBlock) * kBlock);
    const Seconds took =
        SLUICE_TRY(timed(stop, kBlock, [&] { return ::pread(fd, buffer, kBlock, place); }));
    all += took;
    times.push_back(took.count());
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// Bytes per second, without the time until the first byte of each piece.
Result<double> read_in_order(int fd, std::byte* buffer, std::size_t size, double latency,
                             const std::stop_token& stop) {
  Seconds all{};
  std::size_t pieces = 0;
  while (pieces * kPiece < size && (pieces == 0 || all < kMostTime)) {
    all += SLUICE_TRY(timed(stop, kPiece, [&] {
      return ::pread(fd, buffer, kPiece, static_cast<off_t>(pieces * kPiece));
    }));
    ++pieces;
  }
  const double waited = latency * static_cast<double>(pieces);
  // At least half of the time was for bytes: the first read of a disk may wait longer than others.
  const double reading = std::max(all.count() - waited, all.count() / 2);
  return static_cast<double>(pieces * kPiece) / std::max(reading, 1e-6);
}

}  // namespace

Result<TierSpeed> probe_speed(int directory, const std::stop_token& stop) {
  const Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(kPiece, kPiece)));
  if (!buffer) return Error(ENOMEM, "measure a tier");
  const UniqueFd fd = SLUICE_TRY(make_file(directory));
  const std::size_t size = SLUICE_TRY(fill(fd.get(), buffer.get(), stop));
  TierSpeed speed;
  speed.latency = SLUICE_TRY(read_at_random(fd.get(), buffer.get(), size, stop));
  speed.bandwidth = SLUICE_TRY(read_in_order(fd.get(), buffer.get(), size, speed.latency, stop));
  return speed;
}

}  // namespace sluice
