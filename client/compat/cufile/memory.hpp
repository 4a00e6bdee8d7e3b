// SPDX-License-Identifier: BSD-2-Clause
// The memory that requests name, as libsluice wants it: registered. What the program registers with
// cuFileBufRegister() is kept for as long as it says; any other memory of cudaMalloc's is kept by
// its allocation, so that only the first request pays, until it is freed.
//
// Threads: thread-safe. No lock is held while NVIDIA's library is called.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "client/compat/cufile/libsluice.hpp"
#include "gpu/cufile_api.hpp"

namespace sluice::dropin {

// Memory that libsluice knows; it forgets it when this ends.
class Registration {
 public:
  // Null if libsluice does not take it.
  static std::shared_ptr<Registration> create(CUdeviceptr address, std::size_t length,
                                              std::uint64_t id);
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  sluice_buffer* buffer() const { return buffer_; }
  std::size_t length() const { return length_; }
  std::uint64_t id() const { return id_; }

 private:
  Registration(sluice_buffer* buffer, std::size_t length, std::uint64_t id)
      : buffer_(buffer), length_(length), id_(id) {}

  sluice_buffer* const buffer_;
  const std::size_t length_;
  const std::uint64_t id_;  // CUDA's, of the allocation: no other has the same. 0: not known
};

// Memory for one request. Empty if there is none such.
struct Lease {
  std::shared_ptr<Registration> registration;
  std::size_t offset = 0;  // of what was asked for, in the registration

  explicit operator bool() const { return registration != nullptr; }
  sluice_buffer* buffer() const { return registration->buffer(); }
};

class MemoryTable {
 public:
  // All of [pointer, +length): device or host memory, registered or not.
  Lease lease(const void* pointer, std::size_t length);

  // cuFileBufRegister() and cuFileBufDeregister(). NVIDIA's library hears of it when it needs to.
  CUfileError_t add(const void* base, std::size_t length, int flags);
  CUfileError_t remove(const void* base);
  // NVIDIA's library is about to use this memory. Costs nothing when nothing is registered.
  void settle(const void* pointer) {
    if (unsettled_.load(std::memory_order_relaxed) != 0) settle_it(pointer);
  }

  // Around fork().
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  void begin_anew_in_child() REQUIRES(mutex_) { is_sweeping_ = false; }

 private:
  struct Registered {
    std::size_t length = 0;
    int flags = 0;
    bool is_settled = false;  // NVIDIA's library was told
    bool is_in_real = false;  // and took it
    std::shared_ptr<Registration> ours;
  };
  using Garbage = std::vector<std::shared_ptr<Registration>>;  // let go of without the lock

  void settle_it(const void* pointer);
  std::map<CUdeviceptr, Registered>::iterator find(CUdeviceptr address, std::size_t length)
      REQUIRES(mutex_);
  void sweep(Garbage& garbage) REQUIRES(mutex_);
  void start_sweeping() REQUIRES(mutex_);
  void keep_sweeping() noexcept;

  Mutex mutex_;
  std::map<CUdeviceptr, Registered> registered_ GUARDED_BY(mutex_);
  std::map<CUdeviceptr, std::shared_ptr<Registration>> allocations_ GUARDED_BY(mutex_);
  bool is_sweeping_ GUARDED_BY(mutex_) = false;  // there is a thread for it
  std::atomic<unsigned> unsettled_{0};           // of registered_; read without the lock
};

}  // namespace sluice::dropin
