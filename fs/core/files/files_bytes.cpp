// SPDX-License-Identifier: BSD-2-Clause
// Reading and writing files that the daemon serves.
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/dirty_pages.hpp"
#include "fs/core/files/files.hpp"
#include "fs/core/inodes/guards.hpp"

namespace sluice {

namespace {

// The most bytes that one copy_file_range(2) copies; the caller repeats the call for the rest.
constexpr std::size_t kMaxCopy = 32 << 20;

// How often one request may find its tier full and be repeated after a spill.
constexpr std::size_t kMaxSpills = 64;

// What is left to do of a write to the end of a file.
struct AppendRest {
  off_t offset;      // where the first byte goes
  std::size_t done;  // bytes that are written already
};

// `before`: see Files::write(). A repeated write goes where the first attempt put it.
Result<AppendRest> append_rest(int fd, std::size_t before, std::size_t size,
                               const KernelRequest& request) {
  struct stat st {};
  if (::fstat(fd, &st) < 0) return Error::last("stat");
  request.remember(Fact::Size, static_cast<std::uint64_t>(st.st_size) - before);
  const auto began_at = request.remembered(Fact::Size);
  if (!began_at) return AppendRest{st.st_size, 0};
  const off_t offset = static_cast<off_t>(*began_at + before);
  // With O_APPEND, pwrite(2) would ignore the offset and write the bytes again.
  if (!(::fcntl(fd, F_GETFL) & O_APPEND) || st.st_size < offset) return AppendRest{offset, 0};
  return AppendRest{offset, std::min(size, static_cast<std::size_t>(st.st_size - offset))};
}

}  // namespace

Result<std::size_t> Files::read(InodeId id, char* buffer, std::size_t size, off_t offset, int flags,
                                const KernelRequest& request) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  TierIndex tier = kNoTier;
  const auto place = [&] {
    Inode::Locked state(*file);
    tier = state->place().tier;
    return state->place().handle;
  };
  for (;;) {
    const std::uint64_t switches = parts_.names_lock.switches();
    const FileHandle before = place();
    const SharedFd fd =
        SLUICE_TRY(flags & O_NOATIME ? parts_.descriptors.open(file, O_RDONLY | O_NOATIME)
                                     : parts_.descriptors.reader(file));
    std::size_t done = 0;
    int how = request.must_not_wait() ? RWF_NOWAIT : 0;
    while (done < size) {
      const iovec rest{buffer + done, size - done};
      const ssize_t got = ::preadv2(fd->get(), &rest, 1, offset + static_cast<off_t>(done), how);
      if (got < 0 && errno == EINTR) continue;
      // Some filesystems do not support RWF_NOWAIT.
      if (got < 0 && errno == EOPNOTSUPP && std::exchange(how, 0) != 0) continue;
      if (got < 0 && errno == EAGAIN && how != 0) return Error(kWouldWait, "read from a disk");
      if (got < 0) return Error::last("read");
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    parts_.pool[tier].count_read(done);
    // If this file was moved meanwhile, a user may have written to its new copy. Moves of other
    // files are no reason to read again.
    if (parts_.names_lock.switches() == switches || place() == before) return done;
  }
}

// Runs `change(writer)`. If the tier is full, spills the file to one with room for `more` bytes at
// `offset` and runs it again.
template <typename Change>
auto Files::with_room(const InodePtr& inode, off_t offset, std::uint64_t more,
                      const KernelRequest& request, Change change) {
  using Answer = decltype(change(int{}));
  for (std::size_t spills = 0;; ++spills) {
    SharedFd fd;
    Answer answer = [&]() -> Answer {
      const ChangeGuard guard = SLUICE_TRY(ChangeGuard::of(inode, request));
      fd = SLUICE_TRY(parts_.descriptors.writer(inode));
      return change(fd->get());
    }();
    if (answer || (answer.error().code != ENOSPC && answer.error().code != EDQUOT)) return answer;
    // A limit, because the user's quota may be used up on every tier that has room.
    if (spills == kMaxSpills || request.must_not_wait()) return answer;
    if (const auto moved = parts_.relocator.spill(inode, fd, offset, more); !moved)
      return answer.error().code == EDQUOT ? answer : Answer(moved.error());
  }
}

Result<std::size_t> Files::write(InodeId id, const char* data, std::size_t size, off_t offset,
                                 const std::optional<Caller>& strip_suid, WriteTo where,
                                 std::size_t before, const KernelRequest& request) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  if (file->waits_for_room) SLUICE_TRY(parts_.budgets.claim_room(file, request));
  if (request.must_not_wait()) {
    Inode::Locked state(*file);
    if (parts_.pool[state->place().tier].writes_wait() || writes_may_be_slowed())
      return Error(kWouldWait, "write to a busy disk");
  }
  std::size_t done = 0;
  std::chrono::nanoseconds took{};
  bool elsewhere = false;
  const auto put_all = [&](int fd) -> Result<void> {
    if (where == WriteTo::End && done == 0) {
      const AppendRest rest = SLUICE_TRY(append_rest(fd, before, size, request));
      elsewhere = rest.offset != offset;
      offset = rest.offset;
      done = rest.done;
    }
    // With O_APPEND, pwrite(2) would ignore the offset.
    if (where == WriteTo::Offset && file->append_only && (::fcntl(fd, F_GETFL) & O_APPEND))
      return Error(EPERM, "write");
    if (strip_suid) SLUICE_TRY(drop_suid(fd, *strip_suid));
    CallersRoom room;
    const auto began = std::chrono::steady_clock::now();
    while (done < size) {
      const ssize_t put = ::pwrite(fd, data + done, size - done, offset + static_cast<off_t>(done));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return Error::last("write");
      done += static_cast<std::size_t>(put);
    }
    took = std::chrono::steady_clock::now() - began;
    // A thread that takes requests often gets the next write of the same user.
    if (request.must_not_wait()) room.keep();
    return {};
  };
  const auto written = with_room(file, offset, size, request, put_all);
  bool is_shared = false;
  {
    Inode::Locked state(*file);
    parts_.pool[state->place().tier].count_written(done, took);
    is_shared = state->open && state->open->direct && state->open->opens > 1;
  }
  // Another process may have mapped a page while we wrote below it.
  if (is_shared) parts_.pages.drop_pages_later(id);
  // A GPU extended the file without the kernel's knowledge, so the kernel cached this write at the
  // wrong offset.
  if (elsewhere) parts_.pages.drop_cached(file);
  // Like write(2), return the number of bytes that were written before the error.
  if (!written && done == 0) return written.error();
  return done;
}

Result<void> Files::sync(InodeId id, bool data_only) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.reader(file));
  // Not retried: after a failed fsync the kernel may have dropped the dirty pages, so a second call
  // that succeeds would prove nothing.
  if ((data_only ? ::fdatasync(fd->get()) : ::fsync(fd->get())) < 0) return Error::last("sync");
  return {};
}

Result<void> Files::allocate(InodeId id, int mode, off_t offset, off_t length,
                             const KernelRequest& request) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  if (file->waits_for_room) SLUICE_TRY(parts_.budgets.claim_room(file, request));
  return with_room(file, offset, static_cast<std::uint64_t>(length), request,
                   [&](int fd) -> Result<void> {
                     const CallersRoom room;
                     while (::fallocate(fd, mode, offset, length) < 0) {
                       if (errno != EINTR) return Error::last("fallocate");
                     }
                     return {};
                   });
}

bool Files::is_append_only(InodeId id) {
  const InodePtr file = parts_.table.find(id);
  return file && file->append_only;
}

bool Files::waits_for_room(InodeId id) {
  const InodePtr file = parts_.table.find(id);
  return file && file->waits_for_room;
}

void Files::stop_waiting_for_room(InodeId id) {
  const InodePtr file = parts_.table.find(id);
  if (file && file->waits_for_room) parts_.budgets.give_up_claim(file);
}

Result<off_t> Files::seek(InodeId id, off_t offset, int whence) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.reader(file));
  const off_t at = ::lseek(fd->get(), offset, whence);
  if (at < 0) return Error::last("seek");
  return at;
}

Result<std::size_t> Files::copy_range(InodeId from, off_t from_offset, InodeId to, off_t to_offset,
                                      std::size_t length, const KernelRequest& request) {
  const InodePtr source = SLUICE_TRY(parts_.tree.inode(from));
  const InodePtr target = SLUICE_TRY(parts_.tree.inode(to));
  if (target->waits_for_room) SLUICE_TRY(parts_.budgets.claim_room(target, request));
  const SharedFd in = SLUICE_TRY(parts_.descriptors.reader(source));
  const std::size_t most = std::min(length, kMaxCopy);
  return with_room(target, to_offset, most, request, [&](int out) -> Result<std::size_t> {
    const CallersRoom room;
    const ssize_t copied = ::copy_file_range(in->get(), &from_offset, out, &to_offset, most, 0);
    // EXDEV between tiers: the kernel then copies through the page cache; the caller sees no error.
    if (copied < 0) return Error::last("copy_file_range");
    return static_cast<std::size_t>(copied);
  });
}

}  // namespace sluice
