// SPDX-License-Identifier: BSD-2-Clause
#include "fs/fuse/device_loop.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <system_error>

#include "base/log.hpp"
#include "base/thread.hpp"

namespace sluice {
namespace {

// The kernel wakes waiting threads in turn. Few of them stay in the caches of the CPU.
const int kUsual = std::max(2, static_cast<int>(std::thread::hardware_concurrency()));
constexpr std::size_t kMostThreads = 64;
// If no thread waits for a request for this long, another one is started.
constexpr std::chrono::milliseconds kShortage{2};
// Interrupts a thread that waits in read(2). Its handler does nothing.
constexpr int kWakeSignal = SIGUSR1;

// The memory of one thread for requests. All pages are present from the start: if the daemon is
// killed while the kernel copies a request into a page that must be allocated first, the kernel
// fails the request with EIO instead of keeping it for the next daemon.
class Buffer {
 public:
  explicit Buffer(std::size_t size)
      : size_(size),
        memory_(::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0)) {}
  ~Buffer() {
    if (memory_ != MAP_FAILED) ::munmap(memory_, size_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  explicit operator bool() const { return memory_ != MAP_FAILED; }
  std::byte* data() const { return static_cast<std::byte*>(memory_); }
  std::size_t size() const { return size_; }

 private:
  const std::size_t size_;
  void* const memory_;
};

}  // namespace

bool DeviceLoop::run() {
  struct sigaction wake {};
  wake.sa_handler = [](int) {};  // without SA_RESTART: read(2) returns EINTR
  ::sigaction(kWakeSignal, &wake, nullptr);
  MutexLock lock(mutex_);
  for (int i = 0; i < kUsual; ++i) add_thread();
  while (!threads_.empty()) {
    join_finished();
    if (stopping_) {
      // A signal that arrives just before read(2) has no effect, so it is sent again and again.
      for (std::thread& thread : threads_) ::pthread_kill(thread.native_handle(), kWakeSignal);
      changed_.wait_for(mutex_, std::chrono::milliseconds(2));
    } else if (may_be_short_) {
      changed_.wait_for(mutex_, kShortage);
      if (idle_ == 0) {
        add_thread();
      } else {
        may_be_short_ = false;
      }
    } else {
      changed_.wait(mutex_);
    }
  }
  return !failed_;
}

void DeviceLoop::join_finished() {
  for (const auto id : finished_) {
    const auto at = std::find_if(threads_.begin(), threads_.end(),
                                 [&](const std::thread& each) { return each.get_id() == id; });
    at->join();
    threads_.erase(at);
  }
  finished_.clear();
}

void DeviceLoop::stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

void DeviceLoop::add_thread() {
  if (threads_.size() - finished_.size() >= kMostThreads) return;
  ++idle_;
  try {
    threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& e) {
    --idle_;  // the existing threads do the work
    if (threads_.empty()) {
      log::get().error("cannot start a thread for requests: why={}", e.what());
      failed_ = true;
    }
  }
}

// Whether the thread should end.
bool DeviceLoop::read_failed(int code) {
  if (stopping_ || code == ENODEV) {  // ENODEV: the mount is gone
    stopping_ = true;
    return true;
  }
  // ENOENT: the request was interrupted before it was read.
  if (code == EINTR || code == EAGAIN || code == ENOENT) return false;
  log::get().error("cannot take requests from the kernel: why={}", std::strerror(code));
  failed_ = true;
  stopping_ = true;
  return true;
}

void DeviceLoop::work() {
  begin_thread("sluice-fuse");
  const Buffer buffer(largest_);
  bool is_idle = true;  // counted in idle_
  if (!buffer) log::get().error("no memory for requests: bytes={}", largest_);
  while (buffer && !stopping_) {
    const ssize_t got = ::read(device_, buffer.data(), buffer.size());
    if (got < 0) {
      if (read_failed(errno)) break;
      continue;
    }
    is_idle = false;
    if (idle_.fetch_sub(1) == 1 && !may_be_short_.load() && !may_be_short_.exchange(true)) {
      MutexLock lock(mutex_);
      changed_.notify_all();
    }
    take_({buffer.data(), static_cast<std::size_t>(got)});
    if (idle_.load() >= kUsual) break;
    ++idle_;
    is_idle = true;
  }
  if (is_idle) --idle_;
  MutexLock lock(mutex_);
  finished_.push_back(std::this_thread::get_id());
  changed_.notify_all();
}

}  // namespace sluice
