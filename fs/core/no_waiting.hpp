// SPDX-License-Identifier: BSD-2-Clause
// A thread that takes requests from the kernel must not wait for a disk or for the end of a move:
// usually one thread takes all requests, and the next one would wait, too. An operation that would
// wait in such a thread returns kWouldWait before it changes anything. SlowRequests then runs it
// again in another thread.
//
// Threads: the flag is thread-local.
#pragma once

namespace sluice {

// Used in Error::code in place of an errno. It is never sent to the kernel.
inline constexpr int kWouldWait = 600;
// The same for a write that must wait until a budget has room: no thread waits for that, but the
// request does. See Budgets::when_room().
inline constexpr int kNoRoomYet = 601;

inline thread_local bool must_not_wait = false;

// The thread that creates a NoWaiting must not wait until it is destroyed.
class NoWaiting {
 public:
  NoWaiting() { must_not_wait = true; }
  ~NoWaiting() { must_not_wait = false; }
  NoWaiting(const NoWaiting&) = delete;
  NoWaiting& operator=(const NoWaiting&) = delete;
};

}  // namespace sluice
