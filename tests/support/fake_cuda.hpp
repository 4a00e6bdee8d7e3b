// SPDX-License-Identifier: BSD-2-Clause
// The inside of the fake libcuda.so.1: what its sources share.
//
// A GPU's memory is a memfd an allocation. The address that a program sees is reserved but can't be
// touched, as that of a real GPU can't; the bytes are mapped elsewhere. Other processes come by an
// allocation through /proc/<pid>/fd or a descriptor they were given, and it ends with its last
// user: a process that dies leaves nothing behind.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "gpu/cuda_api.hpp"
#include "tests/support/fake_control.hpp"

namespace sluice {

// The bytes of one allocation.
struct FakeAllocation {
  FakeAllocation(int memfd, std::size_t bytes, int gpu, bool own);
  ~FakeAllocation();
  FakeAllocation(const FakeAllocation&) = delete;
  FakeAllocation& operator=(const FakeAllocation&) = delete;

  const int fd;
  const std::size_t size;
  const int device;
  const bool mine;  // allocated here, not imported
  std::byte* bytes = nullptr;
};

// Addresses that stand for bytes: of an allocation, or of registered host memory.
struct FakeRange {
  enum class Kind { Allocated, Ipc, Mapped, Host };
  Kind kind = Kind::Allocated;
  std::size_t size = 0;
  std::shared_ptr<FakeAllocation> allocation;  // null: host memory
  std::byte* bytes = nullptr;
  std::uint64_t id = 0;
  bool accessible = true;  // Mapped: after cuMemSetAccess()
  bool writable = true;    // Host: registered without READ_ONLY
  bool of_file = false;    // Host: pages of a file, which may be cut off while we copy
  unsigned users = 1;      // Ipc: how often it was opened
  int device = 0;
};

// What a stream does is done by a thread, in order.
class FakeStream {
 public:
  explicit FakeStream(int device);
  ~FakeStream();  // after all that was put into it
  void put(std::function<void()> work);
  void wait_idle();
  bool is_idle();
  int device() const { return device_; }

 private:
  void run();

  const int device_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ GUARDED_BY(mutex_);
  bool busy_ GUARDED_BY(mutex_) = false;
  bool ending_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

struct FakeEvent {
  Mutex mutex;
  CondVar changed;
  std::uint64_t recorded GUARDED_BY(mutex) = 0;
  std::uint64_t reached GUARDED_BY(mutex) = 0;
};

struct FakeGpuState {
  unsigned contexts = 0;
  CUresult lost = CUDA_SUCCESS;  // the sticky error that every further call returns
  std::uint64_t used = 0;
  std::unique_ptr<FakeStream> stream;  // the default one
};

// Everything, never destroyed: streams may still run when the process ends.
struct FakeCuda {
  static constexpr int kMaxGpus = 8;
  static constexpr std::size_t kGranularity = 2 << 20;
  static constexpr std::size_t kMemory = std::size_t{16} << 30;

  FakeCuda();
  static FakeCuda& get();

  // Begins a call: returns the failure that was asked for, or what is wrong with the state of
  // things. `device` gets the current context's; null: the call needs none.
  CUresult begin(const char* call, int* device);
  void lose(int device, CUresult code);

  // Copies between two ends, each a range that we know or (`*_host`) plain host memory. False if
  // an end is not, or no longer, valid.
  bool copy(CUdeviceptr to, CUdeviceptr from, std::size_t size, bool to_host, bool from_host);
  // The same, and not counted.
  bool move(CUdeviceptr to, CUdeviceptr from, std::size_t size, bool to_host, bool from_host);
  // Whether all of it is known (and may be written to).
  bool is_valid(CUdeviceptr address, std::size_t size, bool writing) REQUIRES(mutex);
  std::map<CUdeviceptr, FakeRange>::iterator find(CUdeviceptr address) REQUIRES(mutex);
  // What ends with a context: all but virtual memory. The streams are for the caller to end, when
  // the mutex is not held.
  std::vector<std::unique_ptr<FakeStream>> clear_context(int device) REQUIRES(mutex);
  FakeStream* stream_of(CUstream stream, int device);
  void synchronize(int device);

  test::FakeFaults faults;
  int gpus = 2;
  unsigned delay_us = 0;
  Mutex mutex;  // not held while copying or waiting
  bool initialized GUARDED_BY(mutex) = false;
  FakeGpuState state[kMaxGpus] GUARDED_BY(mutex);
  std::uint64_t next_id GUARDED_BY(mutex) = 1;
  std::map<CUdeviceptr, FakeRange> ranges GUARDED_BY(mutex);
  std::map<CUdeviceptr, std::size_t> reservations GUARDED_BY(mutex);
  std::map<CUmemGenericAllocationHandle, std::pair<std::shared_ptr<FakeAllocation>, unsigned>>
      handles GUARDED_BY(mutex);
  std::map<CUstream, std::unique_ptr<FakeStream>> streams GUARDED_BY(mutex);
  std::map<CUevent, std::shared_ptr<FakeEvent>> events GUARDED_BY(mutex);
};

inline FakeCuda& fake() { return FakeCuda::get(); }

inline void count(test::FakeCount which, std::int64_t amount) {
  fake().faults.control().add(which, amount);
}

inline bool is_device(CUdevice device) { return device >= 0 && device < fake().gpus; }

// Every call begins so; `device` as in FakeCuda::begin().
#define FAKE_CUDA_BEGIN(call, device) \
  if (const CUresult code_ = fake().begin(call, device); code_ != CUDA_SUCCESS) return code_

}  // namespace sluice
