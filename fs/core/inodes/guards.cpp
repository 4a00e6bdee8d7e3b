// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/inodes/guards.hpp"

namespace sluice {

Result<ChangeGuard> ChangeGuard::of(InodePtr inode,
                                    const KernelRequest& request) NO_THREAD_SAFETY_ANALYSIS {
  ChangeGuard guard;
  while (inode) {
    std::shared_ptr<FileMove> ending;
    std::shared_ptr<SharedMutex> moving;
    {
      Inode::Locked state(*inode);
      ending = state->switching_move();
      if (!ending) {
        if (state->open) moving = state->open->moving;
        // A spill locks it exclusively while it copies the file.
        if (moving && request.must_not_wait() && !moving->try_lock_shared())
          return Error(kWouldWait, "the file is being spilled to another tier");
        state->cancel_move();
        ++state->changes;
        guard.inode_ = inode;
        guard.moving_ = moving;
      }
    }
    if (!ending) {
      if (moving && !request.must_not_wait()) moving->lock_shared();
      break;
    }
    if (request.must_not_wait()) return Error(kWouldWait, "a move of the file is switching");
    ending->wait_for_end();
  }
  return guard;
}

Result<void> ChangeGuard::check_name() const {
  if (!inode_) return {};
  Inode::Locked state(*inode_);
  if (state->has_duplicate)
    return Error(EIO, "an interrupted move of the file is not finished yet");
  return {};
}

ChangeGuard::~ChangeGuard() {
  if (moving_) moving_->unlock_shared();
  if (!inode_) return;
  Inode::Locked state(*inode_);
  --state->changes;
}

UseGuard::UseGuard(InodePtr inode) : inode_(std::move(inode)) {
  for (;;) {
    std::shared_ptr<FileMove> ending;
    {
      Inode::Locked state(*inode_);
      ending = state->switching_move();
      if (!ending) {
        ++state->uses;
        return;
      }
    }
    ending->wait_for_end();
  }
}

UseGuard::~UseGuard() {
  Inode::Locked state(*inode_);
  --state->uses;
}

}  // namespace sluice
