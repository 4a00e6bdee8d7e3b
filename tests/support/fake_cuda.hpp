// SPDX-License-Identifier: BSD-2-Clause
// Internals that the sources of the fake libcuda.so.1 share.
//
// Each allocation of GPU memory is a memfd. The address that a program sees is reserved but not
// accessible, like that of a real GPU; the bytes are mapped elsewhere. Other processes get an
// allocation through /proc/<pid>/fd or a descriptor. It is freed with its last user, so a process
// that dies leaks nothing.
#pragma once

#include <atomic>
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
  FakeAllocation(int memfd, std::size_t bytes, int gpu, bool own, bool of_virtual = false);
  ~FakeAllocation();
  FakeAllocation(const FakeAllocation&) = delete;
  FakeAllocation& operator=(const FakeAllocation&) = delete;

  const int fd;
  const std::size_t size;
  const int device;
  const bool mine;        // allocated by this process, not imported
  const bool is_virtual;  // from cuMemCreate(), freed with its last handle and mapping
  std::byte* bytes = nullptr;
};

// A range of addresses and its bytes: of an allocation, or of registered host memory.
struct FakeRange {
  enum class Kind { Allocated, Ipc, Mapped, Host };
  Kind kind = Kind::Allocated;
  std::size_t size = 0;
  std::shared_ptr<FakeAllocation> allocation;  // null for host memory
  std::byte* bytes = nullptr;
  std::uint64_t id = 0;
  bool accessible = true;  // Mapped: after cuMemSetAccess()
  bool writable = true;    // Host: registered without READ_ONLY
  bool of_file = false;    // Host: pages of a file, which may be truncated during a copy
  unsigned users = 1;      // Ipc: how many times it was opened
  int device = 0;
};

// A stream: a thread that runs operations in order. As in CUDA, the default stream and the blocking
// streams of a GPU wait for each other's earlier operations; non-blocking streams wait for none.
class FakeStream {
 public:
  enum class Kind { Default, Blocking, NonBlocking };
  FakeStream(int device, Kind kind);
  ~FakeStream();  // runs all queued operations first
  void put(std::function<void()> work);
  // For the default stream: also the blocking streams.
  void wait_idle();
  bool is_idle();
  int device() const { return device_; }
  Kind kind() const { return kind_; }

 private:
  void run();
  // Waits until what is in the queue now has run; empty if nothing is.
  std::function<void()> waiter();

  const int device_;
  const Kind kind_;
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

// Nothing is recorded: the captured stream can't be used, and the graph stays empty.
struct FakeCapture {
  CUstreamCaptureMode mode;
  bool is_valid = true;
};

struct FakeGpuState {
  unsigned contexts = 0;
  CUresult lost = CUDA_SUCCESS;  // a sticky error, which every later call returns
  std::uint64_t used = 0;
  std::unique_ptr<FakeStream> stream;  // the default stream
};

// The whole state. Never destroyed, because streams may still run when the process ends.
struct FakeCuda {
  static constexpr int kMaxGpus = 8;
  static constexpr std::size_t kGranularity = 2 << 20;
  static constexpr std::size_t kMemory = std::size_t{16} << 30;

  FakeCuda();
  static FakeCuda& get();

  // Begins a call: returns the requested fault, or an error if the state does not allow the call.
  // Sets `device` to that of the current context; null if the call needs no context.
  CUresult begin(const char* call, int* device);
  void lose(int device, CUresult code);

  // Copies between two ends. Each is a known range or (`*_host`) ordinary host memory. Returns
  // false if an end is not valid.
  bool copy(CUdeviceptr to, CUdeviceptr from, std::size_t size, bool to_host, bool from_host);
  // Like copy(), but does not count.
  bool move(CUdeviceptr to, CUdeviceptr from, std::size_t size, bool to_host, bool from_host);
  // Whether the whole range is known (and writable).
  bool is_valid(CUdeviceptr address, std::size_t size, bool writing) REQUIRES(mutex);
  std::map<CUdeviceptr, FakeRange>::iterator find(CUdeviceptr address) REQUIRES(mutex);
  // Removes everything that ends with a context: all except virtual memory. The caller must destroy
  // the returned streams after unlocking the mutex.
  std::vector<std::unique_ptr<FakeStream>> clear_context(int device) REQUIRES(mutex);
  // Null: unknown. Also if a capture forbids its use; the capture is then invalid.
  FakeStream* stream_of(CUstream stream, int device);
  // The streams that wait for this one, and it for them, without events.
  std::vector<FakeStream*> bound_to(const FakeStream& stream);
  // What a capture makes of a call of this thread: CUDA_SUCCESS if it may proceed.
  CUresult check_captures(const char* call) REQUIRES(mutex);
  void synchronize(int device);

  test::FakeFaults faults;
  // Memory of cuMemCreate(). Atomic, because it is freed with and without the mutex.
  std::atomic<std::uint64_t> used_virtual[kMaxGpus] = {};
  int gpus = 2;
  unsigned delay_us = 0;
  Mutex mutex;  // not locked while copying or waiting
  bool initialized GUARDED_BY(mutex) = false;
  FakeGpuState state[kMaxGpus] GUARDED_BY(mutex);
  std::uint64_t next_id GUARDED_BY(mutex) = 1;
  std::map<CUdeviceptr, FakeRange> ranges GUARDED_BY(mutex);
  std::map<CUdeviceptr, std::size_t> reservations GUARDED_BY(mutex);
  std::map<CUmemGenericAllocationHandle, std::pair<std::shared_ptr<FakeAllocation>, unsigned>>
      handles GUARDED_BY(mutex);
  std::map<CUstream, std::unique_ptr<FakeStream>> streams GUARDED_BY(mutex);
  std::map<CUevent, std::shared_ptr<FakeEvent>> events GUARDED_BY(mutex);
  std::map<CUstream, FakeCapture> captures GUARDED_BY(mutex);  // in progress
};

inline FakeCuda& fake() { return FakeCuda::get(); }

inline void count(test::FakeCount which, std::int64_t amount) {
  fake().faults.control().add(which, amount);
}

inline bool is_device(CUdevice device) { return device >= 0 && device < fake().gpus; }

// Every call begins with this; `device` as in FakeCuda::begin().
#define FAKE_CUDA_BEGIN(call, device) \
  if (const CUresult code_ = fake().begin(call, device); code_ != CUDA_SUCCESS) return code_

}  // namespace sluice
