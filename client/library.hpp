// SPDX-License-Identifier: BSD-2-Clause
// The Library is what libsluice keeps in a process: the engine that works where the daemon can't,
// the threads of asynchronous requests, and the list of open files. Nothing of it exists before it
// is needed, and it lasts until the process ends. A child of fork() begins with a new one: threads
// are not inherited, and the parent's would be waited for in vain.
//
// Threads: thread-safe.
#pragma once

#include <atomic>
#include <set>

#include "base/mutex.hpp"
#include "client/io_pool.hpp"
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

  // The GPUs, if the process uses CUDA; else null, and CUDA is not loaded for the question.
  Devices* devices_in_use();
  // CUDA's functions once a GPU was met here; null before.
  const CudaApi* cuda() const { return cuda_; }
  // Remembers that this GPU was met.
  void note(const Device& device) { cuda_ = &device.api(); }

  void add(File& file);
  void remove(File& file);
  // Takes the buffer back from the daemon, for every file that it was used with.
  void forget(const Buffer& buffer);

 private:
  Library();
  ~Library() = delete;

  Engine engine_;
  IoPool& pool_;
  std::atomic<const CudaApi*> cuda_{nullptr};  // set to one value only
  Mutex mutex_;
  std::set<File*> files_ GUARDED_BY(mutex_);
};

// Gives the calling thread its CUDA context back: the engine needs its own, and the host program
// would be on another GPU after it without a word.
class ContextKeeper {
 public:
  explicit ContextKeeper(const CudaApi* api);
  ~ContextKeeper();
  ContextKeeper(const ContextKeeper&) = delete;
  ContextKeeper& operator=(const ContextKeeper&) = delete;

 private:
  const CudaApi* const api_;
  CUcontext before_ = nullptr;
};

}  // namespace sluice
