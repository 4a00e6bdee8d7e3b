// SPDX-License-Identifier: BSD-2-Clause
// What the library keeps in a process. It is made by the first call, and lasts until the process
// ends: streams, and threads of libsluice's, may be at work when static destructors run.
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
  // Whether NVIDIA's library was told of it.
  bool remove(CUstream stream);
  unsigned flags(CUstream stream);
  // NVIDIA's library is about to use this stream, and is told of it if it was not.
  void settle(CUstream stream);

  // Around fork().
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

 private:
  struct Registered {
    unsigned flags = 0;
    bool is_settled = false;
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
