// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/shown_times.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <thread>

#include "base/log.hpp"

namespace sluice {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// A ctime that no copy has.
constexpr std::int64_t kNoTime = 0;
// Twice the longest tick of the clock from which the kernel takes ctimes, which is 10 ms (HZ =
// 100).
constexpr std::int64_t kClockStep = 20'000'000;

std::int64_t nanoseconds(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }

timespec to_timespec(std::int64_t time) {
  const std::int64_t seconds = time / kSecond - (time % kSecond < 0 ? 1 : 0);
  return {seconds, time - seconds * kSecond};
}

std::int64_t coarse_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return nanoseconds(now);
}

std::int64_t birth_of(int fd) {
  struct statx st {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &st) < 0 || !(st.stx_mask & STATX_BTIME))
    return 0;
  return st.stx_btime.tv_sec * kSecond + st.stx_btime.tv_nsec;
}

const KeptTimes::Copy* find(const KeptTimes& times, std::uint8_t slot) {
  const auto found = std::find_if(times.copies.begin(), times.copies.end(),
                                  [&](const KeptTimes::Copy& copy) { return copy.slot == slot; });
  return found == times.copies.end() ? nullptr : &*found;
}

KeptTimes::Copy& copy_on(KeptTimes& times, std::uint8_t slot) {
  if (const KeptTimes::Copy* found = find(times, slot))
    return times.copies[static_cast<std::size_t>(found - times.copies.data())];
  return times.copies.emplace_back(KeptTimes::Copy{.slot = slot});
}

// `state` is the inode's.
InodeTimes& times_of(const Inode& inode, InodeState& state) {
  if (!state.times) {
    state.times = std::make_unique<InodeTimes>();
    state.times->kept.is_directory = inode.is_directory();
  }
  return *state.times;
}

// If a user changes the inode within one clock tick after a move, the ctime stays the same, and the
// change could not be told from the move. So recent ctimes are no longer hidden.
void show_recent_ctimes(InodeState& inode) {
  if (!inode.times) return;
  const std::int64_t recent = coarse_now() - kClockStep;
  for (KeptTimes::Copy& copy : inode.times->kept.copies) {
    if (copy.ctime > recent) copy.ctime = kNoTime;
  }
}

}  // namespace

void ShownTimes::load(Inode& inode) {
  {
    Inode::Locked state(inode);
    if (state->times_known) return;
  }
  KeptTimes found;
  {
    MutexLock lock(mutex_);
    const auto at = changed_.find(inode.id());
    if (at != changed_.end()) found = at->second;
  }
  // An error counts as "not found": losing the times is harmless.
  if (found.copies.empty()) {
    if (auto stored = store_.times(inode.id())) found = *std::move(stored);
  }
  Inode::Locked state(inode);
  if (std::exchange(state->times_known, true) || found.copies.empty()) return;
  if (found.is_directory == inode.is_directory()) times_of(inode, *state).kept = std::move(found);
}

void ShownTimes::show(const InodeState& inode, TierIndex tier, struct stat& st) const {
  if (!inode.times) return;
  const InodeTimes& times = *inode.times;
  const KeptTimes::Copy* copy = find(times.kept, slot(tier));
  if (copy == nullptr) return;
  if (times.changing == copy->slot) {
    st.st_mtim = to_timespec(times.mtime);
    st.st_ctim = to_timespec(copy->shown_ctime);
  } else if (nanoseconds(st.st_ctim) == copy->ctime) {
    st.st_ctim = to_timespec(copy->shown_ctime);
  }
}

std::optional<timespec> ShownTimes::birth(const InodeState& file) const {
  if (!file.times) return std::nullopt;
  const KeptTimes::Copy* copy = find(file.times->kept, slot(file.place().tier));
  if (copy == nullptr || copy->birth == 0) return std::nullopt;
  return to_timespec(copy->birth);
}

std::int64_t ShownTimes::moved(Inode& file, TierIndex from, int source, TierIndex to, int copy) {
  load(file);
  struct stat before {
  }, after{};
  const bool known = ::fstat(source, &before) == 0 && ::fstat(copy, &after) == 0;
  const std::int64_t born = birth_of(source);
  if (!known) return kNoTime;
  Inode::Locked state(file);
  show(*state, from, before);
  const std::int64_t ctime = nanoseconds(after.st_ctim);
  record_move(file, *state, from, born,
              {.slot = slot(to), .ctime = ctime, .shown_ctime = nanoseconds(before.st_ctim)});
  return ctime;
}

void ShownTimes::moved_while_written(Inode& file, TierIndex from, int source, TierIndex to) {
  load(file);
  const std::int64_t born = birth_of(source);
  Inode::Locked state(file);
  record_move(file, *state, from, born, {.slot = slot(to), .ctime = kNoTime});
}

void ShownTimes::record_move(const Inode& file, InodeState& state, TierIndex from,
                             std::int64_t born, KeptTimes::Copy arrived) {
  KeptTimes& times = times_of(file, state).kept;
  const KeptTimes::Copy* old = find(times, slot(from));
  arrived.birth = old != nullptr && old->birth != 0 ? old->birth : born;
  // The times of the old copy are kept, because the move may still be undone.
  std::erase_if(times.copies, [&](const KeptTimes::Copy& each) { return each.slot != slot(from); });
  times.copies.push_back(arrived);
}

void ShownTimes::save(Inode& inode) {
  KeptTimes kept;
  {
    Inode::Locked state(inode);
    if (!state->times) return;
    kept = state->times->kept;
    if (!inode.is_directory()) {
      const std::uint8_t here = slot(state->place().tier);
      std::erase_if(kept.copies, [&](const KeptTimes::Copy& each) { return each.slot != here; });
    }
  }
  write_later(inode.id(), std::move(kept));
}

Result<void> ShownTimes::change_with_old_times(Inode& directory, TierIndex tier, int fd,
                                               const std::function<Result<void>()>& act) {
  load(directory);
  MutexLock lock(directory_mutex(directory));
  struct stat before {};
  const bool alone = [&] {
    Inode::Locked state(directory);
    // With a running name change, we cannot know whether it is already part of the times.
    if (state->directory.name_changes > 0 || ::fstat(fd, &before) < 0) return false;
    InodeTimes& times = times_of(directory, *state);
    KeptTimes::Copy& copy = copy_on(times.kept, slot(tier));
    if (copy.ctime != nanoseconds(before.st_ctim)) copy.shown_ctime = nanoseconds(before.st_ctim);
    copy.ctime = kNoTime;
    times.mtime = nanoseconds(before.st_mtim);
    times.changing = copy.slot;
    ++times.changes;
    return true;
  }();
  auto done = act();
  if (!alone) return done;
  {
    // The inode is locked during two short system calls, so that no name change can start between
    // them.
    Inode::Locked state(directory);
    InodeTimes& times = *state->times;
    const bool still_alone =
        std::exchange(times.changing, std::uint8_t{0}) != 0 && state->directory.name_changes == 0;
    ++times.changes;
    const std::array<timespec, 2> old{before.st_atim, before.st_mtim};
    struct stat after {};
    if (still_alone && ::futimens(fd, old.data()) == 0 && ::fstat(fd, &after) == 0) {
      copy_on(times.kept, slot(tier)).ctime = nanoseconds(after.st_ctim);
    }
  }
  save(directory);
  return done;
}

void ShownTimes::directory_copied(Inode& directory, TierIndex tier, int original,
                                  const Located& made) {
  load(directory);
  struct stat st {};
  if (::fstat(original, &st) < 0) return;
  {
    Inode::Locked state(directory);
    show(*state, tier, st);
    copy_on(times_of(directory, *state).kept, slot(made.tier)) = {
        .slot = slot(made.tier),
        .ctime = nanoseconds(made.st.st_ctim),
        .shown_ctime = nanoseconds(st.st_ctim)};
  }
  save(directory);
}

ShownTimes::NameChange::NameChange(Inode& directory) : directory_(directory) {
  Inode::Locked state(directory_);
  ++state->directory.name_changes;
}

ShownTimes::NameChange::~NameChange() {
  Inode::Locked state(directory_);
  --state->directory.name_changes;
  if (!state->times) return;
  // From now on, the real times are shown even if change_with_old_times() is running.
  if (std::exchange(state->times->changing, std::uint8_t{0}) != 0) ++state->times->changes;
  show_recent_ctimes(*state);
}

ShownTimes::AttributeChange::AttributeChange(ShownTimes& times, Inode& directory)
    : directory_(directory), mutex_(times.directory_mutex(directory)) {
  mutex_.lock();
}

ShownTimes::AttributeChange::~AttributeChange() {
  {
    Inode::Locked state(directory_);
    show_recent_ctimes(*state);
  }
  mutex_.unlock();
}

void ShownTimes::wait_until_past(std::int64_t ctime) {
  // The wait is limited, because the clock may be set back.
  for (std::int64_t waited = 0; coarse_now() <= ctime && waited < kClockStep;
       waited += kSecond / 1000) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void ShownTimes::write_later(InodeId id, KeptTimes times) {
  MutexLock lock(mutex_);
  gone_.erase(id);
  changed_[id] = std::move(times);
}

void ShownTimes::forget(InodeId id) {
  MutexLock lock(mutex_);
  changed_.erase(id);
  gone_.insert(id);
}

void ShownTimes::flush() {
  std::vector<std::pair<InodeId, KeptTimes>> changed;
  std::vector<InodeId> gone;
  {
    MutexLock lock(mutex_);
    changed.assign(changed_.begin(), changed_.end());
    gone.assign(gone_.begin(), gone_.end());
    gone_.clear();
  }
  const auto kept = store_.keep_times(changed);
  const auto forgotten = gone.empty() ? Result<void>() : store_.forget_times(gone);
  if (!kept || !forgotten) {
    // Not repeated: only a ctime is lost.
    log::get().debug("cannot store the times from before moves: files={} errno={}",
                     changed.size() + gone.size(), (kept ? forgotten : kept).error().code);
  }
  MutexLock lock(mutex_);
  // Erased only now, so that load() finds the times either here or in the store.
  for (const auto& [id, times] : changed) {
    const auto at = changed_.find(id);
    if (at != changed_.end() && at->second == times) changed_.erase(at);
  }
}

}  // namespace sluice
