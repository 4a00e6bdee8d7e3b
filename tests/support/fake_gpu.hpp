// SPDX-License-Identifier: BSD-2-Clause
// The test's interface to the fake libcuda.so.1 and libcufile.so.0: reads counters and sets faults.
// Call install() before anything loads CUDA; processes started afterwards use the fakes, too.
// Threads: thread-safe except install().
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "tests/support/fake_control.hpp"

namespace sluice::test {

struct FakeGpu {
  // Loads the fakes, and sets LD_LIBRARY_PATH and the directory that they share with tests. Further
  // calls do nothing. REQUIRES: no other threads (it changes the environment).
  static void install();

  // A counter of a process; 0 if it has not loaded the fake.
  static std::uint64_t count(FakeCount which, pid_t pid = ::getpid());
  // From now on, calls fail as `faults` says (fake_control.hpp); "" ends that. Returns false if the
  // process has not loaded the fake.
  static bool fail_cuda(const std::string& faults, pid_t pid = ::getpid());
  static bool fail_cufile(const std::string& faults, pid_t pid = ::getpid());
};

}  // namespace sluice::test
