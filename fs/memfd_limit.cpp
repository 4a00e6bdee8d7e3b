// SPDX-License-Identifier: BSD-2-Clause
#include "fs/memfd_limit.hpp"

#include <sys/stat.h>

#include <algorithm>

namespace sluice {

Result<MemfdLimit::Share> MemfdLimit::take(const UniqueFd& memfd, std::uint64_t bytes) {
  struct stat status {};
  if (::fstat(memfd.get(), &status) < 0) return Error::last("look at host memory");
  const Id id{status.st_dev, status.st_ino};
  MutexLock lock(mutex_);
  const auto found = uses_.find(id);
  const Use before = found == uses_.end() ? Use{} : found->second;
  Use after = before;
  after.registered += bytes;
  after.size = std::max(after.size, static_cast<std::uint64_t>(status.st_size));
  const std::uint64_t more = after.counted() - before.counted();
  if (used_ > most_ || more > most_ - used_) {
    return Error(ENOSPC, "more host memory than gpu_host_memory allows");
  }
  uses_[id] = after;
  used_ += more;
  Share share;
  share.limit_ = this;
  share.memfd_ = id;
  share.bytes_ = bytes;
  return share;
}

void MemfdLimit::give_back(const Id& memfd, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  const auto use = uses_.find(memfd);
  used_ -= use->second.counted();
  use->second.registered -= bytes;
  used_ += use->second.counted();
  if (use->second.registered == 0) uses_.erase(use);
}

std::uint64_t MemfdLimit::used() const {
  MutexLock lock(mutex_);
  return used_;
}

}  // namespace sluice
