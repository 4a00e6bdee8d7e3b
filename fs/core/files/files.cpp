// SPDX-License-Identifier: BSD-2-Clause
// Creating, opening and closing files.
#include "fs/core/files/files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "fs/core/inodes/file_flags.hpp"
#include "fs/core/inodes/guards.hpp"

namespace sluice {

namespace {

// The least growth to expect while a file is open: of a new file or one that is appended to, and of
// one that is changed in place. kLeastPromise is the least room reserved for each passthrough
// writer.
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kLeastGrowth = 64 * kGiB;
constexpr std::uint64_t kLeastGrowthInPlace = 16 * kGiB;
constexpr std::uint64_t kLeastPromise = kGiB;

constexpr off_t kQuicklyTruncated = 256 << 20;  // freeing more may take the disk long

bool wants_to_write(int flags) { return (flags & O_ACCMODE) != O_RDONLY; }

bool is_nameless(const SharedFd& fd) {
  struct stat st {};
  return ::fstat(fd->get(), &st) == 0 && st.st_nlink == 0;
}

// A writable shared mapping needs read and write access.
bool can_map_to_write(int flags) { return (flags & O_ACCMODE) == O_RDWR; }

// The checks that open(2) would make on the tier. The tier's filesystem cannot make them, because
// the daemon or the kernel's passthrough opens the file with other flags.
Result<void> check_flags(const struct statx& st, int flags) {
  if (st.stx_attributes & STATX_ATTR_IMMUTABLE) return Error(EPERM, "open an immutable file");
  if (only_appends(st) && (!(flags & O_APPEND) || (flags & O_TRUNC)))
    return Error(EPERM, "open an append-only file");
  return {};
}

}  // namespace

// The kernel tells of a close some time after close(2). A writer that opens the file before that
// would share the passthrough of an open that has ended, and could not spill. So if the tier may
// become full, it waits a moment for such opens.
Result<void> Files::wait_for_release(const InodePtr& inode, int flags,
                                     const KernelRequest& request) {
  constexpr std::chrono::milliseconds kPatience{100}, kPause{1};
  const auto shares = [&] {
    Inode::Locked state(*inode);
    if (!state->open || !state->open->passthrough || state->open->is_held) return false;
    const auto st = statx_of(*state);
    return st && may_outgrow(*state, flags, *st);
  };
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (shares()) {
    if (request.must_not_wait())
      return Error(kWouldWait, "another open of the file may have ended");
    if (std::chrono::steady_clock::now() >= deadline) {
      Inode::Locked state(*inode);
      if (state->open) state->open->is_held = true;
      break;
    }
    std::this_thread::sleep_for(kPause);
  }
  return {};
}

// Adds one open to the inode. `fresh` may be an O_RDONLY descriptor of a file that was just
// created. The inode stays locked while its file is opened, although no lock should be held during
// I/O on a tier: the first open chooses between passthrough and serving for all others.
Result<Opened> Files::open_inode(const InodePtr& inode, int flags, const SharedFd& fresh,
                                 const KernelRequest& request) {
  if (wants_to_write(flags)) SLUICE_TRY(wait_for_release(inode, flags, request));
  for (;;) {
    bool may_be_mapped = false;
    {
      Inode::Locked state(*inode);
      may_be_mapped = state->pages.maybe_mapped && !state->open;
    }
    const bool mapped = may_be_mapped && parts_.pages.is_still_mapped(inode);
    std::shared_ptr<FileMove> ending;
    Result<Opened> opened = Opened{};
    SharedFd nameless;  // set if a served file has lost its last name, or is about to lose it
    {
      Inode::Locked state(*inode);
      // A writer waits only for a move that is switching. It cancels a move that is still copying.
      if (wants_to_write(flags) && state->is_moving()) {
        ending = state->switching_move();
        if (!ending) {
          state->cancel_move();
          state->move_waits = true;  // until this writer closes the file
        }
      }
      if (!ending) {
        opened = open_locked(inode, *state, flags, fresh, mapped);
        if (opened && !state->open->passthrough && !state->place().handle.empty())
          nameless = state->place().fd;
      }
    }
    // Names::keep_open_after_unlink() did this only if the file was open then.
    if (nameless) parts_.descriptors.keep_in_existence(*inode, nameless->get());
    if (!ending) return opened;
    if (request.must_not_wait()) return Error(kWouldWait, "a move of the file is switching");
    ending->wait_for_end();
  }
}

// A passthrough file cannot spill: its writer would get ENOSPC. So a writer gets passthrough only
// if the tier has ample room, judged by the sizes of files in this pool, or if no other tier could
// take the file.
bool Files::may_outgrow(const InodeState& state, int flags, const struct statx& st) {
  const std::uint64_t allocated = st.stx_blocks * 512;
  std::uint64_t growth = std::max(kLeastGrowth, 2 * parts_.pool.largest_file());
  if (st.stx_size > 0 && !(flags & (O_APPEND | O_TRUNC))) {
    const std::uint64_t holes = st.stx_size > allocated ? st.stx_size - allocated : 0;
    growth = std::max<std::uint64_t>({kLeastGrowthInPlace, st.stx_size / 2, holes});
  }
  return parts_.pool.may_outgrow(state.place().tier, flags & O_TRUNC ? 0 : allocated, growth);
}

Result<struct statx> Files::statx_of(const InodeState& state) {
  if (state.open && state.open->reader) return sluice::statx_of(state.open->reader->get());
  const Copy& copy = state.place();
  if (copy.fd) return sluice::statx_of(copy.fd->get());
  return sluice::statx_of(SLUICE_TRY(parts_.pool[copy.tier].open(copy.handle, O_PATH)).get());
}

// The kernel writes to a passthrough file with the rights of the thread that registers it, for
// whoever opens the file while it is registered. So root's rights are registered only for a writer
// that is root.
Result<std::int32_t> Files::add_backing(const Tier& tier, int fd, bool writes) {
  Caller opener = current_caller();
  // On other filesystems the fsuid gives no right to room. On a network filesystem, it may decide
  // whether the server lets the kernel read.
  if (opener.uid == 0 && !writes && tier.keeps_room_by_user()) opener.uid = opener.gid = kNobody;
  set_filesystem_user(opener.uid, opener.gid);
  const UserRoom room(opener.uid, opener.gid);
  return parts_.kernel.add_backing(fd);
}

Result<Opened> Files::open_locked(const InodePtr& inode, InodeState& state, int flags, SharedFd fd,
                                  bool mapped) {
  const bool writes = wants_to_write(flags);
  Tier& tier = parts_.pool[state.place().tier];
  if (!tier.online()) return Error(EIO, "tier is offline");
  // The kernel looks the name up again.
  if (state.is_doomed) return Error(ESTALE, "the file is being deleted");
  Opened out;
  struct statx st {};  // all zero for a new file
  if (writes && !fd) {
    st = SLUICE_TRY(statx_of(state));
    SLUICE_TRY(check_flags(st, flags));
    note_flags(*inode, state, st);
    // The kernel forbids writable mappings of append-only files, but does not know that this file
    // is one.
    const bool passes = state.open ? state.open->passthrough : mapped;
    if (only_appends(st) && passes && can_map_to_write(flags))
      return Error(EBUSY, "open: the append-only file may be mapped");
  }
  if (!state.open) {
    auto file = std::make_unique<OpenFile>();
    // Small files stay in the kernel's page cache between opens: registering them for passthrough
    // costs more than it saves. A writer that may outgrow the tier must be served, so that the file
    // can spill.
    const bool small = state.size_hint <= parts_.small_file && !writes;
    const bool outgrows = writes && may_outgrow(state, flags, st);
    // A passthrough file cannot be moved until it is closed.
    const bool moves = !writes && (state.is_moving() || state.move_waits);
    // A mapping bypasses the daemon, so every other access must bypass it as well.
    const bool waits = writes && inode->waits_for_room;
    if (passthrough_ && ((!small && !outgrows && !moves && !waits) || mapped)) {
      if (!fd) {
        const Copy& copy = state.place();
        fd = copy.fd ? SLUICE_TRY(Descriptors::reopen(copy.fd->get(), O_RDONLY))
                     : std::make_shared<UniqueFd>(SLUICE_TRY(tier.open(copy.handle, O_RDONLY)));
        if (!writes) st = SLUICE_TRY(sluice::statx_of(fd->get()));
      }
      // The backing file is always read-only: a writable one would make every attempt to get a
      // lease fail.
      const auto id = only_appends(st) && !mapped ? Error(EPERM, "map an append-only file")
                                                  : add_backing(tier, fd->get(), writes);
      if (id) {
        file->passthrough = true;
        file->backing_id = *id;
      }
    }
    // The kernel does not need this descriptor for passthrough, so it is closed if descriptors are
    // scarce.
    if (fd && (parts_.descriptors.has_room_for_readers() || state.place().handle.empty() ||
               is_nameless(fd)))
      parts_.descriptors.keep_reader(*file, std::move(fd));
    state.open = std::move(file);
  }
  OpenFile& file = *state.open;
  count_open(inode, state, flags);
  if (file.passthrough) {
    out.backing_id = file.backing_id;
  } else {
    out.keep_pages = !std::exchange(state.pages.stale, false);
    // Bypassing the page cache saves one of two copies. An open without read access cannot be
    // mapped, so it does not need the page cache; other readers ask for the times first and drop
    // older pages. An open with direct I/O cannot be mapped shared, which keeps stores out of
    // append-only files.
    out.direct = writes && (!can_map_to_write(flags) || only_appends(st));
    if (out.direct) file.direct = true;
  }
  return out;
}

// The kernel counts a lookup only if create() succeeds, so the reference is removed if the open
// fails.
Result<std::pair<Entry, Opened>> Files::open_new(const Located& made, const InodePtr& directory,
                                                 const char* name, int flags, const SharedFd& fd,
                                                 const Budgets::Room& room,
                                                 const KernelRequest& request) {
  Entry entry = SLUICE_TRY(parts_.names.entry_with_reference({made}, directory, name));
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(entry.id));
  // Before it is opened: the kernel would not send the writes of passthrough.
  if (!room.is_there() && wants_to_write(flags)) file->waits_for_room = true;
  const auto opened = open_inode(file, flags, fd, request);
  if (!opened) {
    parts_.names.forget(entry.id, 1);
    return opened.error();
  }
  entry.attribute_seconds = parts_.attributes.cache_seconds(file);
  return std::pair(entry, *opened);
}

Result<std::pair<Entry, Opened>> Files::create(InodeId parent, const char* name, mode_t mode,
                                               int flags, const Caller& caller,
                                               const KernelRequest& request) {
  const InodePtr directory = SLUICE_TRY(parts_.tree.inode(parent));
  if (is_private(*directory, name)) return Error(EPERM, "create");
  const Budgets::Room room = SLUICE_TRY(parts_.budgets.admit(directory));
  SharedFd fd;  // stays empty if the request is repeated and the first attempt created the file
  auto made = [&]() -> Result<Located> {
    SharedLock lock(parts_.names_lock.mutex);
    const Names::NewFile what{name, S_IFREG, caller.uid};
    return parts_.names.place_new(
        directory, what, request, [&](const OpenCopy& copy) -> Result<Located> {
          const CreateAs creator(caller);
          // O_RDONLY is enough: for passthrough, the kernel opens the file itself with the caller's
          // flags.
          fd = std::make_shared<UniqueFd>(::openat(
              copy.get(), name, O_RDONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
          if (!*fd) return Error::last("create");
          return copy.tier->identify(fd->get(), "");
        });
  }();
  // The file was created directly on a tier, so the kernel has not checked whether the caller may
  // open it. ESTALE makes the kernel look the name up and check.
  if (failed_with(made, EEXIST) && !(flags & O_EXCL)) return Error(ESTALE, "create");
  if (!made) return made.error();
  const auto opened = open_new(*made, directory, name, flags, fd, room, request);
  if (const InodePtr file = opened ? parts_.table.find(opened->first.id) : nullptr) {
    parts_.accesses.note_made(file, caller.pid);
    parts_.budgets.name_came(directory, name, file, Budgets::Growth::Growing);
  }
  return opened;
}

Result<std::pair<Entry, Opened>> Files::create_unnamed(InodeId parent, mode_t mode, int flags,
                                                       const Caller& caller,
                                                       const KernelRequest& request) {
  const InodePtr directory = SLUICE_TRY(parts_.tree.inode(parent));
  // What it takes counts only once it has a name.
  const Budgets::Room room(parts_.budgets);
  SharedFd fd;
  const auto make = [&]() -> Result<Located> {
    SharedLock lock(parts_.names_lock.mutex);
    const Names::NewFile what{"", S_IFREG, caller.uid};
    return parts_.names.place_new(
        directory, what, request, [&](const OpenCopy& copy) -> Result<Located> {
          const CreateAs creator(caller);
          const UniqueFd writable(
              ::openat(copy.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC | (flags & O_EXCL), mode));
          if (!writable) return Error::last("create unnamed");
          auto readable = Descriptors::reopen(writable.get(), O_RDONLY);
          if (!readable) return readable.error();
          fd = *std::move(readable);
          return copy.tier->identify(fd->get(), "");
        });
  };
  auto opened = open_new(SLUICE_TRY(make()), directory, "", flags, fd, room, request);
  const InodePtr file = opened ? parts_.table.find(opened->first.id) : nullptr;
  if (file && opened->second.backing_id == 0)
    parts_.descriptors.keep_in_existence(*file, fd->get());
  return opened;
}

Result<Opened> Files::open(InodeId id, int flags, pid_t opener,
                           const std::optional<Caller>& strip_suid, const KernelRequest& request) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  const Opened opened = SLUICE_TRY(open_inode(file, flags, nullptr, request));
  if (wants_to_write(flags)) parts_.budgets.opened_for_writing(file);
  // If the first attempt at this request has truncated the file, another process may have written
  // to it since, by passthrough.
  if ((flags & O_TRUNC) && !request.remembered(Fact::Size)) {
    const auto truncate = [&]() -> Result<void> {
      const ChangeGuard guard = SLUICE_TRY(ChangeGuard::of(file, request));
      const SharedFd fd = SLUICE_TRY(parts_.descriptors.writer(file));
      struct stat st {};
      if (request.must_not_wait() && ::fstat(fd->get(), &st) == 0 && st.st_size > kQuicklyTruncated)
        return Error(kWouldWait, "truncate a large file");
      if (strip_suid) SLUICE_TRY(drop_suid(fd->get(), *strip_suid));
      if (::ftruncate(fd->get(), 0) < 0) return Error::last("truncate");
      request.remember(Fact::Size, 0);
      return {};
    };
    const auto truncated = truncate();
    if (!truncated) {
      release(id, flags);
      return truncated.error();
    }
  }
  parts_.accesses.note_open(file, opener);
  return opened;
}

void Files::inherit(InodeId id, int flags, std::int32_t backing_id, bool direct) {
  const InodePtr inode = parts_.table.find(id);
  if (!inode) return;
  Inode::Locked state(*inode);
  if (!state->open) state->open = std::make_unique<OpenFile>();
  OpenFile& file = *state->open;
  file.passthrough = backing_id != 0;
  file.backing_id = backing_id;
  file.direct = file.direct || direct;
  count_open(inode, *state, flags);
  // The predecessor may have died before it dropped them.
  if (direct) parts_.pages.drop_pages_later(id);
}

// Counts one more open of the inode.
void Files::count_open(const InodePtr& inode, InodeState& state, int flags) {
  OpenFile& file = *state.open;
  const bool writes = wants_to_write(flags);
  ++file.opens;
  if (writes) ++file.writers;
  if (can_map_to_write(flags)) ++file.mappers;
  if (can_map_to_write(flags) && current_caller().uid != 0) file.users_map = true;
  open_files_.fetch_add(1, std::memory_order_relaxed);
  if (!file.passthrough) {
    if (writes && !file.moving) file.moving = std::make_shared<SharedMutex>();
    return;
  }
  if (writes) state.pages.stale = true;
  if (writes && file.promised == 0) {
    file.promised = std::max(kLeastPromise, parts_.pool.largest_file());
    file.promised_on = &parts_.pool[state.place().tier];
    file.promised_on->promise(file.promised);
  }
  if (can_map_to_write(flags)) parts_.pages.watch(inode, state);
}

Caller Files::mapper(InodeId id) {
  const InodePtr file = parts_.table.find(id);
  if (!file) return {};
  Inode::Locked state(*file);
  if (!state->open || state->open->users_map) return {.uid = kNobody, .gid = kNobody};
  return {};
}

void Files::release(InodeId id, int flags) {
  const InodePtr file = parts_.table.find(id);
  if (!file) return;
  std::unique_ptr<OpenFile> last;
  SharedFd written;  // set if a passthrough writer closed the file
  SharedFd served;   // set if the last served writer closed it
  bool move_waits = false;
  if (wants_to_write(flags)) parts_.accesses.note_written(file);
  {
    Inode::Locked state(*file);
    if (!state->open) return;
    if (wants_to_write(flags) && state->open->writers > 0) --state->open->writers;
    if (can_map_to_write(flags) && state->open->mappers > 0) --state->open->mappers;
    if (wants_to_write(flags) && state->open->passthrough) written = state->open->reader;
    const bool no_writers = state->open->writers == 0;
    if (no_writers) served = std::exchange(state->open->writer, nullptr);
    if (no_writers && state->open->promised > 0)
      state->open->promised_on->take_back_promise(std::exchange(state->open->promised, 0));
    // Served readers do not prevent a move.
    move_waits = state->move_waits && no_writers && !state->open->passthrough;
    state->open->is_held = false;
    if (--state->open->opens == 0) last = std::move(state->open);
    if (last) move_waits = state->move_waits;
    if (last && last->direct) state->pages.stale = true;
    if (last && state->pages.maybe_mapped && last->reader) {
      // Usually the file is not mapped, and the open descriptor can show that at once: see
      // PageWatch::is_still_mapped().
      if (::fcntl(last->reader->get(), F_SETLEASE, F_RDLCK) == 0) {
        ::fcntl(last->reader->get(), F_SETLEASE, F_UNLCK);
        state->pages.maybe_mapped = false;
        file->record_mapped(false);
      }
    }
  }
  open_files_.fetch_sub(1, std::memory_order_relaxed);
  if (wants_to_write(flags)) parts_.budgets.written(file);
  if (written) parts_.pages.notice_change(file, written, can_map_to_write(flags));
  if (served) parts_.pages.notice_change(file, served, false);
  if (last) {
    if (struct stat st{}; parts_.engine.is_in_use() && last->reader &&
                          ::fstat(last->reader->get(), &st) == 0 && st.st_nlink == 0) {
      parts_.engine.forget(last->reader->get());
    }
    if (last->passthrough) parts_.kernel.remove_backing(last->backing_id);
    parts_.descriptors.let_go(*file);
    parts_.descriptors.drop_reader(*last);
    last.reset();
  }
  if (move_waits) parts_.file_is_free(id);
}

}  // namespace sluice
