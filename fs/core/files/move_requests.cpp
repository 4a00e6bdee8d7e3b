// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/files/move_requests.hpp"

namespace sluice {
namespace {

// Whether a user may ask for moves to the tier. If it is only full, they wait for room.
Result<void> check_tier(const Tier& tier) {
  switch (tier.intake()) {
    case Intake::Offline:
      return Error(EIO, "the tier is offline");
    case Intake::ReadOnly:
      return Error(EROFS, "the tier is read-only");
    case Intake::Draining:
      return Error(EBUSY, "the tier is being emptied");
    default:
      return {};
  }
}

}  // namespace

Result<void> MoveRequests::request(const InodePtr& inode, TierIndex to, uid_t user) {
  if (!S_ISREG(inode->type)) return Error(EISDIR, "move");
  if (migration_ == nullptr) return Error(EOPNOTSUPP, "move");
  SLUICE_TRY(check_tier(pool_[to]));
  if (pool_[inode->tier()].intake() == Intake::ReadOnly)
    return Error(EROFS, "the file is on a tier that is read-only");
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
    const Mover::Withdrawal before = migration_->mover().withdraw(move.id);
    if (before.what != Mover::Withdrawn::TooLate || before.to == to) return {};
    move.from = before.to;  // it is leaving right now, so it has to come back
  }
  return migration_->request(std::move(move));
}

Result<void> MoveRequests::withdraw(const InodePtr& inode) {
  if (!S_ISREG(inode->type)) return Error(EISDIR, "withdraw move");
  if (migration_ == nullptr) return Error(EOPNOTSUPP, "withdraw move");
  switch (migration_->mover().withdraw(inode->id()).what) {
    case Mover::Withdrawn::Ended:
      return {};
    case Mover::Withdrawn::TooLate:
      return Error(EALREADY, "withdraw move");
    case Mover::Withdrawn::Nothing:
      break;
  }
  return Error(ENODATA, "withdraw move");
}

Result<void> MoveRequests::promote(InodeId id, uid_t user) {
  const InodePtr file = SLUICE_TRY(tree_.inode(id));
  const auto bytes =
      static_cast<std::uint64_t>(SLUICE_TRY(attributes_.stat_of(file)).st_blocks) * 512;
  const TierIndex here = file->tier();
  bool is_fastest = true;
  for (TierIndex faster = 0; faster < here; ++faster) {
    const Tier& tier = pool_[faster];
    tier.refresh_space();
    const TierFacts facts = tier.facts();
    if (!is_usable(facts)) continue;
    is_fastest = false;
    if (is_crowded(facts) || tier.space().free < bytes + tier.reserve()) continue;
    return request(file, faster, user);
  }
  if (!is_fastest) return Error(ENOSPC, "no faster tier has room");
  return {};
}

}  // namespace sluice
