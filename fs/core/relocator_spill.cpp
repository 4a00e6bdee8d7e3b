// SPDX-License-Identifier: BSD-2-Clause
// Spills: a file whose tier is full moves to another tier while it is open and being written.
#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/log.hpp"
#include "base/units.hpp"
#include "fs/core/relocator.hpp"
#include "tiering/relocate.hpp"
#include "tiering/twins.hpp"

namespace sluice {

Result<void> Relocator::spill(const InodePtr& inode, const SharedFd& full, off_t offset,
                              std::uint64_t more) {
  // Twins go before anything else has to. They do not help against a quota.
  Tier& tier = parts_.pool[inode->tier()];
  tier.refresh_space();
  const bool is_full = tier.space().free_now() < more + tier.reserve();
  if (is_full && parts_.pool.twins().make_room(tier, more)) return {};
  const auto moved = try_spill(inode, full, offset, more);
  if (moved || wait_for_deleted()) return {};
  log_no_room(inode, moved.error());
  return Error(ENOSPC, "no tier has room");
}

Result<void> Relocator::try_spill(const InodePtr& inode, const SharedFd& full, off_t offset,
                                  std::uint64_t more) {
  std::shared_ptr<SharedMutex> moving;
  Copy old;
  {
    Inode::Locked state(*inode);
    if (!state->open || !state->open->moving)
      return Error(ENOSPC, "it is not open for writing through the daemon");
    moving = state->open->moving;
  }
  // Before others have to wait. ENOENT: the file has no name, and can spill as well.
  if (const auto named = ensure_name(inode); !named && !failed_with(named, ENOENT)) return named;
  ExclusiveLock no_changes(*moving);
  {
    Inode::Locked state(*inode);
    if (!state->open || state->open->writer != full) return {};
    // Finishing that move could replace this file by the other one.
    if (state->has_duplicate) return Error(ENOSPC, "an earlier move of it is not finished");
    old = state->copies[0];
  }
  struct stat st {};
  if (::fstat(full->get(), &st) < 0) return Error::last("stat");
  // A hard link would stay on the old tier and become a separate file.
  if (st.st_nlink > 1) return Error(ENOSPC, "it has hard links");
  // Part of the range may be allocated: a failed fallocate(2) keeps what it got.
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
      // A spill that ended since may have freed room, and so may those that still copy. Waiting
      // spills are not counted as copying, so at least one of them always continues.
      if (spills_.ended == ended + 1) {
        if (spills_.copying == 0) return moved;
        while (spills_.ended == ended + 1) spills_.wake.wait(spills_.mutex);
      }
    }
    parts_.pool[old.tier].refresh_space();
    if (parts_.pool[old.tier].space().free_now() > more) return {};
  }
}

// REQUIRES: OpenFile::moving is held exclusively.
Result<void> Relocator::spill_from(const InodePtr& inode, const SharedFd& full, TierIndex from,
                                   const struct stat& st, std::uint64_t needed) {
  for (const TierIndex index : parts_.pool.refuges(from, needed)) {
    Tier& to = parts_.pool[index];
    if (const std::uint64_t free = to.space().free_now(); free < needed)
      parts_.pool.twins().make_room(to, needed - free);
    const auto moved = move_open_file(inode, full, st.st_nlink > 0, to);
    if (moved) {
      log::get().info("spilled a file that outgrew its tier: path={} from={} to={} bytes={}",
                      log::escaped(parts_.tree.path_of(inode)), parts_.pool[from].name(), to.name(),
                      st.st_size);
      return {};
    }
    log::get().warn("cannot spill a file: path={} to={} step={} why={}",
                    log::escaped(parts_.tree.path_of(inode)), to.name(), moved.error().operation,
                    std::strerror(moved.error().code));
  }
  return Error(ENOSPC, "no tier has room");
}

// The room of a deleted file is free only when the kernel sends the last FORGET, some time after
// close(2) and unlink(2). So before a write fails with ENOSPC, this waits once, and returns true to
// have the write retried. Only one caller in half a second waits, because the thread is needed by
// others.
bool Relocator::wait_for_deleted() {
  if (!wait_for_deleted_.take()) return false;
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  return true;
}

// Logs at most one line in ten seconds, with the number of lines that were suppressed.
void Relocator::log_no_room(const InodePtr& inode, const Error& why) {
  if (!say_no_room_.take()) {
    no_room_unlogged_.fetch_add(1);
    return;
  }
  std::string tiers;
  for (const auto& tier : parts_.pool) {
    if (!tiers.empty()) tiers += ", ";
    tiers += tier->name() + " " + (tier->online() ? format_size(tier->space().free) : "offline");
  }
  const std::string& on = parts_.pool[inode->tier()].name();
  log::get().warn("a file cannot grow, ENOSPC: path={} tier={} why={} free=({}) others={}",
                  log::escaped(parts_.tree.path_of(inode)), on, why.operation, tiers,
                  no_room_unlogged_.exchange(0));
}

// Other spills leave this one the room that it will take.
Result<HiddenCopy> Relocator::copy_open_file(const InodePtr& inode, const SharedFd& source,
                                             Tier& to) {
  struct stat st {};
  if (::fstat(source->get(), &st) < 0) return Error::last("stat");
  std::uint64_t promised = static_cast<std::uint64_t>(st.st_blocks) * 512;
  to.promise(promised);
  auto copy = make_hidden_copy(source->get(), inode->identity, to,
                               [&](std::uint64_t bytes) -> Result<void> {
                                 bytes = std::min(bytes, promised);
                                 promised -= bytes;
                                 to.take_back_promise(bytes);
                                 return {};
                               });
  to.take_back_promise(promised);
  return copy;
}

// REQUIRES: OpenFile::moving is held exclusively.
Result<void> Relocator::move_open_file(const InodePtr& inode, const SharedFd& source, bool named,
                                       Tier& to) {
  HiddenCopy copy = SLUICE_TRY(copy_open_file(inode, source, to));
  auto readable = Descriptors::reopen(copy.fd.get(), O_RDONLY);
  // Not opened again: chattr +a of the original is set on the copy by now.
  UniqueFd writable(::fcntl(copy.fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!readable || !writable) {
    const Error failure = readable ? Error::last("duplicate a descriptor") : readable.error();
    discard(copy, to);
    return failure;
  }
  Switch change;
  change.file = inode;
  change.to = to.index();
  change.copy = &copy;
  change.source = source;
  change.original_writer = source;
  change.reader = *std::move(readable);
  change.writer = std::make_shared<UniqueFd>(std::move(writable));

  // From here on, operations that change the file's names block until the move ends. Operations on
  // other names do not have to wait for the disks.
  const auto move = std::make_shared<FileMove>(source, false, to.index());
  parts_.names_lock.begin_move();
  {
    Inode::Locked state(*inode);
    state->start_move(move);
    state->start_switch(*move);
  }
  const auto switched = switch_open_file(change, named);
  if (!switched || !named) discard(copy, to);  // an unnamed copy stays open
  {
    Inode::Locked state(*inode);
    state->end_move(*move);
  }
  parts_.names_lock.end_move();
  move->end();
  if (!switched) return switched;
  parts_.engine.forget(source->get());
  return {};
}

Result<void> Relocator::switch_open_file(Switch& change, bool named) {
  const auto file = change.file;
  if (!named) {
    change.original = file->place();
    const Located& there = change.copy->located;
    const TierIndex from = change.original.tier;
    change.shown = parts_.times.before_move(*file, from, change.source->get());
    change.shown.ctime = kNoTime;
    parts_.times.moved(*file, from, change.to, change.copy->fd.get(), change.shown);
    Copy place{change.to, there.handle, there.pinned};
    place.record = parts_.table.record_place(file->id(), place);
    set_place(*file, place, change.reader, change.writer);
    parts_.table.remove_record(change.original.record);
    parts_.descriptors.keep_in_existence(*file, change.reader->get());
    parts_.names_lock.note_switch();
    return {};
  }
  SLUICE_TRY(sync_copy(*change.copy));
  {
    const ExclusiveLock no_renames(parts_.names_lock.mutex);
    change.lock = NamesHeld::Yes;
    // A link that was made while the bytes were copied would stay behind on the old tier.
    struct stat now {};
    if (::fstat(change.source->get(), &now) < 0) return Error::last("stat");
    if (now.st_nlink != 1) return Error(EMLINK, "the file got another name");
    change.original = file->place();
    const InodeName name = file->last_name();
    change.names.push_back({SLUICE_TRY(parts_.tree.inode(name.parent)), name.text, {}, {}});
    SLUICE_TRY(prepare(change));
    SLUICE_TRY(check_names(change));
  }
  change.lock = NamesHeld::No;
  return switch_all({&change})[0];
}

}  // namespace sluice
