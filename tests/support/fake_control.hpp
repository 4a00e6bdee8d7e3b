// SPDX-License-Identifier: BSD-2-Clause
// What a test and a fake library (libcuda, libcufile) share, also across processes: counters of
// what is held, and which calls shall fail.
//
// It is a file "<library>.<pid>" in the directory $SLUICE_FAKE_CUDA_DIR, mapped by both; without
// that variable only the environment says what fails, and nobody reads the counters.
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
  Contexts,         // held now; the others too, unless they say otherwise
  AllocatedBytes,   // by cuMemAlloc() and cuMemCreate()
  ImportedBytes,    // mapped from other processes, by IPC and by descriptor
  Imports,          // such mappings
  RegisteredBytes,  // of host memory
  Registrations,
  Streams,
  Events,
  Copies,         // ever
  CopiedBytes,    // ever
  Modules,        // of kernels
  Launches,       // of kernels that ran, ever
  Drivers,        // cuFile: opened
  Handles,        // cuFile: registered files
  Buffers,        // cuFile: registered buffers
  Transfers,      // cuFile: ever
  TransferBytes,  // cuFile: ever
  kEnd,
};

struct FakeControl {
  static constexpr const char* kDirectory = "SLUICE_FAKE_CUDA_DIR";

  std::atomic<std::uint32_t> generation;  // of `fail`: changed after it
  char fail[508];
  std::atomic<std::uint64_t> counts[static_cast<std::size_t>(FakeCount::kEnd)];

  static std::string path(const char* library, pid_t pid);  // empty without the directory
  // Maps the file, which only the fake itself creates (`create`). Null if there is none.
  static FakeControl* map(const std::string& path, bool create);

  void add(FakeCount which, std::int64_t amount) {
    counts[static_cast<std::size_t>(which)] += static_cast<std::uint64_t>(amount);
  }
};

// The fake's side. Faults are "call:number:code", separated by commas: the call of that number
// (from 1) returns the code; "3+" is the third and all after it. What codes and further words mean
// is said at the top of each fake.
class FakeFaults {
 public:
  // `variable` has the faults to begin with.
  FakeFaults(const char* library, const char* variable);

  FakeControl& control() { return *control_; }
  // Counts the call. 0: it goes on; else it returns this.
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
