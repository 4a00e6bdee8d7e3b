// SPDX-License-Identifier: BSD-2-Clause
// FdCache bounds how many directory descriptors the inodes keep: the kernel may know a million
// directories, a process has a few thousand descriptors. Second chance (clock) replacement.
// Threads: any thread, any time.
#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "base/mutex.hpp"
#include "fs/core/inode.hpp"

namespace sluice {

class FdCache {
 public:
  explicit FdCache(std::size_t limit) : limit_(limit) {}

  // Notes that a descriptor was put into a copy of `directory`, and takes those of others away if
  // there are too many. REQUIRES: the caller holds no inode's mutex.
  void added(const InodePtr& directory) {
    {
      MutexLock lock(mutex_);
      ring_.push_back(directory);
    }
    // Bounded: removed directories keep theirs however often they come round.
    for (std::size_t tries = 0; tries < 2 * limit_; ++tries) {
      InodePtr candidate;
      {
        MutexLock lock(mutex_);
        if (ring_.size() <= limit_) return;
        candidate = ring_.front().lock();
        ring_.pop_front();
      }
      if (!candidate) continue;
      bool keep = false;
      {
        MutexLock lock(candidate->mutex);
        keep = std::exchange(candidate->fd_used, false) || candidate->removed;
        if (!keep) {
          for (Copy& copy : candidate->copies) {
            if (!copy.handle.empty()) copy.fd = nullptr;
          }
        }
      }
      if (!keep) continue;
      MutexLock lock(mutex_);
      ring_.push_back(candidate);
    }
  }

 private:
  const std::size_t limit_;
  Mutex mutex_;
  std::deque<std::weak_ptr<Inode>> ring_ GUARDED_BY(mutex_);
};

}  // namespace sluice
