// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/kept_times.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <thread>

#include "base/log.hpp"
#include "base/unique_fd.hpp"
#include "tiering/pool/tier.hpp"

namespace sluice {
namespace {

constexpr std::int64_t kNanoseconds = 1'000'000'000;

KeptTimes::Copy& copy_on(KeptTimes& times, unsigned slot) {
  if (const KeptTimes::Copy* found = find_copy(times, slot))
    return times.copies[static_cast<std::size_t>(found - times.copies.data())];
  return times.copies.emplace_back(KeptTimes::Copy{.slot = static_cast<std::uint8_t>(slot)});
}

}  // namespace

timespec to_timespec(std::int64_t nanoseconds) {
  const std::int64_t seconds =
      nanoseconds / kNanoseconds - (nanoseconds % kNanoseconds < 0 ? 1 : 0);
  return {seconds, nanoseconds - seconds * kNanoseconds};
}

std::int64_t coarse_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return nanoseconds(now);
}

void wait_until_past(std::int64_t ctime) {
  // The wait is limited, because the clock may be set back.
  for (std::int64_t waited = 0; coarse_now() <= ctime && waited < kClockStep; waited += 1'000'000)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::int64_t made_at(const struct statx& copy) {
  // Without birth times, ctime is the best estimate.
  return (copy.stx_mask & STATX_BTIME) != 0 ? copy.stx_btime.tv_sec : copy.stx_ctime.tv_sec;
}

std::int64_t moved_at(const KeptTimes& times, unsigned slot) {
  const KeptTimes::Copy* copy = times.is_directory ? nullptr : find_copy(times, slot);
  return copy == nullptr ? 0 : copy->ctime / kNanoseconds;
}

const KeptTimes::Copy* find_copy(const KeptTimes& times, unsigned slot) {
  const auto found = std::find_if(times.copies.begin(), times.copies.end(),
                                  [&](const KeptTimes::Copy& copy) { return copy.slot == slot; });
  return found == times.copies.end() ? nullptr : &*found;
}

void show_times(const KeptTimes& times, unsigned slot, struct stat& st) {
  const KeptTimes::Copy* copy = find_copy(times, slot);
  if (copy == nullptr) return;
  if (copy->is_changing) st.st_mtim = to_timespec(copy->mtime);
  if (copy->is_changing || nanoseconds(st.st_ctim) == copy->ctime)
    st.st_ctim = to_timespec(copy->shown_ctime);
}

KeptTimes times_of_moved(unsigned slot, int copy, const ShownBefore& before) {
  struct stat st {};
  KeptTimes::Copy kept{.slot = static_cast<std::uint8_t>(slot), .birth = before.birth};
  if (before.ctime != kNoTime && ::fstat(copy, &st) == 0) {
    kept.ctime = nanoseconds(st.st_ctim);
    kept.shown_ctime = before.ctime;
  }
  return {.is_directory = false, .copies = {kept}};
}

bool begin_change(KeptTimes& times, unsigned slot, int fd, std::int64_t shown) {
  struct stat st {};
  if (::fstat(fd, &st) < 0) return false;
  KeptTimes::Copy& copy = copy_on(times, slot);
  const std::int64_t ctime = nanoseconds(st.st_ctim);
  if (shown != kNoTime) {
    copy.shown_ctime = shown;
  } else if (copy.ctime != ctime) {
    copy.shown_ctime = ctime;
  }
  copy.ctime = ctime;
  copy.is_changing = true;
  copy.atime = nanoseconds(st.st_atim);
  copy.mtime = nanoseconds(st.st_mtim);
  return true;
}

void end_change(KeptTimes& times, unsigned slot, int fd) {
  KeptTimes::Copy& copy = copy_on(times, slot);
  if (!std::exchange(copy.is_changing, false)) return;
  const std::int64_t mtime = std::exchange(copy.mtime, 0);
  const std::array<timespec, 2> old{to_timespec(std::exchange(copy.atime, 0)), to_timespec(mtime)};
  struct stat st {};
  const bool is_known = ::fstat(fd, &st) == 0;
  // The ctime alone does not tell: before Linux 6.13, a tick of the clock has one for all changes.
  if (is_known && nanoseconds(st.st_ctim) == copy.ctime && nanoseconds(st.st_mtim) == mtime) return;
  const bool is_hidden = is_known && ::futimens(fd, old.data()) == 0 && ::fstat(fd, &st) == 0;
  copy.ctime = is_hidden ? nanoseconds(st.st_ctim) : kNoTime;
}

bool stop_hiding(KeptTimes& times) {
  bool stopped = false;
  for (KeptTimes::Copy& copy : times.copies) {
    if (!copy.is_changing) continue;
    copy = {.slot = copy.slot, .birth = copy.birth};
    stopped = true;
  }
  return stopped;
}

Result<void> change_hidden(Store& store, const Tier& tier, int fd,
                           const std::function<Result<void>()>& act) {
  const auto directory = tier.identity_of(fd, "");
  auto times = directory ? store.times(directory->id) : Result<KeptTimes>(directory.error());
  if (!times) return act();
  const unsigned slot = tier.member().slot;
  times->is_directory = true;
  // The daemon may have died in the middle of a change. Then its times from before still count.
  end_change(*times, slot, fd);
  if (!begin_change(*times, slot, fd)) return act();
  keep_times(store, {{directory->id, *times}});
  auto done = act();
  end_change(*times, slot, fd);
  keep_times(store, {{directory->id, *times}});
  return done;
}

void keep_times(Store& store, const std::vector<std::pair<InodeId, KeptTimes>>& times) {
  if (times.empty()) return;
  if (const auto kept = store.keep_times(times); !kept) {
    log::get().debug("cannot store the times from before moves: files={} errno={}", times.size(),
                     kept.error().code);
  }
}

}  // namespace sluice
