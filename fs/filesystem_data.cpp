// SPDX-License-Identifier: BSD-2-Clause
// Bytes: reading and writing files, and noticing what was written past us.
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/dirty_pages.hpp"
#include "base/file_at.hpp"
#include "fs/filesystem.hpp"
#include "fs/no_waiting.hpp"

namespace sluice {
namespace {

// The longest copy made while one request waits; the caller of copy_file_range(2) comes back for
// more.
constexpr std::size_t kMaxCopy = 32 << 20;

// Times that one request may find its tier full and go on in another, or in the same once there is
// room again.
constexpr std::size_t kMaxSpills = 64;

}  // namespace

// A descriptor on the inode's bytes with `flags`, from its handle or from what is open already.
// EAGAIN if somebody has a lease on the file.
Result<SharedFd> Filesystem::open_bytes(const InodePtr& inode, int flags) {
  constexpr int kTries = 3;
  for (int tries = 1;; ++tries) {
    SharedFd open;
    {
      // A lease of our own is taken and turned under this lock. However long its thread was kept
      // from running, we have waited for it here.
      MutexLock lock(inode->mutex);
      const Copy& copy = inode->copies[0];
      open = inode->open && inode->open->reader ? inode->open->reader : copy.fd;
    }
    auto opened = open ? reopen(open->get(), flags) : open_handle_of(inode, flags);
    if (!failed_with(opened, EAGAIN) || tries == kTries) return opened;
  }
}

// /proc is the kernel's way to do that without a name.
Result<SharedFd> Filesystem::reopen(int fd, int flags) {
  const std::string path = proc_path(fd);
  return SharedFd(std::make_shared<UniqueFd>(SLUICE_TRY(
      open_without_waiting([&](int how) { return ::open(path.c_str(), how); }, flags, "reopen"))));
}

Result<SharedFd> Filesystem::open_handle_of(const InodePtr& inode, int flags) {
  for (FileHandle tried;;) {
    Copy copy;
    {
      MutexLock lock(inode->mutex);
      copy = inode->copies[0];
    }
    Tier& tier = pool_[copy.tier];
    if (!tier.online()) return Error(EIO, "tier is offline");
    if (copy.fd) return flags & O_PATH ? copy.fd : reopen(copy.fd->get(), flags);
    auto opened = tier.open(copy.handle, flags);
    if (opened) return SharedFd(std::make_shared<UniqueFd>(*std::move(opened)));
    // Unless it moved to another tier between our asking where it is and going there.
    if (opened.error().code != ESTALE || copy.handle == tried) return opened.error();
    tried = copy.handle;
  }
}

Result<SharedFd> Filesystem::reader(const InodePtr& inode, Keep keep) {
  for (;;) {
    FileHandle place;
    {
      MutexLock lock(inode->mutex);
      if (inode->open && inode->open->reader) return inode->open->reader;
      place = inode->copies[0].handle;
    }
    SharedFd fd = SLUICE_TRY(open_bytes(inode, O_RDONLY));
    MutexLock lock(inode->mutex);
    // It moved meanwhile: this descriptor is of the file that is gone.
    if (inode->copies[0].handle != place) continue;
    if (!inode->open || inode->open->reader) return inode->open ? inode->open->reader : fd;
    if (keep == Keep::Always || readers_.load() < most_readers_) keep_reader(*inode->open, fd);
    return fd;
  }
}

void Filesystem::keep_reader(OpenFile& file, SharedFd fd) {
  file.reader = std::move(fd);
  readers_.fetch_add(1);
}

Result<SharedFd> Filesystem::writer(const InodePtr& inode) {
  {
    MutexLock lock(inode->mutex);
    if (inode->open && inode->open->writer) return inode->open->writer;
  }
  auto opened = open_bytes(inode, O_RDWR);
  if (failed_with(opened, EPERM) && inode->append_only)
    opened = open_bytes(inode, O_RDWR | O_APPEND);
  if (!opened) return opened.error();
  SharedFd fd = *std::move(opened);
  MutexLock lock(inode->mutex);
  // Kept for writers whom we serve: where nobody writes, it would forbid every move; where the
  // kernel writes, it would be one descriptor for each file that is open.
  if (!inode->open || inode->open->writers == 0 || !inode->open->moving) return fd;
  if (!inode->open->writer) inode->open->writer = fd;
  return inode->open->writer;
}

// Drops setuid, and setgid where it means execution or the caller is not in the group, as the
// kernel does when somebody without CAP_FSETID changes a file.
Result<void> Filesystem::drop_suid(int fd, const Caller& caller) {
  struct stat st {};
  if (::fstat(fd, &st) < 0) return Error::last("stat");
  mode_t mode = st.st_mode & ~static_cast<mode_t>(S_ISUID);
  // Root is asked about too: the kernel sends this with each chown.
  const bool may_keep_setgid = caller.uid == 0 || is_member(caller, st.st_gid);
  if ((mode & S_ISGID) && ((mode & S_IXGRP) || !may_keep_setgid)) {
    mode &= ~static_cast<mode_t>(S_ISGID);
  }
  if (mode == st.st_mode) return {};
  if (::chmod(proc_path(fd).c_str(), mode & 07777) < 0) return Error::last("drop setuid");
  return {};
}

// Whether a writable mapping has outlived the last close of this file. A read lease can be had only
// if nobody, mapping or descriptor, can write. Answers "no" once and for all until the next open
// for writing.
bool Filesystem::still_mapped(const InodePtr& inode) {
  const auto fd = open_bytes(inode, O_RDONLY);
  if (!fd) return false;
  MutexLock lock(inode->mutex);
  // Where no lease can be had (CAP_LEASE is missing, the tier knows none), it may be.
  if (::fcntl((*fd)->get(), F_SETLEASE, F_RDLCK) < 0) return true;
  ::fcntl((*fd)->get(), F_SETLEASE, F_UNLCK);
  if (!inode->open || inode->open->mappers == 0) inode->maybe_mapped = false;
  return false;
}

void Filesystem::notice_change(const InodePtr& inode, const SharedFd& fd, bool unseen) {
  struct stat st {};
  if (::fstat(fd->get(), &st) < 0) return;
  const std::int64_t mtime = st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec;
  {
    note_size(static_cast<std::uint64_t>(st.st_blocks) * 512);
    MutexLock lock(inode->mutex);
    inode->size_hint = static_cast<std::uint64_t>(st.st_size);
    if (!unseen || inode->told_mtime == 0 || inode->told_mtime == mtime) return;
    inode->told_mtime = 0;
  }
  kernel_.drop_attributes(inode->id());
}

// Whether there is nothing to look for any more. Then it is off the list.
bool Filesystem::is_no_longer_mapped(const InodePtr& inode) {
  bool maybe = false;
  {
    MutexLock lock(inode->mutex);
    if (inode->open && inode->open->mappers > 0) return false;
    maybe = inode->maybe_mapped;
  }
  if (maybe && still_mapped(inode)) return false;
  MutexLock lock(inode->mutex);
  // Opened meanwhile: who did so saw it on the list.
  if (inode->open && inode->open->mappers > 0) return false;
  inode->is_watched = false;
  return true;
}

// Stores through a mapping change a file's times without a request: look, every second, at those
// that may be mapped.
void Filesystem::notice_mapped_changes() {
  std::vector<std::weak_ptr<Inode>> candidates;
  {
    MutexLock lock(mapped_mutex_);
    candidates.swap(mapped_);
  }
  for (auto& candidate : candidates) {
    const InodePtr inode = candidate.lock();
    if (!inode) continue;
    if (is_no_longer_mapped(inode)) continue;
    if (const auto fd = any_fd(inode)) notice_change(inode, *fd, true);
    MutexLock lock(mapped_mutex_);
    mapped_.push_back(std::move(candidate));
  }
}

Result<std::size_t> Filesystem::read(InodeId id, char* buffer, std::size_t size, off_t offset,
                                     int flags) {
  const InodePtr file = SLUICE_TRY(inode(id));
  TierIndex tier = kNoTier;
  const auto place = [&] {
    MutexLock lock(file->mutex);
    tier = file->copies[0].tier;
    return file->copies[0].handle;
  };
  for (;;) {
    const std::uint64_t switches = switches_.load();
    const FileHandle before = place();
    const SharedFd fd =
        SLUICE_TRY(flags & O_NOATIME ? open_bytes(file, O_RDONLY | O_NOATIME) : reader(file));
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
    pool_[tier].count_read(done);
    // If this file was moved meanwhile, somebody may have written to it since, in its new place.
    // Others may be moved all the time: they are no reason to read again.
    if (switches_.load() == switches || place() == before) return done;
  }
}

// Runs `change(writer)`; when its tier is full, moves the file to one with room for `more` bytes at
// `offset` and runs it again.
template <typename Change>
auto Filesystem::with_room(const InodePtr& inode, off_t offset, std::uint64_t more, Change change) {
  using Answer = decltype(change(int{}));
  for (std::size_t spills = 0;; ++spills) {
    SharedFd fd;
    Answer answer = [&]() -> Answer {
      const ChangeGuard guard = SLUICE_TRY(ChangeGuard::of(inode));
      fd = SLUICE_TRY(writer(inode));
      return change(fd->get());
    }();
    if (answer || (answer.error().code != ENOSPC && answer.error().code != EDQUOT)) return answer;
    // A quota may be used up on every tier that has room.
    if (spills == kMaxSpills || must_not_wait) return answer;
    const auto moved = spill(inode, fd, offset, more);
    if (!moved && wait_for_deleted()) continue;
    if (!moved) {
      say_that_there_is_no_room(inode, moved.error());
      return Answer(Error(ENOSPC, "no tier has room"));
    }
  }
}

Result<std::size_t> Filesystem::write(InodeId id, const char* data, std::size_t size, off_t offset,
                                      const std::optional<Caller>& strip_suid, WriteTo where) {
  const InodePtr file = SLUICE_TRY(inode(id));
  if (must_not_wait) {
    MutexLock lock(file->mutex);
    if (pool_[file->copies[0].tier].writes_wait() || writes_may_be_slowed())
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
    MutexLock lock(file->mutex);
    pool_[file->copies[0].tier].count_written(done, took);
    is_shared = file->open && file->open->direct && file->open->opens > 1;
  }
  if (is_shared) {
    // Somebody may have mapped a page while we wrote it: dropped by the next tick().
    MutexLock lock(mapped_mutex_);
    written_.insert(id);
  }
  // A GPU has written past the kernel, which has put this to the wrong place in its pages.
  if (elsewhere) written_past_kernel(file);
  // What went in before the disks were full counts: that is what write(2) says too.
  if (!written && done == 0) return written.error();
  return done;
}

Result<void> Filesystem::sync(InodeId id, bool data_only) {
  const InodePtr file = SLUICE_TRY(inode(id));
  const SharedFd fd = SLUICE_TRY(reader(file));
  // Not retried: after a failed fsync the kernel may have dropped the dirty pages, so a second call
  // that succeeds would prove nothing.
  if ((data_only ? ::fdatasync(fd->get()) : ::fsync(fd->get())) < 0) return Error::last("sync");
  return {};
}

Result<void> Filesystem::allocate(InodeId id, int mode, off_t offset, off_t length) {
  const InodePtr file = SLUICE_TRY(inode(id));
  return with_room(file, offset, static_cast<std::uint64_t>(length), [&](int fd) -> Result<void> {
    while (::fallocate(fd, mode, offset, length) < 0) {
      if (errno != EINTR) return Error::last("fallocate");
    }
    return {};
  });
}

bool Filesystem::is_append_only(InodeId id) {
  const InodePtr file = table_.find(id);
  return file && file->append_only;
}

Result<off_t> Filesystem::seek(InodeId id, off_t offset, int whence) {
  const InodePtr file = SLUICE_TRY(inode(id));
  const SharedFd fd = SLUICE_TRY(reader(file));
  const off_t at = ::lseek(fd->get(), offset, whence);
  if (at < 0) return Error::last("seek");
  return at;
}

Result<std::size_t> Filesystem::copy_range(InodeId from, off_t from_offset, InodeId to,
                                           off_t to_offset, std::size_t length) {
  const InodePtr source = SLUICE_TRY(inode(from));
  const InodePtr target = SLUICE_TRY(inode(to));
  const SharedFd in = SLUICE_TRY(reader(source));
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
