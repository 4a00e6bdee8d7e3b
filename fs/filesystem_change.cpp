// SPDX-License-Identifier: BSD-2-Clause
// Who changes a file, or a name, that may be on its way to another tier.
#include "fs/filesystem.hpp"
#include "fs/no_waiting.hpp"

namespace sluice {

Result<Filesystem::ChangeGuard> Filesystem::ChangeGuard::of(InodePtr inode)
    NO_THREAD_SAFETY_ANALYSIS {
  ChangeGuard guard;
  while (inode) {
    std::shared_ptr<FileMove> ending;
    std::shared_ptr<SharedMutex> moving;
    {
      MutexLock lock(inode->mutex);
      if (!inode->move || !inode->move->is_switching) {
        if (inode->open) moving = inode->open->moving;
        // Whoever has it exclusively copies the file, as long as that takes.
        if (moving && must_not_wait && !moving->try_lock_shared())
          return Error(kWouldWait, "the file is being taken to another tier");
        if (inode->move) inode->move->cancel();
        ++inode->changes;
        guard.inode_ = inode;
        guard.moving_ = moving;
      } else {
        ending = inode->move;
      }
    }
    if (!ending) {
      if (moving && !must_not_wait) moving->lock_shared();
      break;
    }
    if (must_not_wait) return Error(kWouldWait, "the file's move is about to end");
    ending->wait_for_end();
  }
  return guard;
}

Result<void> Filesystem::ChangeGuard::check_name() const {
  if (!inode_) return {};
  MutexLock lock(inode_->mutex);
  if (inode_->has_twin) return Error(EIO, "a move of the file can't be finished");
  return {};
}

Filesystem::ChangeGuard::~ChangeGuard() {
  if (moving_) moving_->unlock_shared();
  if (!inode_) return;
  MutexLock lock(inode_->mutex);
  --inode_->changes;
}

InodePtr Filesystem::moving_inode(const InodePtr& directory, const char* name, NamesLock held) {
  while (moves_.load() > 0) {
    const std::uint64_t switches = switches_.load();
    const auto copies = open_copies(directory);
    const auto found = copies ? locate_told(directory, *copies, name, held) : copies.error();
    if (!found) break;
    if (!found->empty())
      return S_ISREG((*found)[0].st.st_mode) ? table_.find((*found)[0]) : nullptr;
    if (switches_.load() == switches) break;
  }
  return nullptr;
}

}  // namespace sluice
