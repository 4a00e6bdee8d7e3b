// SPDX-License-Identifier: BSD-2-Clause
// SlowRequests runs requests that may wait for a disk in its own threads, so that the thread that
// took the request from the kernel can continue with the next one. Users take turns, and no user
// gets more than half of the threads.
//
// Threads: thread-safe. It owns its threads and starts them when they are needed.
#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "base/mutex.hpp"

namespace sluice {

class SlowRequests {
 public:
  explicit SlowRequests(unsigned threads = 16) : most_threads_(threads) {}
  // Waits for the requests that are running, and drops the others.
  ~SlowRequests();
  SlowRequests(const SlowRequests&) = delete;
  SlowRequests& operator=(const SlowRequests&) = delete;

  // Queues `work`, which must not throw, for `user`. Throws std::bad_alloc or std::system_error if
  // there is no memory or no thread; then `work` is not queued.
  void add(uid_t user, std::function<void()> work);

 private:
  struct User {
    std::deque<std::function<void()>> waiting;
    unsigned running = 0;
  };

  void work();
  // The next user, after the last one, whose work may start.
  std::map<uid_t, User>::iterator next_user() REQUIRES(mutex_);

  const unsigned most_threads_;
  Mutex mutex_;
  CondVar wake_;
  std::map<uid_t, User> users_ GUARDED_BY(mutex_);  // users with queued or running work
  uid_t last_ GUARDED_BY(mutex_) = 0;
  std::size_t waiting_ GUARDED_BY(mutex_) = 0;  // of all users
  unsigned idle_ GUARDED_BY(mutex_) = 0;        // threads
  bool ends_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);  // at most most_threads_
};

}  // namespace sluice
