// SPDX-License-Identifier: BSD-2-Clause
// Memory that a test and a fake library (libcuda, libcufile) share, also across processes: counters
// of resources and calls, and the calls that must fail.
//
// It is a file "<library>.<pid>" in the directory $SLUICE_FAKE_CUDA_DIR, mapped by both. Without
// that variable, only the environment says which calls fail, and the counters are not readable.
// Threads: thread-safe.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/mutex.hpp"

namespace sluice::test {

enum class FakeCount {
  Contexts,         // currently in use, like the others unless noted
  AllocatedBytes,   // from cuMemAlloc() and cuMemCreate()
  ImportedBytes,    // mapped from other processes, by IPC or descriptor
  Imports,          // number of such mappings
  RegisteredBytes,  // host memory
  Registrations,
  Streams,
  Events,
  Copies,         // since the start
  CopiedBytes,    // since the start
  Modules,        // of kernels
  Launches,       // kernels run since the start
  Drivers,        // cuFile: open drivers
  Handles,        // cuFile: registered files
  Buffers,        // cuFile: registered buffers
  Transfers,      // cuFile: since the start
  TransferBytes,  // cuFile: since the start
  kEnd,
};

struct FakeControl {
  static constexpr const char* kDirectory = "SLUICE_FAKE_CUDA_DIR";

  std::atomic<std::uint32_t> generation;  // changed after each change of `fail`
  char fail[508];
  std::atomic<std::uint64_t> counts[static_cast<std::size_t>(FakeCount::kEnd)];

  static std::string path(const char* library, pid_t pid);  // "" if the directory is not set
  // Maps the file. Only the fake itself creates it (`create`). Null if it does not exist.
  static FakeControl* map(const std::string& path, bool create);

  void add(FakeCount which, std::int64_t amount) {
    counts[static_cast<std::size_t>(which)] += static_cast<std::uint64_t>(amount);
  }
};

// Used by the fakes. Faults are "call:number:code", separated by commas: the call with that number
// (from 1) returns the code; "3+" means the third call and all later ones. The comment at the top
// of each fake explains its codes and other words.
class FakeFaults {
 public:
  // `variable` is the environment variable with the initial faults.
  FakeFaults(const char* library, const char* variable);

  FakeControl& control() { return *control_; }
  // Counts the call. Returns 0 if it must proceed, otherwise the code that it must return.
  int next(const char* call);

 private:
  struct Fault {
    std::string call;
    unsigned long number, seen;
    bool onwards;
    int code;
  };
  void parse(const std::string& text) REQUIRES(mutex_);

  FakeControl* control_;
  Mutex mutex_;
  std::uint32_t generation_ GUARDED_BY(mutex_) = 0;
  std::vector<Fault> faults_ GUARDED_BY(mutex_);
};

}  // namespace sluice::test
