// SPDX-License-Identifier: BSD-2-Clause
#include "fs/fuse/device_loop.hpp"

#include <linux/fuse.h>
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

constexpr int kMostIdle = 4;
constexpr std::size_t kMostThreads = 32;
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

bool is_forget(const std::byte* request) {
  fuse_in_header header;
  std::memcpy(&header, request, sizeof header);
  return header.opcode == FUSE_FORGET || header.opcode == FUSE_BATCH_FORGET;
}

}  // namespace

bool DeviceLoop::run() {
  struct sigaction wake {};
  wake.sa_handler = [](int) {};  // without SA_RESTART: read(2) returns EINTR
  ::sigaction(kWakeSignal, &wake, nullptr);
  {
    MutexLock lock(mutex_);
    add_thread();
  }
  MutexLock lock(mutex_);
  while (!threads_.empty()) {
    for (const auto id : finished_) {
      const auto at = std::find_if(threads_.begin(), threads_.end(),
                                   [&](const std::thread& each) { return each.get_id() == id; });
      at->join();
      threads_.erase(at);
    }
    finished_.clear();
    if (threads_.empty()) break;
    // A signal that arrives just before read(2) has no effect, so it is sent again and again.
    if (stopping_) {
      for (std::thread& thread : threads_) ::pthread_kill(thread.native_handle(), kWakeSignal);
    }
    stopping_ ? (void)ended_.wait_for(mutex_, std::chrono::milliseconds(2)) : ended_.wait(mutex_);
  }
  return !failed_;
}

void DeviceLoop::stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  ended_.notify_all();
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
    if (idle_.fetch_sub(1) == 1 && !is_forget(buffer.data())) {
      MutexLock lock(mutex_);
      if (idle_ == 0) add_thread();
    }
    is_idle = false;
    take_({buffer.data(), static_cast<std::size_t>(got)});
    if (idle_.load() >= kMostIdle) break;
    ++idle_;
    is_idle = true;
  }
  if (is_idle) --idle_;
  MutexLock lock(mutex_);
  finished_.push_back(std::this_thread::get_id());
  ended_.notify_all();
}

}  // namespace sluice
