// SPDX-License-Identifier: BSD-2-Clause
// Registers the memory of requests with libsluice. Memory that the program registers with
// cuFileBufRegister() stays registered until it is deregistered. Other memory of cudaMalloc is
// registered by allocation until it is freed, so that only the first request pays.
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

// Memory that is registered with libsluice while this object lives.
class Registration {
 public:
  // Null if libsluice refuses the memory.
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
  const std::uint64_t id_;  // CUDA's unique id of the allocation; 0: unknown
};

// The registration that one request uses; empty if there is none.
struct Lease {
  std::shared_ptr<Registration> registration;
  std::size_t offset = 0;  // of the requested address in the registration

  explicit operator bool() const { return registration != nullptr; }
  sluice_buffer* buffer() const { return registration->buffer(); }
};

class MemoryTable {
 public:
  // Finds or creates a registration for [pointer, +length): device or host memory, registered or
  // not.
  Lease lease(const void* pointer, std::size_t length);

  // cuFileBufRegister() and cuFileBufDeregister(). The memory is registered with NVIDIA's library
  // when that library first uses it.
  CUfileError_t add(const void* base, std::size_t length, int flags);
  CUfileError_t remove(const void* base);
  // Called before NVIDIA's library uses this memory. Registers it there if the program has
  // registered it with us. Costs one load if there is nothing to register.
  void announce_to_real(const void* pointer) {
    if (unannounced_.load(std::memory_order_relaxed) != 0) announce_registration(pointer);
  }

  // For fork().
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  void begin_anew_in_child() REQUIRES(mutex_) { is_sweeping_ = false; }

 private:
  struct Registered {
    std::size_t length = 0;
    int flags = 0;
    bool is_announced = false;  // NVIDIA's library was asked to register it
    bool is_in_real = false;    // and has accepted it
    std::shared_ptr<Registration> ours;
  };
  using Garbage = std::vector<std::shared_ptr<Registration>>;  // released without the lock

  void announce_registration(const void* pointer);
  std::map<CUdeviceptr, Registered>::iterator find(CUdeviceptr address, std::size_t length)
      REQUIRES(mutex_);
  void sweep(Garbage& garbage) REQUIRES(mutex_);
  void start_sweeping() REQUIRES(mutex_);
  void keep_sweeping() noexcept;

  Mutex mutex_;
  std::map<CUdeviceptr, Registered> registered_ GUARDED_BY(mutex_);
  std::map<CUdeviceptr, std::shared_ptr<Registration>> allocations_ GUARDED_BY(mutex_);
  bool is_sweeping_ GUARDED_BY(mutex_) = false;  // the sweeping thread runs
  std::atomic<unsigned> unannounced_{0};         // number in registered_; read without the lock
};

}  // namespace sluice::dropin
