// SPDX-License-Identifier: BSD-2-Clause
// How KeptTimes hide a move. A ctime cannot be set: a file's copy on another tier gets a new one,
// and so does a directory when a move adds or removes a name in it. KeptTimes therefore have, for
// each copy, the ctime that the move caused and the ctime to show instead.
//
// A crash loses nothing of this. The intent of a move has the file's times (ShownBefore) until the
// store has the KeptTimes. A change of a directory is in the store before it is made.
//
// Threads: functions without state.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.hpp"
#include "metadata/store.hpp"

namespace sluice {

class Tier;

// A ctime that no copy has: the copy's own times are shown.
inline constexpr std::int64_t kNoTime = 0;

inline std::int64_t nanoseconds(const timespec& time) {
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}
timespec to_timespec(std::int64_t nanoseconds);

// A file arrived on its tier when its copy there was made, or when a move of it ended, if that was
// later: a copy may have been there before as a twin, or copying may have taken long. In seconds
// since the epoch; 0 if no move to the tier with this slot is known.
std::int64_t made_at(const struct statx& copy);
std::int64_t moved_at(const KeptTimes& times, unsigned slot);

// nullptr if there is none.
const KeptTimes::Copy* find_copy(const KeptTimes& times, unsigned slot);

// Replaces the times in `st`, which the tier reported for the copy, by the times to show.
void show_times(const KeptTimes& times, unsigned slot, struct stat& st);

// The times of a file that users saw before a move, and see after it.
struct ShownBefore {
  std::int64_t ctime = kNoTime;  // kNoTime: the file is being written, its ctime changes anyway
  std::int64_t birth = 0;        // 0: unknown

  bool operator==(const ShownBefore&) const = default;
};
// The times to keep for `copy`, which has all names of the file.
KeptTimes times_of_moved(unsigned slot, int copy, const ShownBefore& before);

// A move changes names in the copy `fd` of a directory between these two calls. begin_change()
// notes the copy's times; false: it cannot. If `shown` is given, it is the ctime to show.
// end_change() restores the atime and mtime and hides the ctime, whether the change was made or
// not. It does nothing after stop_hiding().
bool begin_change(KeptTimes& times, unsigned slot, int fd, std::int64_t shown = kNoTime);
void end_change(KeptTimes& times, unsigned slot, int fd);
// Shows the real times of a copy that is being changed, because a user changes it, too. Returns
// false if no copy is.
bool stop_hiding(KeptTimes& times);

// Calls `act`, which changes names in the copy `fd` of a directory, and hides that. For the
// replay of intents: no daemon may have the directory's times in memory.
Result<void> change_hidden(Store& store, const Tier& tier, int fd,
                           const std::function<Result<void>()>& act);

// An error is logged and ignored: only a move becomes visible.
void keep_times(Store& store, const std::vector<std::pair<InodeId, KeptTimes>>& times);

// Twice the longest tick of the clock from which the kernel takes ctimes, which is 10 ms (HZ =
// 100).
inline constexpr std::int64_t kClockStep = 20'000'000;
std::int64_t coarse_now();
// Waits until a change would get a ctime later than `ctime`.
void wait_until_past(std::int64_t ctime);

}  // namespace sluice
