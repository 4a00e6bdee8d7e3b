// SPDX-License-Identifier: BSD-2-Clause
// Spills: a file whose tier is full moves to another tier while it is open and being written.
#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "base/log.hpp"
#include "base/units.hpp"
#include "fs/core/move/held_inode.hpp"
#include "fs/core/move/relocator.hpp"
#include "tiering/pool/twins.hpp"

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
    const auto moved = move_open_file(inode, full, from, st, to);
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
class Relocator::Spilling final : public HeldInode {
 public:
  struct Opened {  // the copy
    SharedFd reader, writer;
  };

  // From here on, operations that change the file's names block until the move ends. Operations on
  // other names do not have to wait for the disks.
  Spilling(const Parts& parts, const InodePtr& file, const SharedFd& source, TierIndex from,
           const struct stat& st, TierIndex to, Opened copy)
      : HeldInode(parts, file, to, NamesHeld::No) {
    tier_ = from;
    before_ = st;
    original_writer_ = source;
    reader_ = std::move(copy.reader);
    writer_ = std::move(copy.writer);
    Inode::Locked state(*file_);
    start(*state, std::make_shared<FileMove>(source, false, to));
    state->start_switch(*move_);
  }

  // No name changes between this and the end of begin_switch().
  Result<Names> open_names() override {
    original_ = file_->place();
    if (!has_name()) return open_all();
    no_renames_.emplace(parts_.names_lock.mutex);
    lock_ = NamesHeld::Yes;
    // A link that was made while the bytes were copied would stay behind on the old tier.
    struct stat now {};
    if (::fstat(source(), &now) < 0) return Error::last("stat");
    if (now.st_nlink != 1) return Error(EMLINK, "the file got another name");
    const InodeName name = file_->last_name();
    names_.push_back({SLUICE_TRY(parts_.tree.inode(name.parent)), name.text, {}, {}});
    // The inode stays in the table, also if an error interrupts the switch.
    [[maybe_unused]] const auto walked =
        parts_.tree.walk(parts_.tree.path_of(file_), references_, lock_);
    return open_all();
  }
  Result<void> begin_switch(const HiddenCopy& copy) override {
    SLUICE_TRY(check_names());
    record(copy);
    allow_renames();
    return {};
  }
  KeptTimes place_changed(const HiddenCopy& copy) override {
    KeptTimes times = HeldInode::place_changed(copy);
    if (!has_name()) parts_.descriptors.keep_in_existence(*file_, reader_->get());
    return times;
  }
  void release(Holder holder) override {
    allow_renames();
    HeldInode::release(holder);
  }

 private:
  bool has_name() const { return before().st_nlink > 0; }
  void allow_renames() {
    no_renames_.reset();
    lock_ = NamesHeld::No;
  }

  std::optional<ExclusiveLock> no_renames_;
};

// REQUIRES: OpenFile::moving is held exclusively.
Result<void> Relocator::move_open_file(const InodePtr& inode, const SharedFd& source,
                                       TierIndex from, const struct stat& st, Tier& to) {
  const HiddenCopy copy = SLUICE_TRY(copy_open_file(inode, source, to));
  auto readable = Descriptors::reopen(copy.fd.get(), O_RDONLY);
  // Not opened again: chattr +a of the original is set on the copy by now.
  UniqueFd writable(::fcntl(copy.fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!readable || !writable) {
    const Error failure = readable ? Error::last("duplicate a descriptor") : readable.error();
    discard(copy, to);
    return failure;
  }
  Spilling file(parts_, inode, source, from, st, to.index(),
                {*std::move(readable), std::make_shared<UniqueFd>(std::move(writable))});
  return switcher_.switch_file({&file, &copy, to.index()});
}

}  // namespace sluice
