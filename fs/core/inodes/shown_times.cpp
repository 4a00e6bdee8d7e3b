// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/inodes/shown_times.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/log.hpp"

namespace sluice {
namespace {

std::int64_t birth_of(int fd) {
  struct statx st {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &st) < 0 || !(st.stx_mask & STATX_BTIME))
    return 0;
  return nanoseconds({st.stx_btime.tv_sec, static_cast<long>(st.stx_btime.tv_nsec)});
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
// change could not be told from the move. So recent ctimes are no longer hidden. Returns whether
// there were any.
bool show_recent_ctimes(InodeState& inode) {
  if (!inode.times) return false;
  const std::int64_t recent = coarse_now() - kClockStep;
  bool shown = stop_hiding(inode.times->kept);
  for (KeptTimes::Copy& copy : inode.times->kept.copies) {
    if (copy.ctime <= recent) continue;
    copy.ctime = kNoTime;
    shown = true;
  }
  if (shown) ++inode.times->changes;
  return shown;
}

bool is_changing(const KeptTimes& times) {
  return std::any_of(times.copies.begin(), times.copies.end(),
                     [](const auto& copy) { return copy.is_changing; });
}

}  // namespace

void ShownTimes::load(Inode& inode) {
  const auto is_known = [&] {
    Inode::Locked state(inode);
    return state->times_known;
  };
  if (is_known()) return;
  KeptTimes found;
  // An error counts as "not found": losing the times is harmless.
  if (auto stored = store_.times(inode.id())) found = *std::move(stored);
  const auto adopt = [&] {
    Inode::Locked state(inode);
    if (std::exchange(state->times_known, true) || found.copies.empty()) return;
    if (found.is_directory == inode.is_directory()) times_of(inode, *state).kept = std::move(found);
  };
  if (!is_changing(found)) return adopt();
  MutexLock lock(directory_mutex(inode));
  if (is_known()) return;
  end_inherited_changes(inode, found);
  adopt();
}

// Ends a change that a daemon had begun when it died. A copy that it was just making may not be
// known: until a user changes the directory, the times from before are shown for it.
void ShownTimes::end_inherited_changes(Inode& directory, KeptTimes& times) {
  std::vector<Copy> copies;
  {
    Inode::Locked state(directory);
    copies = state->copies;
  }
  for (const Copy& each : copies) {
    const KeptTimes::Copy* kept = find_copy(times, slot(each.tier));
    if (kept == nullptr || !kept->is_changing || each.handle.empty()) continue;
    if (const auto fd = pool_[each.tier].open(each.handle, O_RDONLY | O_DIRECTORY))
      end_change(times, slot(each.tier), fd->get());
  }
  keep_times(store_, {{directory.id(), times}});
}

// One thread after the other: moves change copies of one directory at the same time. If older times
// were written after newer ones, a crash at that moment would lose the note of a change that is
// made already.
void ShownTimes::save(Inode& directory) {
  const MutexLock turn(saving_[index(directory)]);
  const KeptTimes times = [&] {
    Inode::Locked state(directory);
    return state->times ? state->times->kept : KeptTimes{};
  }();
  if (!times.copies.empty()) keep_times(store_, {{directory.id(), times}});
}

void ShownTimes::show(const InodeState& inode, TierIndex tier, struct stat& st) const {
  if (inode.times) show_times(inode.times->kept, slot(tier), st);
}

std::optional<timespec> ShownTimes::birth(const InodeState& file) const {
  if (!file.times) return std::nullopt;
  const KeptTimes::Copy* copy = find_copy(file.times->kept, slot(file.place().tier));
  if (copy == nullptr || copy->birth == 0) return std::nullopt;
  return to_timespec(copy->birth);
}

ShownBefore ShownTimes::before_move(Inode& file, TierIndex from, int source) {
  load(file);
  ShownBefore before{.birth = birth_of(source)};
  struct stat st {};
  const bool is_known = ::fstat(source, &st) == 0;
  Inode::Locked state(file);
  show(*state, from, st);
  if (is_known) before.ctime = nanoseconds(st.st_ctim);
  const KeptTimes::Copy* old = state->times ? find_copy(state->times->kept, slot(from)) : nullptr;
  if (old != nullptr && old->birth != 0) before.birth = old->birth;
  return before;
}

KeptTimes ShownTimes::moved(Inode& file, TierIndex from, TierIndex to, int copy,
                            const ShownBefore& before) {
  KeptTimes now = times_of_moved(slot(to), copy, before);
  Inode::Locked state(file);
  KeptTimes& times = times_of(file, *state).kept;
  // The times of the old copy are kept, because the move may still be undone.
  std::erase_if(times.copies, [&](const KeptTimes::Copy& each) { return each.slot != slot(from); });
  times.copies.push_back(now.copies[0]);
  return now;
}

Result<void> ShownTimes::change_with_old_times(Inode& directory, TierIndex tier, int fd,
                                               const std::function<Result<void>()>& act) {
  load(directory);
  MutexLock lock(directory_mutex(directory));
  const bool hides = [&] {
    Inode::Locked state(directory);
    // With a running name change, we cannot know whether it is already part of the times.
    if (state->directory.name_changes > 0) return false;
    InodeTimes& times = times_of(directory, *state);
    ++times.changes;
    end_change(times.kept, slot(tier), fd);  // load() may have left one
    return begin_change(times.kept, slot(tier), fd);
  }();
  if (!hides) return act();
  save(directory);
  auto done = act();
  {
    // The inode is locked during a few short system calls, so that no name change can start between
    // them.
    Inode::Locked state(directory);
    ++state->times->changes;
    end_change(state->times->kept, slot(tier), fd);
  }
  save(directory);
  return done;
}

void ShownTimes::copy_begins(Inode& directory, TierIndex from, int original, TierIndex to,
                             int copy) {
  load(directory);
  {
    // The inode is locked during a few short system calls: another move may be changing names in
    // the original, and its mtime must not become that of the copy.
    Inode::Locked state(directory);
    struct stat st {};
    if (::fstat(original, &st) < 0) return;
    show(*state, from, st);
    const std::array<timespec, 2> shown{timespec{0, UTIME_OMIT}, st.st_mtim};
    if (::futimens(copy, shown.data()) < 0) return;
    InodeTimes& times = times_of(directory, *state);
    ++times.changes;
    if (!begin_change(times.kept, slot(to), copy, nanoseconds(st.st_ctim))) return;
  }
  save(directory);
}

void ShownTimes::copy_ends(Inode& directory, TierIndex to, int copy) {
  {
    Inode::Locked state(directory);
    if (!state->times) return;
    ++state->times->changes;
    end_change(state->times->kept, slot(to), copy);
  }
  save(directory);
}

ShownTimes::NameChange::NameChange(ShownTimes& times, Inode& directory)
    : times_(times), directory_(directory) {
  times_.load(directory_);
  bool stopped = false;
  {
    Inode::Locked state(directory_);
    ++state->directory.name_changes;
    // From now on, the real times are shown even if change_with_old_times() is running.
    stopped = state->times && stop_hiding(state->times->kept);
    if (stopped) ++state->times->changes;
  }
  if (stopped) times_.save(directory_);
}

ShownTimes::NameChange::~NameChange() {
  bool shown = false;
  {
    Inode::Locked state(directory_);
    --state->directory.name_changes;
    shown = show_recent_ctimes(*state);
  }
  if (shown) times_.save(directory_);
}

ShownTimes::AttributeChange::AttributeChange(ShownTimes& times, Inode& directory)
    : times_(times), directory_(directory) {
  times_.load(directory_);
  times_.directory_mutex(directory_).lock();
}

ShownTimes::AttributeChange::~AttributeChange() {
  bool shown = false;
  {
    Inode::Locked state(directory_);
    shown = show_recent_ctimes(*state);
  }
  if (shown) times_.save(directory_);
  times_.directory_mutex(directory_).unlock();
}

void ShownTimes::forget(Inode& directory) {
  load(directory);
  {
    Inode::Locked state(directory);
    if (!state->times) return;
  }
  if (const auto forgotten = store_.forget_times({directory.id()}); !forgotten) {
    log::get().debug("cannot remove the times of a directory: errno={}", forgotten.error().code);
  }
}

}  // namespace sluice
