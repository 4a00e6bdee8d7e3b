// SPDX-License-Identifier: BSD-2-Clause
// The Library is libsluice's state in a process: the engine for requests that the daemon can't do,
// the threads of asynchronous requests, and the list of open files. It is created when first needed
// and lasts until the process ends. After fork(), the child has its own; if CUDA was in use before,
// the child's has no GPUs.
//
// Threads: thread-safe.
#pragma once

#include <atomic>
#include <set>

#include "base/mutex.hpp"
#include "client/io_pool.hpp"
#include "gpu/checksum.hpp"
#include "gpu/engine.hpp"

namespace sluice {

class File;
class Buffer;

class Library {
 public:
  static Library& get();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  Engine& engine() { return engine_; }
  IoPool& pool() { return pool_; }
  GpuChecksums& checksums() { return checksums_; }

  // The GPUs if the process uses CUDA, otherwise null. It does not load CUDA.
  Devices* devices_in_use();
  // The GPUs; loads CUDA. ENODEV if there are none.
  Result<Devices*> devices();
  // CUDA's functions if note() was called; null before.
  const CudaApi* cuda() const { return cuda_; }
  // Remembers that this process uses this GPU.
  void note(const Device& device) { cuda_ = &device.api(); }

  void add(File& file);
  void remove(File& file);
  // Unregisters the buffer from the daemon, on every file that it was used with.
  void forget(const Buffer& buffer);

 private:
  static void in_child();
  explicit Library(const Engine::Settings& settings);
  ~Library() = delete;

  Engine engine_;
  GpuChecksums checksums_;  // after engine_, which owns the GPUs
  IoPool& pool_;
  std::atomic<const CudaApi*> cuda_{nullptr};  // null, then one value
  std::atomic<bool> uses_cuda_{false};         // never becomes false again
  Mutex mutex_;
  std::set<File*> files_ GUARDED_BY(mutex_);
};

// Restores the CUDA context of the calling thread. The engine needs its own context, and the host
// program must not find itself on another GPU after a call. Until then, the thread may call CUDA
// while a graph is captured.
class ContextKeeper {
 public:
  explicit ContextKeeper(const CudaApi* api);
  ~ContextKeeper();
  ContextKeeper(const ContextKeeper&) = delete;
  ContextKeeper& operator=(const ContextKeeper&) = delete;

 private:
  void exchange_mode();

  const CudaApi* const api_;
  CUcontext before_ = nullptr;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // the thread's, once exchanged
};

}  // namespace sluice
