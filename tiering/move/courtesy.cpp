// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/courtesy.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/unique_fd.hpp"

namespace sluice {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kBetweenLooks{200};
// Readings that are further apart are not compared: no move ran between them.
constexpr milliseconds kTooLong{2000};

// Per second. Fewer requests than this come from single commands or system services.
constexpr double kRequests = 100;
constexpr double kDiskRequests = 40;
constexpr double kDiskBytes = 16 << 20;

// What one move costs a disk beside its bytes: directories, inodes, the journal, the record of the
// move.
constexpr double kFileRequests = 32;
constexpr double kFileBytes = 256 << 10;
constexpr double kRequestBytes = 64 << 10;  // of a request of moves, at least

// Moves make way if somebody waited for more than this part of the time.
constexpr double kPressure = 0.1;
// The largest share while others work, even if nobody waits.
constexpr double kMostBesideOthers = 0.5;

// The I/O of moves reaches the disk within about a second; what does not was served by the page
// cache.
constexpr double kStillToCome = 0.75;

std::optional<std::string_view> text_of(const char* path, std::array<char, 512>& buffer) {
  const UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  const ssize_t size = fd ? ::read(fd.get(), buffer.data(), buffer.size()) : -1;
  if (size <= 0) return std::nullopt;
  return std::string_view(buffer.data(), static_cast<std::size_t>(size));
}

// Without this information it is assumed that somebody always waits, so requests alone decide.
microseconds pressure(const char* path) {
  std::array<char, 512> buffer{};
  const auto text = text_of(path, buffer);
  const auto total = text ? parse_pressure(*text) : std::nullopt;
  if (total) return *total;
  return std::chrono::duration_cast<microseconds>(steady_clock::now().time_since_epoch());
}

// The part of `seen` that moves did not cause. Subtracts the part that they did cause from `own`.
double others(double seen, double& own) {
  const double ours = std::min(seen, own);
  own = (own - ours) * kStillToCome;
  return seen - ours;
}

}  // namespace

std::optional<microseconds> parse_pressure(std::string_view text) {
  constexpr std::string_view kLine = "some ", kTotal = "total=";
  if (!text.starts_with(kLine)) return std::nullopt;
  text = text.substr(0, text.find('\n'));
  const std::size_t at = text.find(kTotal);
  if (at == std::string_view::npos) return std::nullopt;
  text.remove_prefix(at + kTotal.size());
  std::uint64_t total = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), total);
  if (error != std::errc()) return std::nullopt;
  return microseconds(total);
}

Courtesy::Reading look_at_system(const Pool& pool, std::uint64_t requests) {
  Courtesy::Reading out;
  out.requests = requests;
  out.waited_disk = pressure("/proc/pressure/io");
  out.waited_cpu = pressure("/proc/pressure/cpu");
  for (const auto& tier : pool) {
    Courtesy::Reading::Disk disk;
    const auto root = tier->root();
    struct stat st {};
    if (root && ::fstat((*root)->get(), &st) == 0)
      disk = {.device = st.st_dev, .counters = disk_counters(st.st_dev)};
    out.disks.push_back(std::move(disk));
  }
  return out;
}

double Courtesy::share(TierIndex from, TierIndex to) {
  const Time now = clock_.monotonic();
  bool looks = false;
  {
    const MutexLock lock(mutex_);
    looks = !is_looking_ && (!last_ || now - looked_ >= kBetweenLooks);
    if (looks) is_looking_ = true;
  }
  std::optional<Reading> reading;  // without the lock: others only want to count
  if (looks) reading = look_();
  const MutexLock lock(mutex_);
  if (looks) {
    is_looking_ = false;
    take(*std::move(reading), now);
  }
  const auto of = [&](TierIndex tier)
                      REQUIRES(mutex_) { return tier < shares_.size() ? shares_[tier] : 1.0; };
  return std::min(of(from), of(to));
}

double Courtesy::least_share() const {
  const MutexLock lock(mutex_);
  return shares_.empty() ? 1.0 : std::ranges::min(shares_);
}

Courtesy::Own& Courtesy::own(TierIndex tier) {
  const dev_t device = last_ && tier < last_->disks.size() ? last_->disks[tier].device : 0;
  return own_[device];
}

void Courtesy::began_file(TierIndex from, TierIndex to) {
  const MutexLock lock(mutex_);
  for (const TierIndex tier : {from, to}) {
    Own& disk = own(tier);
    disk.requests += kFileRequests;
    disk.read += kFileBytes;
    disk.written += kFileBytes;
  }
}

void Courtesy::has_read(TierIndex tier, std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  Own& disk = own(tier);
  disk.read += static_cast<double>(bytes);
  disk.requests += static_cast<double>(bytes) / kRequestBytes;
}

void Courtesy::has_written(TierIndex tier, std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  Own& disk = own(tier);
  disk.written += static_cast<double>(bytes);
  disk.requests += static_cast<double>(bytes) / kRequestBytes;
}

bool Courtesy::is_used_by_others(TierIndex tier, const Reading& now, double seconds) {
  const dev_t device = now.disks[tier].device;
  const auto& after = now.disks[tier].counters;
  const auto& before = last_->disks[tier].counters;
  if (!after || !before || last_->disks[tier].device != device) return false;
  Own& mine = own_[device];
  const auto grown = [&](std::uint64_t DiskCounters::*counter) {
    return static_cast<double>((*after).*counter - (*before).*counter);
  };
  const double requests =
      others(grown(&DiskCounters::reads) + grown(&DiskCounters::writes), mine.requests);
  const double bytes = others(grown(&DiskCounters::read_bytes), mine.read) +
                       others(grown(&DiskCounters::written_bytes), mine.written);
  return requests > kDiskRequests * seconds || bytes > kDiskBytes * seconds;
}

void Courtesy::take(Reading now, Time time) {
  shares_.resize(now.disks.size(), 1.0);
  const auto passed = time - looked_;
  looked_ = time;
  if (!last_ || passed > kTooLong || last_->disks.size() != now.disks.size()) {
    own_.clear();
    last_ = std::move(now);
    return;
  }
  const double seconds = std::chrono::duration<double>(passed).count();
  const bool has_users = static_cast<double>(now.requests - last_->requests) > kRequests * seconds;
  const auto part = [&](microseconds before, microseconds after) {
    return std::chrono::duration<double>(after - before).count() / seconds;
  };
  const bool somebody_waits = part(last_->waited_disk, now.waited_disk) > kPressure ||
                              part(last_->waited_cpu, now.waited_cpu) > kPressure;
  // Tiers on the same disk have the same other users, and the counters of a disk are read once.
  std::map<dev_t, bool> used;
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    const auto tier = static_cast<TierIndex>(i);
    const auto [at, is_new] = used.try_emplace(now.disks[i].device, false);
    if (is_new) at->second = is_used_by_others(tier, now, seconds);
    double& share = shares_[i];
    if (!has_users && !at->second) {
      share = std::min(1.0, share * 2);
    } else if (somebody_waits) {
      share = std::max(kLeast, share / 4);
    } else {
      share = share > kMostBesideOthers ? kMostBesideOthers
                                        : std::min(kMostBesideOthers, share + kLeast / 2);
    }
  }
  last_ = std::move(now);
}

}  // namespace sluice
