// SPDX-License-Identifier: BSD-2-Clause
// A Sweeper calls a function periodically on its own thread, from start() until it is destroyed.
// Threads: caller locks.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "base/mutex.hpp"
#include "base/thread.hpp"

namespace sluice {

class Sweeper {
 public:
  // Only the first call has an effect. Locks that `sweep` takes must not be held when the Sweeper
  // is destroyed.
  void start(std::chrono::nanoseconds period, std::function<void()> sweep) {
    if (thread_.joinable()) return;
    thread_ = std::jthread([period, sweep = std::move(sweep)](const std::stop_token& stop) {
      begin_thread("sluice-gpu");
      Mutex mutex;
      StopCondVar stopping;
      const MutexLock lock(mutex);
      for (;;) {
        stopping.sleep(mutex, stop, period);
        if (stop.stop_requested()) return;
        sweep();
      }
    });
  }

 private:
  std::jthread thread_;
};

}  // namespace sluice
