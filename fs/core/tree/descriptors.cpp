// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/tree/descriptors.hpp"

#include <fcntl.h>
#include <unistd.h>

#include "base/file_at.hpp"

namespace sluice {

Descriptors::Descriptors(Pool& pool, DirectoryTree& tree, KernelSide& kernel)
    : pool_(pool),
      tree_(tree),
      kernel_(kernel),
      // Half of the descriptors that a process may have.
      most_readers_(static_cast<std::uint64_t>(::sysconf(_SC_OPEN_MAX)) / 2) {}

Result<SharedFd> Descriptors::any(const InodePtr& inode) {
  if (inode->is_directory()) return SLUICE_TRY(tree_.open_copies(inode)).reachable[0].fd;
  {
    Inode::Locked state(*inode);
    if (state->open && state->open->reader) return state->open->reader;
  }
  return open_handle(inode, O_PATH);
}

Result<SharedFd> Descriptors::open(const InodePtr& inode, int flags) {
  constexpr int kTries = 3;
  for (int tries = 1;; ++tries) {
    SharedFd open;
    {
      // The mover takes and releases its own leases while the inode is locked. Locking the inode
      // here waits for that, so another EAGAIN means a lease of another process.
      Inode::Locked state(*inode);
      const Copy& copy = state->place();
      open = state->open && state->open->reader ? state->open->reader : copy.fd;
    }
    auto opened = open ? reopen(open->get(), flags) : open_handle(inode, flags);
    if (!failed_with(opened, EAGAIN) || tries == kTries) return opened;
  }
}

// Opening the link in /proc opens the same file, even if it has no name.
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
    // ESTALE: the file may have moved to another tier meanwhile.
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
    // The file was moved meanwhile, and this descriptor belongs to the old copy.
    if (state->place().handle != place) continue;
    if (!state->open || state->open->reader) return state->open ? state->open->reader : fd;
    if (keep == Keep::Always || has_room_for_readers()) keep_reader(*state->open, fd);
    return fd;
  }
}

// The kernel's table of backing files belongs to the mount, not to the daemon.
void Descriptors::keep_in_existence(Inode& file, int fd) {
  if (!file.is_recorded()) return;
  const auto readable = reopen(fd, O_RDONLY);
  if (!readable) return;  // what was kept before stays
  const auto id = kernel_.add_backing((*readable)->get());
  if (!id) return;
  Inode::Locked state(file);
  // If the file was closed meanwhile, nobody would release it.
  const std::int32_t unused = state->open ? file.record_keeper(*id) : *id;
  if (unused != 0) kernel_.remove_backing(unused);
}

void Descriptors::let_go(Inode& file) {
  Inode::Locked state(file);
  if (state->open) return;  // it was opened again
  const std::int32_t before = file.record_keeper(0);
  if (before != 0) kernel_.remove_backing(before);
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
  // Kept only for served writers. Without writers, it would prevent every move. For passthrough
  // writers, it would cost one descriptor per open file.
  if (!state->open || state->open->writers == 0 || !state->open->moving) return fd;
  if (!state->open->writer) state->open->writer = fd;
  return state->open->writer;
}

}  // namespace sluice
