// SPDX-License-Identifier: BSD-2-Clause
// Namespace coordinates changes of names with files that are moved between tiers: a lock on all
// names, the number of moves under way, and a counter that tells a lookup that it raced with one.
//
// Threads: every member may be called from any thread at once. Lock order: first of all locks of
// the core; see docs/architecture.md.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/mutex.hpp"

namespace sluice {

// Whether the caller holds Namespace::lock, which no thread may share twice, and the lock on the
// making of directory copies, too.
enum class NamesLock { Free, Held, HeldWithCopies };

class Namespace {
 public:
  // Shared by operations that change names; exclusive while a moved file takes its place.
  SharedMutex lock;

  // While no move is under way, operations on names need not look for one.
  void begin_move() { moves_.fetch_add(1); }
  void end_move() { moves_.fetch_sub(1); }
  bool has_moves() const { return moves_.load() > 0; }

  // Called just before the old name of a moved file goes. A lookup that found nothing repeats if
  // switches() changed meanwhile: it may have looked at the new tier too early and at the old one
  // too late.
  void note_switch() { switches_.fetch_add(1); }
  std::uint64_t switches() const { return switches_.load(); }

 private:
  std::atomic<unsigned> moves_{0};
  std::atomic<std::uint64_t> switches_{0};
};

}  // namespace sluice
