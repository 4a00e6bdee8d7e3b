// SPDX-License-Identifier: BSD-2-Clause
// Spills: a file whose tier is full goes on in another, while it is open and being written.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/log.hpp"
#include "base/units.hpp"
#include "fs/core/relocator.hpp"
#include "tiering/relocate.hpp"

namespace sluice {

Result<void> Relocator::spill(const InodePtr& inode, const SharedFd& full, off_t offset,
                              std::uint64_t more) {
  const auto moved = try_spill(inode, full, offset, more);
  if (moved || wait_for_deleted()) return {};
  log_that_there_is_no_room(inode, moved.error());
  return Error(ENOSPC, "no tier has room");
}

// `full` is the descriptor on which there was no room: if the file has moved since, there is
// nothing to do.
Result<void> Relocator::try_spill(const InodePtr& inode, const SharedFd& full, off_t offset,
                                  std::uint64_t more) {
  std::shared_ptr<SharedMutex> moving;
  Copy old;
  {
    Inode::Locked state(*inode);
    if (!state->open || !state->open->moving)
      return Error(ENOSPC, "it is open through passthrough, or changed by its name alone");
    moving = state->open->moving;
  }
  // Before anybody has to wait; ENOENT is that of a file without a name, which can spill as well.
  if (const auto named = ensure_name(inode); !named && !failed_with(named, ENOENT)) return named;
  ExclusiveLock no_changes(*moving);
  {
    Inode::Locked state(*inode);
    if (!state->open || state->open->writer != full) return {};
    old = state->copies[0];
  }
  struct stat st {};
  if (::fstat(full->get(), &st) < 0) return Error::last("stat");
  // A hard link would stay behind as a file of its own.
  if (st.st_nlink > 1) return Error(ENOSPC, "it has hard links");
  // Some of the bytes may have room already: fallocate(2) that fails keeps what it got.
  const std::uint64_t has = static_cast<std::uint64_t>(st.st_blocks) * 512;
  const std::uint64_t needed =
      std::min(has + more, std::max(has, static_cast<std::uint64_t>(offset) + more));
  for (;;) {
    std::uint64_t ended = 0;
    {
      MutexLock lock(spills_.mutex);
      ++spills_.copying;
      ended = spills_.ended;
    }
    const auto moved = spill_from(inode, full, old.tier, st, needed);
    {
      MutexLock lock(spills_.mutex);
      --spills_.copying;
      ++spills_.ended;
      spills_.wake.notify_all();
      if (moved || moved.error().code != ENOSPC) return moved;
      // One that ended while we looked may have left room behind; so may those that still copy. Who
      // waits is not counted among them, so there is always one that does not.
      if (spills_.ended == ended + 1) {
        if (spills_.copying == 0) return moved;
        while (spills_.ended == ended + 1) spills_.wake.wait(spills_.mutex);
      }
    }
    parts_.pool[old.tier].refresh_space();
    if (parts_.pool[old.tier].space().free > more) return {};
  }
}

// REQUIRES: OpenFile::moving is held exclusively.
Result<void> Relocator::spill_from(const InodePtr& inode, const SharedFd& full, TierIndex from,
                                   const struct stat& st, std::uint64_t needed) {
  for (const TierIndex index : parts_.pool.refuges(from, needed)) {
    Tier& to = parts_.pool[index];
    const auto moved = move_open_file(inode, full, st.st_nlink > 0, to);
    if (moved) {
      log::get().info("spilled a file that outgrew its tier: path={} from={} to={} bytes={}",
                      log::escaped(parts_.tree.path_of(inode)), parts_.pool[from].name(), to.name(),
                      st.st_size);
      return {};
    }
    log::get().warn("can't spill a file: path={} to={} step={} why={}",
                    log::escaped(parts_.tree.path_of(inode)), to.name(), moved.error().operation,
                    std::strerror(moved.error().code));
  }
  return Error(ENOSPC, "no tier has room");
}

// The kernel tells us a moment after close(2) and unlink(2) that nobody uses a file any more, and
// only then its room is free. Before somebody is told that there is none, that moment passes: but
// not for each of many who ask, since they wait on threads that others need. On a busy machine the
// moment is long.
bool Relocator::wait_for_deleted() {
  constexpr std::chrono::milliseconds kMoment{250}, kPause{500};
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  std::int64_t before = waited_for_deleted_.load();
  if (now - std::chrono::nanoseconds(before) < kPause ||
      !waited_for_deleted_.compare_exchange_strong(before, std::chrono::nanoseconds(now).count()))
    return false;
  std::this_thread::sleep_for(kMoment);
  return true;
}

// At most one line in ten seconds, with the number of those that were left out.
void Relocator::log_that_there_is_no_room(const InodePtr& inode, const Error& why) {
  constexpr std::int64_t kPause = 10'000'000'000;
  const std::int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  std::int64_t before = room_complaint_.load();
  if ((before != 0 && now - before < kPause) ||
      !room_complaint_.compare_exchange_strong(before, now)) {
    room_complaints_.fetch_add(1);
    return;
  }
  std::string tiers;
  for (const auto& tier : parts_.pool) {
    if (!tiers.empty()) tiers += ", ";
    tiers += tier->name() + " " + (tier->online() ? format_size(tier->space().free) : "offline");
  }
  const std::string& on = parts_.pool[inode->tier()].name();
  log::get().warn("a file can't grow, ENOSPC: path={} tier={} why={} free=({}) others={}",
                  log::escaped(parts_.tree.path_of(inode)), on, why.operation, tiers,
                  room_complaints_.exchange(0));
}

// REQUIRES: OpenFile::moving is held exclusively.
Result<void> Relocator::move_open_file(const InodePtr& inode, const SharedFd& source, bool named,
                                       Tier& to) {
  // Others who look for a refuge meanwhile leave it the room that it will take.
  struct stat st {};
  if (::fstat(source->get(), &st) < 0) return Error::last("stat");
  std::uint64_t promised = static_cast<std::uint64_t>(st.st_blocks) * 512;
  to.promise(promised);
  auto made = make_hidden_copy(source->get(), inode->identity, to,
                               [&](std::uint64_t bytes) -> Result<void> {
                                 bytes = std::min(bytes, promised);
                                 promised -= bytes;
                                 to.take_back_promise(bytes);
                                 return {};
                               });
  to.take_back_promise(promised);
  if (!made) return made.error();
  HiddenCopy copy = *std::move(made);
  // Opened before the copy takes its place: after that nothing may fail, or writers would go on in
  // the file that is gone.
  auto readable = Descriptors::reopen(copy.fd.get(), O_RDONLY);
  const auto place = [&]() -> Result<void> {
    if (!readable) return readable.error();
    if (!named) {
      discard(copy, to);  // as nameless as the original
      return {};
    }
    SLUICE_TRY(sync_copy(copy));
    InodePtr parent;
    OpenCopy from_dir, to_dir;
    Copy original;
    std::vector<Step> steps;
    {
      // Who changes this file's names from here on waits for `move`: those of others need not
      // wait while disks are written to.
      const ExclusiveLock no_renames(parts_.names.lock);
      // A link made while the bytes were copied would be left behind on the old tier, a file of
      // its own.
      struct stat now {};
      if (::fstat(source->get(), &now) < 0) return Error::last("stat");
      if (now.st_nlink != 1) return Error(EMLINK, "the file got another name meanwhile");
      const auto [parent_id, name, told_at] = inode->last_name();
      original = inode->place();
      parent = SLUICE_TRY(parts_.tree.inode(parent_id));
      from_dir = SLUICE_TRY(parts_.tree.open_copy(parent, original.tier));
      if (SLUICE_TRY(from_dir.tier->identity_of(from_dir.get(), name.c_str())) != inode->identity) {
        return Error(ESTALE, "the file's name is not known");
      }
      SLUICE_TRY(parts_.tree.check_that_nothing_hides(parent, name, original.tier, to.index()));
      to_dir = SLUICE_TRY(parts_.tree.ensure_copy(parent, to.index()));
      steps = SLUICE_TRY(
          relocation_steps(copy, *from_dir.tier, to, {{from_dir.get(), to_dir.get(), name}}));
    }
    const SharedLock no_replay(intents_);
    const auto unseen = [&](std::size_t, std::size_t step, const auto& act) {
      const OpenCopy& changed = step == 0 ? to_dir : from_dir;
      return parts_.times.change_unseen(*parent, changed.tier->index(), changed.get(), act);
    };
    const auto ends = SLUICE_TRY(execute_moves(
        parts_.store, parts_.pool, {steps}, [&](std::size_t) { parts_.names.note_switch(); },
        unseen));
    if (!ends[0].is_finished) remember_unfinished(inode, ends[0], steps, original);
    return ends[0].result;
  };
  // Whoever looks the file up meanwhile may find either copy.
  const auto move = std::make_shared<FileMove>(source, false, to.index());
  parts_.names.begin_move();  // so that those who change names look for it
  {
    Inode::Locked state(*inode);
    state->start_move(move);
    state->start_switch(*move);
  }
  const auto ended = [&] {
    {
      Inode::Locked state(*inode);
      state->end_move(*move);
    }
    parts_.names.end_move();
    move->end();
  };
  const auto placed = place();
  if (!placed) {
    discard(copy, to);
    ended();
    return placed;
  }
  SharedFd writable = std::make_shared<UniqueFd>(std::move(copy.fd));
  const TierIndex from = inode->tier();
  parts_.times.moved_while_written(*inode, from, source->get(), to.index());
  {
    Inode::Locked state(*inode);
    state->copies[0] = Copy{to.index(), copy.located.handle, copy.located.pinned};
    if (state->open) {
      if (!state->open->reader) parts_.descriptors.keep_reader(*state->open, nullptr);
      state->open->reader = *std::move(readable);
      state->open->writer = std::move(writable);
    }
  }
  parts_.names.note_switch();
  ended();
  if (named) parts_.times.keep(*inode);
  parts_.engine.forget(source->get());
  return {};
}

}  // namespace sluice
