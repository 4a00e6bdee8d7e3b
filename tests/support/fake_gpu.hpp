// SPDX-License-Identifier: BSD-2-Clause
// The fake libcuda.so.1 and libcufile.so.0, from a test's side: what they hold, and what shall
// fail. install() before anything asks for CUDA; processes started afterwards use them too.
// Threads: thread-safe but for install().
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "tests/support/fake_control.hpp"

namespace sluice::test {

struct FakeGpu {
  // Loads the fakes, and sets LD_LIBRARY_PATH and the directory that they share with tests.
  // Repeated calls do nothing. REQUIRES: called before threads are started (it sets variables).
  static void install();

  // What is held, or was done, by a process; 0 if it has not loaded the fake.
  static std::uint64_t count(FakeCount which, pid_t pid = ::getpid());
  // From now on calls fail as `faults` says (fake_control.hpp); empty: none. False: the process has
  // not loaded the fake.
  static bool fail_cuda(const std::string& faults, pid_t pid = ::getpid());
  static bool fail_cufile(const std::string& faults, pid_t pid = ::getpid());
};

}  // namespace sluice::test
