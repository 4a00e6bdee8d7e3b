// SPDX-License-Identifier: BSD-2-Clause
// FileMove is what a move and the users of its file tell each other, from the first byte copied
// until the switch is done. A user who changes the file cancels the move while it copies, and waits
// for its end while it switches. Threads: thread-safe.
#pragma once

#include <fcntl.h>

#include <atomic>
#include <utility>

#include "base/mutex.hpp"
#include "tiering/pool/tier.hpp"

namespace sluice {

class FileMove {
 public:
  FileMove(SharedFd source, bool leased, TierIndex to)
      : source_(std::move(source)), leased_(leased), to_(to) {}

  int source() const { return source_->get(); }
  TierIndex to() const { return to_; }
  bool is_leased() const { return leased_; }
  bool is_cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  // True if a process that uses the tier directly wants to write to the file. It waits for the
  // lease.
  bool is_lease_broken() const { return leased_ && ::fcntl(source_->get(), F_GETLEASE) != F_RDLCK; }
  // Releases the lease too, because the writer would wait for it.
  void cancel() {
    cancelled_ = true;
    end_lease();
  }
  void end_lease() {
    if (leased_) ::fcntl(source_->get(), F_SETLEASE, F_UNLCK);
  }

  // Wakes the threads in wait_for_end().
  void end() {
    MutexLock lock(mutex_);
    ended_ = true;
    wake_.notify_all();
  }
  void wait_for_end() {
    MutexLock lock(mutex_);
    while (!ended_) wake_.wait(mutex_);
  }

 private:
  const SharedFd source_;
  const bool leased_;
  const TierIndex to_;
  std::atomic<bool> cancelled_{false};  // read while copying; never becomes false again
  Mutex mutex_;
  CondVar wake_;
  bool ended_ GUARDED_BY(mutex_) = false;
};

}  // namespace sluice
