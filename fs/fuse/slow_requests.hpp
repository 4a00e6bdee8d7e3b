// SPDX-License-Identifier: BSD-2-Clause
// SlowRequests works on requests that may wait for a disk, in threads of its own: the thread that
// took the request from the kernel goes on with the next. Users take turns, and none has more than
// half of the threads.
//
// Threads: any thread, any time.
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
  // Waits for what is being worked on, and drops the rest.
  ~SlowRequests();
  SlowRequests(const SlowRequests&) = delete;
  SlowRequests& operator=(const SlowRequests&) = delete;

  // Has `work`, which must not throw, done for `user`. Throws std::bad_alloc or std::system_error
  // when there is no memory or no thread for it; then nothing is done.
  void add(uid_t user, std::function<void()> work);

 private:
  struct User {
    std::deque<std::function<void()>> waiting;
    unsigned running = 0;
  };

  void work();
  // The next user who may have something done, after the one who was last.
  std::map<uid_t, User>::iterator next_user() REQUIRES(mutex_);

  const unsigned most_threads_;
  Mutex mutex_;
  CondVar wake_;
  std::map<uid_t, User> users_ GUARDED_BY(mutex_);  // those with something waiting or running
  uid_t last_ GUARDED_BY(mutex_) = 0;
  std::size_t waiting_ GUARDED_BY(mutex_) = 0;  // of all users
  unsigned idle_ GUARDED_BY(mutex_) = 0;        // threads
  bool ends_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);  // started when they are needed
};

}  // namespace sluice
