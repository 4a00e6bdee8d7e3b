// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/guards.hpp"

#include "fs/core/no_waiting.hpp"

namespace sluice {

Result<ChangeGuard> ChangeGuard::of(InodePtr inode) NO_THREAD_SAFETY_ANALYSIS {
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

Result<void> ChangeGuard::check_name() const {
  if (!inode_) return {};
  MutexLock lock(inode_->mutex);
  if (inode_->has_twin) return Error(EIO, "a move of the file can't be finished");
  return {};
}

ChangeGuard::~ChangeGuard() {
  if (moving_) moving_->unlock_shared();
  if (!inode_) return;
  MutexLock lock(inode_->mutex);
  --inode_->changes;
}

UseGuard::UseGuard(InodePtr inode) : inode_(std::move(inode)) {
  for (;;) {
    std::shared_ptr<FileMove> ending;
    {
      MutexLock lock(inode_->mutex);
      if (!inode_->move || !inode_->move->is_switching) {
        ++inode_->uses;
        return;
      }
      ending = inode_->move;
    }
    ending->wait_for_end();
  }
}

UseGuard::~UseGuard() {
  MutexLock lock(inode_->mutex);
  --inode_->uses;
}

}  // namespace sluice
