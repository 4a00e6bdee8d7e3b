// SPDX-License-Identifier: BSD-2-Clause
// Threads that take requests from the kernel must not wait for a disk or for the end of a move:
// the requests of a whole core wait behind them. An operation that would wait there returns
// kWouldWait before it has changed anything, and is run again by SlowRequests.
//
// Threads: each has a flag of its own.
#pragma once

namespace sluice {

// In Error::code, in place of an errno. It never leaves the daemon.
inline constexpr int kWouldWait = 600;

inline thread_local bool must_not_wait = false;

// While it lives, its thread must not wait.
class NoWaiting {
 public:
  NoWaiting() { must_not_wait = true; }
  ~NoWaiting() { must_not_wait = false; }
  NoWaiting(const NoWaiting&) = delete;
  NoWaiting& operator=(const NoWaiting&) = delete;
};

}  // namespace sluice
