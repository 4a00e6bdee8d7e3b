// SPDX-License-Identifier: BSD-2-Clause
// DeviceLoop takes requests from /dev/fuse and passes each to a function, in threads of its own. It
// starts more threads while all of them wait for a disk, and ends them when they have nothing to
// do. Replies do not pass through it: any thread may write them to the device.
//
// Threads: run() and stop() are called by different threads; the function must be thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "base/mutex.hpp"

namespace sluice {

class DeviceLoop {
 public:
  // `take` is called with one complete request of at most `largest` bytes. It must not throw.
  // Whether the request is answered before it returns does not matter here, but the bytes are only
  // valid until then.
  using Take = std::function<void(std::span<std::byte> request)>;
  DeviceLoop(int device, std::size_t largest, Take take)
      : device_(device), largest_(largest), take_(std::move(take)) {}

  // Takes requests until the mount is unmounted or stop() is called. Returns when every request
  // that was taken has been passed on and `take` has returned. False if the device failed.
  bool run();
  // Takes no more requests. Those that the kernel has queued stay with the kernel.
  void stop();

 private:
  void work();
  void add_thread() REQUIRES(mutex_);
  void join_finished() REQUIRES(mutex_);
  bool read_failed(int code);

  const int device_;
  const std::size_t largest_;
  const Take take_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
  std::atomic<int> idle_{0};              // threads that wait for a request
  std::atomic<bool> may_be_short_{true};  // idle_ was 0; run() looks into it
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);  // running, or in `finished_`
  std::vector<std::thread::id> finished_ GUARDED_BY(mutex_);
};

}  // namespace sluice
