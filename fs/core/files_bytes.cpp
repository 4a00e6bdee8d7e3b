// SPDX-License-Identifier: BSD-2-Clause
// Reading and writing files that the daemon serves.
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/dirty_pages.hpp"
#include "fs/core/files.hpp"
#include "fs/core/guards.hpp"
#include "fs/core/no_waiting.hpp"

namespace sluice {

namespace {

// The longest copy made while one request waits; the caller of copy_file_range(2) comes back for
// more.
constexpr std::size_t kMaxCopy = 32 << 20;

// Times that one request may find its tier full and go on in another, or in the same once there is
// room again.
constexpr std::size_t kMaxSpills = 64;

}  // namespace

Result<std::size_t> Files::read(InodeId id, char* buffer, std::size_t size, off_t offset,
                                int flags) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  TierIndex tier = kNoTier;
  const auto place = [&] {
    Inode::Locked state(*file);
    tier = state->place().tier;
    return state->place().handle;
  };
  for (;;) {
    const std::uint64_t switches = parts_.namespace_lock.switches();
    const FileHandle before = place();
    const SharedFd fd =
        SLUICE_TRY(flags & O_NOATIME ? parts_.descriptors.open(file, O_RDONLY | O_NOATIME)
                                     : parts_.descriptors.reader(file));
    std::size_t done = 0;
    int how = must_not_wait ? RWF_NOWAIT : 0;
    while (done < size) {
      const iovec rest{buffer + done, size - done};
      const ssize_t got = ::preadv2(fd->get(), &rest, 1, offset + static_cast<off_t>(done), how);
      if (got < 0 && errno == EINTR) continue;
      // Some filesystems can't tell whether they would wait.
      if (got < 0 && errno == EOPNOTSUPP && std::exchange(how, 0) != 0) continue;
      if (got < 0 && errno == EAGAIN && how != 0) return Error(kWouldWait, "read from a disk");
      if (got < 0) return Error::last("read");
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    parts_.pool[tier].count_read(done);
    // If this file was moved meanwhile, somebody may have written to it since, in its new place.
    // Others may be moved all the time: they are no reason to read again.
    if (parts_.namespace_lock.switches() == switches || place() == before) return done;
  }
}

// Runs `change(writer)`; when its tier is full, moves the file to one with room for `more` bytes at
// `offset` and runs it again.
template <typename Change>
auto Files::with_room(const InodePtr& inode, off_t offset, std::uint64_t more, Change change) {
  using Answer = decltype(change(int{}));
  for (std::size_t spills = 0;; ++spills) {
    SharedFd fd;
    Answer answer = [&]() -> Answer {
      const ChangeGuard guard = SLUICE_TRY(ChangeGuard::of(inode));
      fd = SLUICE_TRY(parts_.descriptors.writer(inode));
      return change(fd->get());
    }();
    if (answer || (answer.error().code != ENOSPC && answer.error().code != EDQUOT)) return answer;
    // A quota may be used up on every tier that has room.
    if (spills == kMaxSpills || must_not_wait) return answer;
    if (const auto moved = parts_.relocator.spill(inode, fd, offset, more); !moved)
      return Answer(moved.error());
  }
}

Result<std::size_t> Files::write(InodeId id, const char* data, std::size_t size, off_t offset,
                                 const std::optional<Caller>& strip_suid, WriteTo where) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  if (must_not_wait) {
    Inode::Locked state(*file);
    if (parts_.pool[state->place().tier].writes_wait() || writes_may_be_slowed())
      return Error(kWouldWait, "write to a busy disk");
  }
  std::size_t done = 0;
  std::chrono::nanoseconds took{};
  bool elsewhere = false;
  const auto put_all = [&](int fd) -> Result<void> {
    if (where == WriteTo::End && done == 0) {
      struct stat st {};
      if (::fstat(fd, &st) < 0) return Error::last("stat");
      elsewhere = st.st_size != offset;
      offset = st.st_size;
    }
    // pwrite(2) would append, too.
    if (where == WriteTo::Offset && file->append_only && (::fcntl(fd, F_GETFL) & O_APPEND))
      return Error(EPERM, "write");
    if (strip_suid) SLUICE_TRY(drop_suid(fd, *strip_suid));
    const auto began = std::chrono::steady_clock::now();
    while (done < size) {
      const ssize_t put = ::pwrite(fd, data + done, size - done, offset + static_cast<off_t>(done));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return Error::last("write");
      done += static_cast<std::size_t>(put);
    }
    took = std::chrono::steady_clock::now() - began;
    return {};
  };
  const auto written = with_room(file, offset, size, put_all);
  bool is_shared = false;
  {
    Inode::Locked state(*file);
    parts_.pool[state->place().tier].count_written(done, took);
    is_shared = state->open && state->open->direct && state->open->opens > 1;
  }
  // Somebody may have mapped a page while we wrote it.
  if (is_shared) parts_.pages.written_below_pages(id);
  // A GPU has written past the kernel, which has put this to the wrong place in its pages.
  if (elsewhere) parts_.pages.written_past_kernel(file);
  // What went in before the disks were full counts: that is what write(2) says too.
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

Result<void> Files::allocate(InodeId id, int mode, off_t offset, off_t length) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  return with_room(file, offset, static_cast<std::uint64_t>(length), [&](int fd) -> Result<void> {
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

Result<off_t> Files::seek(InodeId id, off_t offset, int whence) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.reader(file));
  const off_t at = ::lseek(fd->get(), offset, whence);
  if (at < 0) return Error::last("seek");
  return at;
}

Result<std::size_t> Files::copy_range(InodeId from, off_t from_offset, InodeId to, off_t to_offset,
                                      std::size_t length) {
  const InodePtr source = SLUICE_TRY(parts_.tree.inode(from));
  const InodePtr target = SLUICE_TRY(parts_.tree.inode(to));
  const SharedFd in = SLUICE_TRY(parts_.descriptors.reader(source));
  const std::size_t most = std::min(length, kMaxCopy);
  return with_room(target, to_offset, most, [&](int out) -> Result<std::size_t> {
    const ssize_t copied = ::copy_file_range(in->get(), &from_offset, out, &to_offset, most, 0);
    // EXDEV between tiers: the kernel then copies through the page cache, which the caller does not
    // notice.
    if (copied < 0) return Error::last("copy_file_range");
    return static_cast<std::size_t>(copied);
  });
}

}  // namespace sluice
