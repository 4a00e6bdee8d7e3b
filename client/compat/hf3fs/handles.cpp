// SPDX-License-Identifier: BSD-2-Clause
#include "client/compat/hf3fs/handles.hpp"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>

namespace sluice::hf3fs {

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// Null: not yet created in this process. Never destroyed: programs end while rings are open.
std::atomic<Registry*> g_registry{nullptr};

void forget_parent() { g_registry = nullptr; }
// When the library is loaded, because a lock that is held during fork() would block the child.
[[maybe_unused]] const int g_watches_forks = ::pthread_atfork(nullptr, nullptr, forget_parent);

}  // namespace

Registry& Registry::get() {
  Registry* known = g_registry;
  if (known != nullptr) return *known;
  auto made = std::make_unique<Registry>();
  // Another thread may have been first.
  if (!g_registry.compare_exchange_strong(known, made.get())) return *known;
  return *made.release();
}

const CudaApi* Registry::cuda(bool wanted) {
  const MutexLock lock(cuda_mutex_);
  // A program with GPU memory has loaded libcuda.
  if (cuda_ == nullptr && (wanted || CudaApi::is_in_process())) {
    if (auto loaded = CudaApi::load()) cuda_ = *std::move(loaded);
  }
  return cuda_.get();
}

Entered::Entered(const CudaApi& cuda, int gpu) : cuda_(cuda), gpu_(gpu) {
  exchange_mode();
  cuda_.cuCtxGetCurrent(&before_);
  CUcontext context = nullptr;
  code_ = cuda_.cuDevicePrimaryCtxRetain(&context, gpu_);
  if (code_ == CUDA_SUCCESS) code_ = cuda_.cuCtxSetCurrent(context);
}

Entered::~Entered() {
  cuda_.cuCtxSetCurrent(before_);
  if (code_ == CUDA_SUCCESS) cuda_.cuDevicePrimaryCtxRelease(gpu_);
  exchange_mode();
}

void Entered::exchange_mode() {
  if (cuda_.cuThreadExchangeStreamCaptureMode != nullptr)
    cuda_.cuThreadExchangeStreamCaptureMode(&mode_);
}

Error error_of(std::int64_t code) {
  return {static_cast<int>(-code), "call libsluice", sluice_error()};
}

Iov::~Iov() {
  Registry& ours = Registry::get();
  {
    const MutexLock lock(ours.mutex);
    for (Ior* ior : ours.iors) ior->forget(*this);
  }
  // The parent still uses the name and the memory, and CUDA does not work in a child.
  if (&registry != &ours) return;
  if (!name.empty()) ::unlink(name.c_str());
  sluice_buffer_unregister(buffer);  // after the rings, and before its memory
  if (owned == 0) return;
  const CudaApi& cuda = *registry.cuda(true);
  const Entered entered(cuda, gpu);
  if (entered.code() == CUDA_SUCCESS) cuda.cuMemFree(owned);
}

Result<std::unique_ptr<Ior>> Ior::create(int entries) {
  if (entries <= 0) return Error{EINVAL, "a ring must have at least one entry"};
  sluice_ring* ring = nullptr;
  if (const int code = sluice_ring_create(static_cast<unsigned>(entries), &ring); code < 0)
    return error_of(code);
  auto ior = std::unique_ptr<Ior>(new Ior(ring, entries));
  const MutexLock lock(ior->registry_.mutex);
  ior->registry_.iors.insert(ior.get());
  return ior;
}

Ior::Ior(sluice_ring* ring, int entries)
    : ring_(ring), entries_(entries), userdata_(static_cast<std::size_t>(entries)) {
  for (int i = entries; i > 0; --i) free_.push_back(i - 1);
}

Ior::~Ior() {
  {
    // This waits for requests in progress, which use the files and the memory and take none of our
    // locks. Until it has returned, the registry knows this object, so forget() makes those wait
    // who want to free a file or memory. Then it finds nothing.
    const MutexLock lock(mutex_);
    sluice_ring_destroy(ring_);
    files_.clear();
    iovs_.clear();
  }
  const MutexLock lock(registry_.mutex);
  registry_.iors.erase(this);
}

Result<int> Ior::put(bool read, const std::shared_ptr<Registered>& file, Iov& iov,
                     std::uint64_t memory_offset, std::uint64_t file_offset, std::uint64_t length,
                     const void* userdata) {
  const MutexLock lock(mutex_);
  auto in_file = files_.find(file.get());
  if (in_file == files_.end()) {
    const int number = sluice_ring_add_file(ring_, file->file);
    if (number < 0) return error_of(number);
    in_file = files_.emplace(file.get(), FileUse{file, number}).first;
  }
  auto in_memory = iovs_.find(&iov);
  if (in_memory == iovs_.end()) {
    const int number = sluice_ring_add_buffer(ring_, iov.buffer);
    if (number < 0) return error_of(number);
    in_memory = iovs_.emplace(&iov, number).first;
  }
  if (free_.empty()) return Error{EAGAIN, "the ring is full"};
  const int index = free_.back();
  const auto request = read ? sluice_ring_read : sluice_ring_write;
  if (const int code = request(ring_, in_file->second.number, in_memory->second, memory_offset,
                               length, file_offset, static_cast<std::uint64_t>(index));
      code < 0)
    return error_of(code);
  free_.pop_back();
  userdata_[static_cast<std::size_t>(index)] = userdata;
  return index;
}

Result<void> Ior::submit() {
  if (const int code = sluice_ring_submit(ring_); code < 0) return error_of(code);
  return {};
}

Result<int> Ior::wait(hf3fs_cqe* cqes, int most, int least, const timespec* abs_timeout) {
  least = std::min(least, most);
  int got = 0;
  do {
    timespec left{};
    if (abs_timeout != nullptr) {
      ::clock_gettime(CLOCK_REALTIME, &left);
      const std::int64_t nanoseconds = std::max<std::int64_t>(
          (abs_timeout->tv_sec - left.tv_sec) * kSecond + abs_timeout->tv_nsec - left.tv_nsec, 0);
      left = {nanoseconds / kSecond, nanoseconds % kSecond};
    }
    std::array<sluice_ring_completion, 256> done;
    const auto room = std::min<std::size_t>(done.size(), static_cast<std::size_t>(most - got));
    const auto need = static_cast<unsigned>(std::max(least - got, 0));
    const int count = sluice_ring_wait(ring_, done.data(), static_cast<unsigned>(room), need,
                                       abs_timeout != nullptr ? &left : nullptr);
    if (count == -ETIMEDOUT) break;
    if (count < 0 && got > 0) break;  // the next call returns the error
    if (count < 0) return error_of(count);
    const auto taken = static_cast<unsigned>(count);
    const MutexLock lock(mutex_);
    for (unsigned i = 0; i < taken; ++i) {
      const auto index = static_cast<int>(done[i].user_data);
      cqes[got++] = {index, 0, done[i].result, userdata_[done[i].user_data]};
      free_.push_back(index);
    }
    if (taken < need && taken < room) break;  // the timeout has passed
    if (taken == 0) break;
  } while (got < least);
  return got;
}

void Ior::forget(const Registered& file) {
  const MutexLock lock(mutex_);
  const auto found = files_.find(&file);
  if (found == files_.end()) return;
  static_cast<void>(sluice_ring_drop_file(ring_, found->second.number));
  files_.erase(found);
}

void Ior::forget(const Iov& iov) {
  const MutexLock lock(mutex_);
  const auto found = iovs_.find(&iov);
  if (found == iovs_.end()) return;
  static_cast<void>(sluice_ring_drop_buffer(ring_, found->second));
  iovs_.erase(found);
}

}  // namespace sluice::hf3fs
