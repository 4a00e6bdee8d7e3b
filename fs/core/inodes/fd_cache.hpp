// SPDX-License-Identifier: BSD-2-Clause
// FdCache limits how many directory descriptors the inodes keep: the kernel may know a million
// directories, but a process has a few thousand descriptors. It replaces by second chance (clock).
// Threads: thread-safe.
#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "base/mutex.hpp"
#include "fs/core/inodes/inode.hpp"

namespace sluice {

class FdCache {
 public:
  explicit FdCache(std::size_t limit) : limit_(limit) {}

  // Notes that a copy of `directory` got a descriptor, and closes those of other directories if
  // there are too many. REQUIRES: the caller has locked no inode.
  void added(const InodePtr& directory) {
    {
      MutexLock lock(mutex_);
      ring_.push_back(directory);
    }
    // Bounded, because removed directories always keep theirs.
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
        Inode::Locked state(*candidate);
        keep = std::exchange(state->directory.fd_used, false) || state->directory.removed;
        if (!keep) state->close_descriptors();
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
