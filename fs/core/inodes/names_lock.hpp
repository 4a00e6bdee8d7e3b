// SPDX-License-Identifier: BSD-2-Clause
// NamesLock coordinates changes of names with moves of files between tiers. It has the lock on all
// names, the number of running moves, and a counter by which a lookup notices that a move switched
// at the same time.
//
// Threads: thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/mutex.hpp"
#include "fs/core/inodes/lock_order.hpp"

namespace sluice {

// Whether the caller holds NamesLock::mutex, which no thread may lock twice. WithCopies: also the
// lock under which DirectoryTree makes copies of directories.
enum class NamesHeld { No, Yes, WithCopies };

class NamesLock {
 public:
  // Operations that change names lock it shared.
  SharedMutex mutex ACQUIRED_AFTER(lock_order::names) ACQUIRED_BEFORE(lock_order::intents);

  // Counts the running moves. If there are none, operations on names need not look for one.
  void begin_move() { moves_.fetch_add(1); }
  void end_move() { moves_.fetch_sub(1); }
  bool has_moves() const { return moves_.load() > 0; }

  // Waits for operations that began before they could know of a move. `mark` is that of marks()
  // once they could. The moves of a batch share one wait.
  std::uint64_t marks() const { return marks_.load(); }
  void wait_for_older(std::uint64_t mark) EXCLUDES(mutex) {
    if (marks_.load() > mark) return;
    const ExclusiveLock all_have_ended(mutex);
    marks_.fetch_add(1);
  }

  // Called just before the old name of a moved file is removed. A lookup that found nothing must be
  // repeated if switches() changed meanwhile: it may have searched the new tier too early and the
  // old one too late.
  void note_switch() { switches_.fetch_add(1); }
  std::uint64_t switches() const { return switches_.load(); }

 private:
  std::atomic<unsigned> moves_{0};
  std::atomic<std::uint64_t> switches_{0};
  std::atomic<std::uint64_t> marks_{0};  // how often `mutex` was held only to wait; raised under it
};

}  // namespace sluice
