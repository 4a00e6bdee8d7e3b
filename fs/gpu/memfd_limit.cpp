// SPDX-License-Identifier: BSD-2-Clause
#include "fs/gpu/memfd_limit.hpp"

#include <sys/stat.h>

#include <algorithm>

namespace sluice {

Result<MemfdLimit::Share> MemfdLimit::take(uid_t user, const UniqueFd& memfd, std::uint64_t bytes) {
  struct stat status {};
  if (::fstat(memfd.get(), &status) < 0) return Error::last("stat host memory");
  const Id id{user, status.st_dev, status.st_ino};
  MutexLock lock(mutex_);
  const auto found = uses_.find(id);
  const Use before = found == uses_.end() ? Use{} : found->second;
  Use after = before;
  after.registered += bytes;
  after.size = std::max(after.size, static_cast<std::uint64_t>(status.st_size));
  const std::uint64_t more = after.counted() - before.counted();
  if (used_ > most_ || more > most_ - used_) {
    return Error(ENOSPC, "the limit gpu_host_memory is reached");
  }
  const auto mine = of_user_.find(user);
  const std::uint64_t total = (mine == of_user_.end() ? 0 : mine->second) + more;
  if (user != 0 && more > 0 && total > most_ - used_ - more) {
    return Error(ENOSPC, "the user's share of gpu_host_memory is used up");
  }
  uses_[id] = after;
  used_ += more;
  if (total > 0) of_user_[user] = total;
  Share share;
  share.limit_ = this;
  share.memfd_ = id;
  share.bytes_ = bytes;
  return share;
}

void MemfdLimit::give_back(const Id& memfd, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  const auto use = uses_.find(memfd);
  const std::uint64_t before = use->second.counted();
  use->second.registered -= bytes;
  const std::uint64_t less = before - use->second.counted();
  used_ -= less;
  const auto mine = of_user_.find(std::get<uid_t>(memfd));
  if (mine != of_user_.end() && (mine->second -= less) == 0) of_user_.erase(mine);
  if (use->second.registered == 0) uses_.erase(use);
}

std::uint64_t MemfdLimit::used() const {
  MutexLock lock(mutex_);
  return used_;
}

std::uint64_t MemfdLimit::largest_share() const {
  MutexLock lock(mutex_);
  std::uint64_t most = 0;
  for (const auto& [user, bytes] : of_user_) most = std::max(most, bytes);
  return most;
}

}  // namespace sluice
