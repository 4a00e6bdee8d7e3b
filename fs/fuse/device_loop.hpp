// SPDX-License-Identifier: BSD-2-Clause
// DeviceLoop takes requests from /dev/fuse and passes each to a function, in threads of its own.
// Replies do not pass through it: any thread may write them to the device.
//
// Usually one thread waits for requests and answers what it takes. That is the fastest way for a
// program that sends one request after another, because the thread stays on a warm core: the kernel
// would wake several waiting threads in turn. If more requests are there, the thread wakes another
// one first, the one that was active last. If all active threads are busy for some milliseconds,
// one more is woken or started.
//
// Threads share the buffers for requests, each as large as the largest request. A thread has one
// while it waits for a request, and while it works on a large one. While there are few, it keeps
// its own until it is not needed any more.
//
// Threads: run() and stop() are called by different threads; the function must be thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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
  DeviceLoop(int device, std::size_t largest, Take take);
  ~DeviceLoop();

  // Takes requests until the mount is unmounted or stop() is called. Returns when every request
  // that was taken has been passed on and `take` has returned. False if the device failed.
  bool run();
  // Takes no more requests. Those that the kernel has queued stay with the kernel.
  void stop();
  bool is_stopping() const { return stopping_; }

 private:
  struct Parked;
  class Buffer;

  void work();
  void pass_on(std::unique_ptr<Buffer>& buffer, std::size_t size);
  // nullptr if there is no memory.
  std::unique_ptr<Buffer> take_buffer();
  void give_back(std::unique_ptr<Buffer> buffer);
  void free_unused_buffers();
  // Waits until wake_one() chooses this thread. False if it should end.
  bool park();
  bool wake_one() REQUIRES(mutex_);
  void add_thread() REQUIRES(mutex_);
  void join_finished() REQUIRES(mutex_);
  void look_after_threads() REQUIRES(mutex_);
  bool has_request() const;
  void spin() const;
  bool read_failed(int code);

  const int device_;
  const std::size_t largest_;
  const Take take_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
  std::atomic<int> waiting_{0};          // threads that wait for a request
  std::atomic<std::uint64_t> taken_{0};  // requests
  std::atomic<bool> is_watched_{true};   // run() looks whether all threads are stuck
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);  // running, or in `finished_`
  std::vector<std::thread::id> finished_ GUARDED_BY(mutex_);
  std::vector<Parked*> parked_ GUARDED_BY(mutex_);  // the one that was active last is at the end
  std::atomic<std::size_t> buffers_{0};             // how many there are; a hint
  Mutex buffers_mutex_ ACQUIRED_AFTER(mutex_);
  std::vector<std::unique_ptr<Buffer>> free_buffers_ GUARDED_BY(buffers_mutex_);
};

}  // namespace sluice
