// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/move_requests.hpp"

namespace sluice {

Result<void> MoveRequests::request(const InodePtr& inode, TierIndex to, uid_t user) {
  if (!S_ISREG(inode->type)) return Error(EISDIR, "move");
  if (migration_ == nullptr) return Error(EOPNOTSUPP, "move");
  if (!pool_[to].online()) return Error(EIO, "the tier is offline");
  if (pool_[to].is_draining()) return Error(EBUSY, "the tier is being emptied");
  Move move;
  move.id = inode->id();
  move.to = to;
  move.why = kAskedFor;
  move.user = user;
  const struct stat st = SLUICE_TRY(attributes_.stat_of(inode));
  if (st.st_nlink == 0) return Error(ENOENT, "move");
  move.set_size(st.st_size, st.st_blocks);
  // Empty if the last known name is gone and the file has another one. The mover looks for it.
  move.paths.push_back(tree_.path_of(inode));
  move.from = inode->tier();
  if (move.from == to) {
    const auto running = migration_->mover().running(move.id);
    if (!running || running->to == to) {
      migration_->mover().cancel(move.id);
      return {};
    }
    move.from = running->to;  // it is about to leave, so it has to come back
  }
  return migration_->request(std::move(move));
}

Result<void> MoveRequests::promote(InodeId id, uid_t user) {
  const InodePtr file = SLUICE_TRY(tree_.inode(id));
  const auto bytes =
      static_cast<std::uint64_t>(SLUICE_TRY(attributes_.stat_of(file)).st_blocks) * 512;
  const TierIndex here = file->tier();
  bool is_fastest = true;
  for (TierIndex faster = 0; faster < here; ++faster) {
    const Tier& tier = pool_[faster];
    if (!tier.online() || tier.is_draining()) continue;
    is_fastest = false;
    tier.refresh_space();
    if (tier.above_high_watermark() || tier.space().free < bytes + tier.reserve()) continue;
    return request(file, faster, user);
  }
  if (!is_fastest) return Error(ENOSPC, "no faster tier has room");
  return {};
}

}  // namespace sluice
