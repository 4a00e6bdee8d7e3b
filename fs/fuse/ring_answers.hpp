// SPDX-License-Identifier: BSD-2-Clause
// RingAnswers is the way back to the thread of one of libfuse's io_uring queues, for the answers to
// requests that other threads have worked on.
//
// Why not answer from any thread? libfuse up to 3.18 then corrupts the ring: its thread and the
// other one fill the same submission queue, partly without a lock
// (https://github.com/libfuse/libfuse/issues/1443). And the kernel hands the next request of that
// ring entry to the thread that has answered the last one, which may be waiting for a disk again by
// then. So the queue's own thread answers. It waits in liburing's io_uring_submit_and_wait(), in
// whose place ring_answers.cpp puts a function that also wakes up for answers.
//
// Threads: any, but for what says otherwise.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "base/unique_fd.hpp"

struct io_uring;

namespace sluice {

class RingAnswers {
 public:
  // That of the calling thread. Nothing if it is no queue's thread, or a libfuse that waits in
  // another way: requests must then be answered before the callback returns.
  static std::shared_ptr<RingAnswers> of_this_thread();

  // A request of this queue will be answered later: exactly one send() must follow. False if `most`
  // are away already. REQUIRES: the caller is the queue's thread.
  bool lend(unsigned most);
  // Has `answer` called by the queue's thread. It must not throw.
  void send(std::function<void()> answer);

  // In the place of io_uring_submit_and_wait(): also calls what was sent. REQUIRES: the caller is
  // the queue's thread.
  int submit_and_wait(io_uring* ring, unsigned wanted);

  RingAnswers();

 private:
  void call_sent();

  UniqueFd wake_;                  // an eventfd; absent: lend() says no
  std::atomic<unsigned> away_{0};  // raised by the queue's thread only, so that it can trust a 0
  Mutex mutex_;
  std::vector<std::function<void()>> sent_ GUARDED_BY(mutex_);
};

}  // namespace sluice
