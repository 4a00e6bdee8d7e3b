// SPDX-License-Identifier: BSD-2-Clause
// Guards keep a file on its tier while an operation works on it.
// Threads: a guard belongs to one thread.
#pragma once

#include <memory>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "fs/core/inode.hpp"

namespace sluice {

// For operations that change the file: cancels a move that copies, and waits for one that is
// switching to the new copy.
class ChangeGuard {
 public:
  // kWouldWait if the thread must not wait; see fs/core/no_waiting.hpp. Without an inode there is
  // nothing to guard.
  static Result<ChangeGuard> of(InodePtr inode);
  ChangeGuard(ChangeGuard&&) = default;
  ~ChangeGuard() NO_THREAD_SAFETY_ANALYSIS;
  ChangeGuard(const ChangeGuard&) = delete;
  ChangeGuard& operator=(const ChangeGuard&) = delete;

  // EIO while two files have the name, because a move stopped half-way.
  Result<void> check_name() const;

 private:
  ChangeGuard() = default;
  InodePtr inode_;
  std::shared_ptr<SharedMutex> moving_;
};

// For requests of the GPU engine, which knows the file by its descriptor: a move may go on copying,
// but it does not switch to the new copy until the request is done.
class UseGuard {
 public:
  explicit UseGuard(InodePtr inode);
  ~UseGuard();
  UseGuard(const UseGuard&) = delete;
  UseGuard& operator=(const UseGuard&) = delete;

 private:
  const InodePtr inode_;
};

}  // namespace sluice
