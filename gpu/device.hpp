// SPDX-License-Identifier: BSD-2-Clause
// Devices are the GPUs of this machine, by UUID. CUDA is loaded, and the context of a GPU created,
// when first needed: a context takes hundreds of megabytes of GPU memory, and a process that forks
// must not have one.
//
// Ownership: Devices owns its Device objects, which live as long as it does. Contexts are the
// primary ones, which other users of CUDA in the process share.
// Threads: thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
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
// In the format of nvidia-smi: "GPU-12345678-...".
std::string to_string(const GpuUuid& uuid);

using IpcHandle = std::array<std::uint8_t, 64>;

// The errno that is nearest to CUDA's error.
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
  // False if the administrator lets only one process at a time use this GPU, or none.
  bool is_shared() const { return shared_; }
  const CudaApi& api() const { return api_; }

  // Makes the GPU's context current in the calling thread; creates it on first use. Cheap if it is
  // already current.
  Result<void> enter();
  // From now on enter() fails with ENODEV. Called after an error that only a new process can clear.
  void lose() { lost_ = true; }
  bool is_lost() const { return lost_; }

  // The kernels, loaded at the first call; null if they can't be loaded. That is logged once, and
  // loading is tried again after a while, because it fails while any thread captures a graph.
  // REQUIRES: the calling thread has entered this GPU.
  const Kernels* kernels();

  // Translates a CUDA error (never CUDA_SUCCESS) to an errno, logs its name and text once per
  // cause, and marks the device as lost if CUDA says that its context is unusable.
  Error failed(CUresult code, Operation what);

  // Maps memory of another process. CUDA maps an allocation only once per process: opening the same
  // handle again returns the same address, until it was closed as often as it was opened.
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
  bool shared_ = true;
  std::atomic<bool> lost_{false};  // never becomes false again
  Mutex mutex_;
  CUcontext context_ GUARDED_BY(mutex_) = nullptr;
  std::set<int> logged_ GUARDED_BY(mutex_);             // errors that were logged
  std::atomic<const Kernels*> kernels_ready_{nullptr};  // kernels_, for reading without the lock
  Mutex kernels_mutex_;                                 // held while CUDA loads them
  std::unique_ptr<Kernels> kernels_ GUARDED_BY(kernels_mutex_);
  bool kernels_refused_ GUARDED_BY(kernels_mutex_) = false;
  std::atomic<std::chrono::steady_clock::time_point> kernels_again_{};  // do not try to load before
  Mutex ipc_mutex_;  // held while CUDA maps and unmaps
  std::map<IpcHandle, IpcMapping> ipc_ GUARDED_BY(ipc_mutex_);
};

class Devices {
 public:
  Devices();
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  // True if the driver has found a GPU. If it has not, CUDA would have none until the process ends,
  // even if the driver is loaded a moment later. Does not load CUDA.
  static bool are_there();
  // All GPUs; empty if CUDA is unusable, and why_none() tells why. Loads CUDA on first use.
  const std::vector<std::unique_ptr<Device>>& all();
  std::string why_none();
  // True if CUDA was loaded. For reports, which must not load it themselves.
  bool is_loaded() const { return is_loaded_; }
  // The CUDA version of the driver, such as "13.0"; empty without CUDA.
  std::string driver_version();
  // ENODEV: there is no such GPU. All zero stands for the first GPU.
  Result<Device*> by_uuid(const GpuUuid& uuid);

 private:
  struct Loaded;
  const Loaded& loaded();

  Mutex mutex_;
  std::unique_ptr<Loaded> loaded_ GUARDED_BY(mutex_);  // set once, then immutable
  // For reading without the lock, which is held while CUDA is loaded.
  std::atomic<bool> is_loaded_{false};
};

}  // namespace sluice
