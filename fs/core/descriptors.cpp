// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/descriptors.hpp"

#include <fcntl.h>
#include <unistd.h>

#include "base/file_at.hpp"

namespace sluice {

Descriptors::Descriptors(Pool& pool, DirectoryTree& tree)
    : pool_(pool),
      tree_(tree),
      // Half of the descriptors that a process may have.
      most_readers_(static_cast<std::uint64_t>(::sysconf(_SC_OPEN_MAX)) / 2) {}

// A descriptor on the inode for operations that need no access to its bytes: O_PATH if nothing
// better is at hand.
Result<SharedFd> Descriptors::any(const InodePtr& inode) {
  if (inode->is_directory()) return SLUICE_TRY(tree_.open_copies(inode)).reachable[0].fd;
  {
    Inode::Locked state(*inode);
    if (state->open && state->open->reader) return state->open->reader;
  }
  return open_handle(inode, O_PATH);
}

// A descriptor on the inode's bytes with `flags`, from its handle or from what is open already.
// EAGAIN if somebody has a lease on the file.
Result<SharedFd> Descriptors::open(const InodePtr& inode, int flags) {
  constexpr int kTries = 3;
  for (int tries = 1;; ++tries) {
    SharedFd open;
    {
      // A lease of our own is taken and turned under this lock. However long its thread was kept
      // from running, we have waited for it here.
      Inode::Locked state(*inode);
      const Copy& copy = state->place();
      open = state->open && state->open->reader ? state->open->reader : copy.fd;
    }
    auto opened = open ? reopen(open->get(), flags) : open_handle(inode, flags);
    if (!failed_with(opened, EAGAIN) || tries == kTries) return opened;
  }
}

// /proc is the kernel's way to do that without a name.
Result<SharedFd> Descriptors::reopen(int fd, int flags) {
  const std::string path = proc_path(fd);
  return SharedFd(std::make_shared<UniqueFd>(SLUICE_TRY(
      open_without_waiting([&](int how) { return ::open(path.c_str(), how); }, flags, "reopen"))));
}

Result<SharedFd> Descriptors::open_handle(const InodePtr& inode, int flags) {
  for (FileHandle tried;;) {
    Copy copy;
    {
      Inode::Locked state(*inode);
      copy = state->copies[0];
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

Result<SharedFd> Descriptors::reader(const InodePtr& inode, Keep keep) {
  for (;;) {
    FileHandle place;
    {
      Inode::Locked state(*inode);
      if (state->open && state->open->reader) return state->open->reader;
      place = state->place().handle;
    }
    SharedFd fd = SLUICE_TRY(open(inode, O_RDONLY));
    Inode::Locked state(*inode);
    // It moved meanwhile: this descriptor is of the file that is gone.
    if (state->place().handle != place) continue;
    if (!state->open || state->open->reader) return state->open ? state->open->reader : fd;
    if (keep == Keep::Always || has_room_for_readers()) keep_reader(*state->open, fd);
    return fd;
  }
}

void Descriptors::keep_reader(OpenFile& file, SharedFd fd) {
  file.reader = std::move(fd);
  readers_.fetch_add(1);
}

void Descriptors::drop_reader(OpenFile& file) {
  if (!file.reader) return;
  file.reader = nullptr;
  readers_.fetch_sub(1);
}

Result<SharedFd> Descriptors::writer(const InodePtr& inode) {
  {
    Inode::Locked state(*inode);
    if (state->open && state->open->writer) return state->open->writer;
  }
  auto opened = open(inode, O_RDWR);
  if (failed_with(opened, EPERM) && inode->append_only) opened = open(inode, O_RDWR | O_APPEND);
  if (!opened) return opened.error();
  SharedFd fd = *std::move(opened);
  Inode::Locked state(*inode);
  // Kept for writers whom we serve: where nobody writes, it would forbid every move; where the
  // kernel writes, it would be one descriptor for each file that is open.
  if (!state->open || state->open->writers == 0 || !state->open->moving) return fd;
  if (!state->open->writer) state->open->writer = fd;
  return state->open->writer;
}

}  // namespace sluice
