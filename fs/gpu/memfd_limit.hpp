// SPDX-License-Identifier: BSD-2-Clause
// The MemfdLimit limits the host memory that clients register. The pages of a memfd are charged to
// the process that first touches them, which is often the daemon. So registered memory counts
// whether or not its pages exist yet.
//
// A user other than root may have at most as much as stays free for all others. So there is always
// something left for another user.
//
// A memfd that is registered several times, on many open files, counts once for its user: the sum
// of its registrations, but at most its size. Threads: thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

class MemfdLimit {
  using Id = std::tuple<uid_t, dev_t, ino_t>;

 public:
  explicit MemfdLimit(std::uint64_t most) : most_(most) {}

  // Registered memory that counts until the object is destroyed. REQUIRES: the limit outlives it.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept { *this = std::move(other); }
    Share& operator=(Share&& other) noexcept {
      std::swap(limit_, other.limit_);
      std::swap(memfd_, other.memfd_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share() {
      if (limit_ != nullptr) limit_->give_back(memfd_, bytes_);
    }

   private:
    friend class MemfdLimit;
    MemfdLimit* limit_ = nullptr;
    Id memfd_;
    std::uint64_t bytes_ = 0;
  };
  // Counts `bytes` more of this memfd. ENOSPC: the limit, or the user's share of it, is exceeded.
  // REQUIRES: it is a memfd; fstat() of anything else may block.
  Result<Share> take(uid_t user, const UniqueFd& memfd, std::uint64_t bytes);

  std::uint64_t most() const { return most_; }
  std::uint64_t used() const;
  // The share of the user who has the most.
  std::uint64_t largest_share() const;

 private:
  struct Use {
    std::uint64_t registered = 0, size = 0;
    std::uint64_t counted() const { return registered < size ? registered : size; }
  };
  void give_back(const Id& memfd, std::uint64_t bytes);

  const std::uint64_t most_;
  mutable Mutex mutex_;
  std::map<Id, Use> uses_ GUARDED_BY(mutex_);
  std::map<uid_t, std::uint64_t> of_user_ GUARDED_BY(mutex_);  // never 0
  std::uint64_t used_ GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice
