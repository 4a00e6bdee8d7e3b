// SPDX-License-Identifier: BSD-2-Clause
// The state of the library in a process. The first call creates it, and it lasts until the process
// ends, because streams and threads of libsluice may still work when static destructors run.
#pragma once

#include <map>

#include "client/compat/cufile/batch.hpp"
#include "client/compat/cufile/handles.hpp"
#include "client/compat/cufile/memory.hpp"

namespace sluice::dropin {

// The streams that the program has registered, with their flags. Threads: thread-safe.
class StreamTable {
 public:
  void add(CUstream stream, unsigned flags);
  // Returns whether the stream was registered with NVIDIA's library.
  bool remove(CUstream stream);
  unsigned flags(CUstream stream);
  // Called before NVIDIA's library uses this stream. Registers it there if that has not been done.
  void announce_to_real(CUstream stream);

  // For fork().
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

 private:
  struct Registered {
    unsigned flags = 0;
    bool is_announced = false;
  };
  Mutex mutex_;
  std::map<CUstream, Registered> streams_ GUARDED_BY(mutex_);
};

struct State {
  State();

  HandleTable handles;
  MemoryTable memory;
  StreamTable streams;
  BatchTable batches;
};

State& state();

}  // namespace sluice::dropin
