// SPDX-License-Identifier: BSD-2-Clause
// Guards keep a file on its tier while an operation works on it. An operation creates one on its
// stack.
//
// Threads: a guard must be used by one thread only.
#pragma once

#include <memory>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "fs/core/inodes/inode.hpp"
#include "fs/core/inodes/kernel_request.hpp"

namespace sluice {

// For operations that change the file. Cancels a move that is copying the file, and waits for the
// end of one that is switching to the new copy.
class ChangeGuard {
 public:
  // kWouldWait if it would have to wait and the request must not. `inode` may be nullptr: then the
  // guard does nothing.
  static Result<ChangeGuard> of(InodePtr inode, const KernelRequest& request);
  ChangeGuard(ChangeGuard&&) = default;
  ~ChangeGuard() NO_THREAD_SAFETY_ANALYSIS;
  ChangeGuard(const ChangeGuard&) = delete;
  ChangeGuard& operator=(const ChangeGuard&) = delete;

  // EIO if a move was interrupted and two files have the name.
  Result<void> check_name() const;

 private:
  ChangeGuard() = default;
  InodePtr inode_;
  std::shared_ptr<SharedMutex> moving_;
};

// For requests of the GPU engine, which uses the file's descriptor. A move may copy the file
// meanwhile, but it does not switch to the new copy before the request ends.
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
