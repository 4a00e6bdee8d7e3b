// SPDX-License-Identifier: BSD-2-Clause
// Devices are the GPUs of this machine, by UUID. CUDA is loaded, and a GPU given a context, when
// somebody first needs it, never before: a context takes hundreds of megabytes of GPU memory, and a
// process that forks must not have one.
//
// Ownership: Devices owns its Device objects, which live as long as it does; contexts are the
// primary ones, which other users of CUDA in the process share.
// Threads: thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "gpu/cuda_api.hpp"
#include "gpu/kernels.hpp"

namespace sluice {

using GpuUuid = std::array<std::uint8_t, 16>;
// As nvidia-smi writes it: "GPU-12345678-...".
std::string to_string(const GpuUuid& uuid);

using IpcHandle = std::array<std::uint8_t, 64>;

// The errno that is nearest to what CUDA said.
int errno_of(CUresult code);

class Device {
 public:
  Device(const CudaApi& api, CUdevice ordinal);
  ~Device();  // releases the context
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const GpuUuid& uuid() const { return uuid_; }
  const std::string& name() const { return name_; }        // "NVIDIA H200"
  const std::string& pci_address() const { return pci_; }  // "0000:1a:00.0"
  int numa_node() const { return numa_node_; }             // -1: unknown
  CUdevice ordinal() const { return ordinal_; }
  std::uint64_t memory_bytes() const { return memory_; }
  const CudaApi& api() const { return api_; }

  // Makes the GPU's context, created on first use, the calling thread's. Cheap when it is already.
  Result<void> enter();
  // ENODEV from now on: an error that only a new process can clear has happened (a sticky one).
  void lose() { lost_ = true; }
  bool is_lost() const { return lost_; }

  // The kernels, loaded by the first who asks; null if they can't be used, which is logged once.
  // REQUIRES: the calling thread has entered this GPU.
  const Kernels* kernels();

  // Translates what a CUDA call said (never CUDA_SUCCESS) to an errno, logs its name and text once
  // a cause, and marks the device as lost where CUDA says that its context is of no more use.
  Error failed(CUresult code, Operation what);

  // Maps memory of another process. CUDA maps an allocation once a process, so each opening of the
  // same handle yields the same address, until it was closed as often as it was opened.
  Result<CUdeviceptr> open_ipc(const IpcHandle& handle);
  void close_ipc(const IpcHandle& handle);

 private:
  struct IpcMapping {
    CUdeviceptr address = 0;
    unsigned users = 0;
  };

  const CudaApi& api_;
  const CUdevice ordinal_;
  GpuUuid uuid_{};
  std::string name_, pci_;
  int numa_node_ = -1;
  std::uint64_t memory_ = 0;
  std::atomic<bool> lost_{false};  // only ever turns true
  Mutex mutex_;
  CUcontext context_ GUARDED_BY(mutex_) = nullptr;
  std::set<int> logged_ GUARDED_BY(mutex_);             // errors that the log has already
  std::atomic<const Kernels*> kernels_ready_{nullptr};  // kernels_, to be read without the lock
  Mutex kernels_mutex_;                                 // held while CUDA loads them
  std::unique_ptr<Kernels> kernels_ GUARDED_BY(kernels_mutex_);
  std::atomic<bool> kernels_refused_{false};  // only ever turns true
  Mutex ipc_mutex_;                           // held while CUDA maps and unmaps
  std::map<IpcHandle, IpcMapping> ipc_ GUARDED_BY(ipc_mutex_);
};

class Devices {
 public:
  Devices();
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  // All GPUs; none if CUDA is not usable, and why_none() says why. Loads CUDA on first use.
  const std::vector<std::unique_ptr<Device>>& all();
  std::string why_none();
  // Whether somebody has needed CUDA: for who wants to report on it, and is no reason to load it.
  bool is_loaded() {
    MutexLock lock(mutex_);
    return loaded_ != nullptr;
  }
  // "13.0" as the driver says; empty without CUDA.
  std::string driver_version();
  // ENODEV if there is no such GPU. All zero: the first.
  Result<Device*> by_uuid(const GpuUuid& uuid);

 private:
  struct Loaded;
  const Loaded& loaded();

  Mutex mutex_;
  std::unique_ptr<Loaded> loaded_ GUARDED_BY(mutex_);  // set once, then immutable
};

}  // namespace sluice
