// SPDX-License-Identifier: BSD-2-Clause
// RingAnswers passes replies from other threads to the thread of one of libfuse's io_uring queues,
// which sends them to the kernel.
//
// Other threads must not reply themselves, for two reasons. With libfuse up to 3.18 that corrupts
// the ring: the queue's thread and the other one fill the same submission queue, partly without a
// lock (https://github.com/libfuse/libfuse/issues/1443). And the kernel passes the next request of
// a ring entry to the thread that sent the last reply, which may be waiting for a disk again. The
// queue's thread waits in liburing's io_uring_submit_and_wait(). ring_answers.cpp replaces this
// function by one that also wakes up for replies.
//
// Threads: thread-safe, except for members that only the queue's thread may call.
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
  // The RingAnswers of the calling thread. nullptr if the thread does not belong to a queue, or if
  // libfuse does not call io_uring_submit_and_wait(): then the callback must reply before it
  // returns.
  static std::shared_ptr<RingAnswers> of_this_thread();

  // Announces that a request of this queue will be answered later; exactly one send() must follow.
  // False if `most` requests are deferred already. REQUIRES: the caller is the queue's thread.
  bool defer(unsigned most);
  // Makes the queue's thread call `answer`, which must not throw.
  void send(std::function<void()> answer);

  // Replaces io_uring_submit_and_wait(); also calls the functions passed to send(). REQUIRES: the
  // caller is the queue's thread.
  int submit_and_wait(io_uring* ring, unsigned wanted);

  RingAnswers();

 private:
  void call_sent();

  UniqueFd wake_;  // an eventfd; empty: defer() always returns false
  std::atomic<unsigned> deferred_{
      0};  // only the queue's thread increases it, so it can rely on a 0
  Mutex mutex_;
  std::vector<std::function<void()>> sent_ GUARDED_BY(mutex_);
};

}  // namespace sluice
