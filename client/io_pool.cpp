// SPDX-License-Identifier: BSD-2-Clause
#include "client/io_pool.hpp"

#include <system_error>
#include <thread>

#include "base/thread.hpp"
#include "client/signals_blocked.hpp"

namespace sluice {
namespace {

// One large request keeps all workers of an engine busy. Small requests wait for the daemon, whose
// queues answer about eight at a time on common machines.
constexpr unsigned kMaxThreads = 8;

}  // namespace

Result<void> IoPool::expect() {
  const MutexLock lock(mutex_);
  if (expected_ >= threads_ && threads_ < kMaxThreads) {
    const SignalsBlocked blocked;
    try {
      std::thread([this] { work(); }).detach();
      ++threads_;
    } catch (const std::system_error&) {
      if (threads_ == 0) return Error{EAGAIN, "start a thread"};
    }
  }
  ++expected_;
  return {};
}

void IoPool::submit(Job& job) noexcept {
  {
    const MutexLock lock(mutex_);
    *last_ = &job;
    last_ = &job.next_;
  }
  came_.notify_one();
}

void IoPool::cancel() noexcept {
  const MutexLock lock(mutex_);
  --expected_;
}

void IoPool::work() noexcept {
  begin_thread("sluice-io");
  MutexLock lock(mutex_);
  for (;;) {
    while (first_ == nullptr) came_.wait(mutex_);
    Job& job = *first_;
    first_ = job.next_;
    if (first_ == nullptr) last_ = &first_;
    lock.unlock();
    job.run();
    lock.lock();
    --expected_;
  }
}

}  // namespace sluice
