// SPDX-License-Identifier: BSD-2-Clause
#include "fs/fuse/device_loop.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/log.hpp"
#include "base/thread.hpp"

namespace sluice {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kMostThreads = 64;
constexpr std::size_t kFewThreads = 2;
// If no thread takes a request for this long and none waits for one, another thread is needed.
constexpr std::chrono::milliseconds kStuck{2};
// read(2) takes longer than this if it had to wait for a request.
constexpr std::chrono::microseconds kNotAsleep{3};
// A thread that is not needed for this long ends.
constexpr std::chrono::seconds kUnused{10};
// With many cores, a thread looks for the next request for a while before it sleeps: waking it up
// on a core that sleeps, too, would take longer than most requests do.
constexpr std::chrono::microseconds kSpin{50};
const bool kSpins = std::thread::hardware_concurrency() >= 8;
// Interrupts a thread that waits in read(2). Its handler does nothing.
constexpr int kWakeSignal = SIGUSR1;
// A larger request keeps the buffer that it was read into until it is done. Most are far smaller.
constexpr std::size_t kSmallRequest = 8 << 10;
// Buffers that are kept without need, by threads or for those that will wait for a request.
constexpr std::size_t kMostKept = 4;

}  // namespace

// Memory for one request. All pages are present from the start: if the daemon is killed while the
// kernel copies a request into a page that must be allocated first, the kernel fails the request
// with EIO instead of keeping it for the next daemon.
class DeviceLoop::Buffer {
 public:
  // `count` is how many there are.
  Buffer(std::size_t size, std::atomic<std::size_t>& count)
      : size_(size),
        count_(count),
        memory_(::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0)) {
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  ~Buffer() {
    count_.fetch_sub(1, std::memory_order_relaxed);
    if (memory_ != MAP_FAILED) ::munmap(memory_, size_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  explicit operator bool() const { return memory_ != MAP_FAILED; }
  std::byte* data() const { return static_cast<std::byte*>(memory_); }
  std::size_t size() const { return size_; }

 private:
  const std::size_t size_;
  std::atomic<std::size_t>& count_;
  void* const memory_;
};

struct DeviceLoop::Parked {
  CondVar wake;
  bool is_woken = false;
};

DeviceLoop::DeviceLoop(int device, std::size_t largest, Take take)
    : device_(device), largest_(largest), take_(std::move(take)) {}

DeviceLoop::~DeviceLoop() = default;

bool DeviceLoop::run() {
  struct sigaction wake {};
  wake.sa_handler = [](int) {};  // without SA_RESTART: read(2) returns EINTR
  ::sigaction(kWakeSignal, &wake, nullptr);
  MutexLock lock(mutex_);
  add_thread();
  while (!threads_.empty()) {
    join_finished();
    look_after_threads();
  }
  return !failed_;
}

void DeviceLoop::look_after_threads() {
  if (stopping_) {
    while (wake_one()) {
    }
    // A signal that arrives just before read(2) has no effect, so it is sent again and again.
    for (std::thread& thread : threads_) ::pthread_kill(thread.native_handle(), kWakeSignal);
    changed_.wait_for(mutex_, kStuck);
  } else if (is_watched_) {
    const std::uint64_t before = taken_;
    changed_.wait_for(mutex_, kStuck);
    if (waiting_ > 0) {
      is_watched_ = false;
    } else if (taken_ == before && !stopping_ && !wake_one()) {
      add_thread();
    }
  } else {
    changed_.wait(mutex_);
  }
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
  try {
    ++waiting_;
    threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& e) {
    --waiting_;  // the existing threads do the work
    if (threads_.empty()) {
      log::get().error("cannot start a thread for requests: why={}", e.what());
      failed_ = true;
    }
  }
}

bool DeviceLoop::wake_one() {
  if (parked_.empty()) return false;
  Parked* last = parked_.back();
  parked_.pop_back();
  ++waiting_;
  last->is_woken = true;
  last->wake.notify_one();
  return true;
}

bool DeviceLoop::park() {
  Parked self;
  const auto until = steady_clock::now() + kUnused;
  MutexLock lock(mutex_);
  if (stopping_) return false;
  parked_.push_back(&self);
  while (!self.is_woken) {
    if (self.wake.wait_until(mutex_, until) || self.is_woken) continue;
    std::erase(parked_, &self);
    free_unused_buffers();
    if (threads_.size() - finished_.size() > kFewThreads) return false;
    ++waiting_;
    return true;
  }
  return true;
}

bool DeviceLoop::has_request() const {
  pollfd device{device_, POLLIN, 0};
  return ::poll(&device, 1, 0) > 0;
}

void DeviceLoop::spin() const {
  for (const auto end = steady_clock::now() + kSpin; steady_clock::now() < end;) {
    if (has_request()) return;
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

std::unique_ptr<DeviceLoop::Buffer> DeviceLoop::take_buffer() {
  {
    MutexLock lock(buffers_mutex_);
    if (!free_buffers_.empty()) {
      auto buffer = std::move(free_buffers_.back());
      free_buffers_.pop_back();
      return buffer;
    }
  }
  auto buffer = std::make_unique<Buffer>(largest_, buffers_);
  if (*buffer) return buffer;
  log::get().error("no memory for requests: bytes={}", largest_);
  return nullptr;
}

void DeviceLoop::give_back(std::unique_ptr<Buffer> buffer) {
  MutexLock lock(buffers_mutex_);
  if (free_buffers_.size() < kMostKept) free_buffers_.push_back(std::move(buffer));
}

void DeviceLoop::free_unused_buffers() {
  MutexLock lock(buffers_mutex_);
  if (free_buffers_.size() > 1) free_buffers_.resize(1);
}

// Passes a request on. If there are many buffers, this one does not stay with a small request,
// which may take long. Otherwise the thread keeps it for its next request, which saves the lock.
void DeviceLoop::pass_on(std::unique_ptr<Buffer>& buffer, std::size_t size) {
  if (size > kSmallRequest || buffers_.load(std::memory_order_relaxed) <= kMostKept)
    return take_({buffer->data(), size});
  alignas(std::max_align_t) std::array<std::byte, kSmallRequest> request;
  std::memcpy(request.data(), buffer->data(), size);
  give_back(std::move(buffer));
  take_({request.data(), size});
}

void DeviceLoop::work() {
  begin_thread("sluice-fuse", ThreadKind::Serving);
  std::unique_ptr<Buffer> buffer;
  bool waits = true;  // counted in waiting_
  while (!stopping_) {
    if (!buffer && !(buffer = take_buffer())) break;
    const auto before = steady_clock::now();
    const ssize_t got = ::read(device_, buffer->data(), buffer->size());
    if (got < 0) {
      if (read_failed(errno)) break;
      continue;
    }
    taken_.fetch_add(1, std::memory_order_relaxed);
    waits = false;
    if (waiting_.fetch_sub(1) == 1) {
      // If the request was there already, there may be more.
      const bool more = steady_clock::now() - before < kNotAsleep && has_request();
      if (more || !is_watched_.exchange(true)) {
        MutexLock lock(mutex_);
        changed_.notify_all();
        if (more && waiting_ == 0 && !wake_one()) add_thread();
      }
    }
    pass_on(buffer, static_cast<std::size_t>(got));
    if (waiting_ > 0 && !has_request()) {
      if (buffer) give_back(std::exchange(buffer, nullptr));
      if (!park()) break;
    } else {
      ++waiting_;
    }
    waits = true;
    if (kSpins) spin();
  }
  if (waits) --waiting_;
  MutexLock lock(mutex_);
  finished_.push_back(std::this_thread::get_id());
  changed_.notify_all();
}

}  // namespace sluice
