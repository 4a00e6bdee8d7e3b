// SPDX-License-Identifier: BSD-2-Clause
// The I/O priority of threads that work in the background. Threads: it applies to the calling
// thread.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

namespace sluice {

// While this exists, the disk serves the calling thread only when no other thread needs the disk
// (if the I/O scheduler supports priorities). Do not use it during the switch of names, for which
// other threads may wait.
class IdlePriority {
 public:
  IdlePriority() { set(3); }
  ~IdlePriority() { set(2); }
  IdlePriority(const IdlePriority&) = delete;
  IdlePriority& operator=(const IdlePriority&) = delete;

 private:
  static void set(int priority_class) {
    constexpr int kThisThread = 1, kClassShift = 13, kMiddle = 4;
    ::syscall(SYS_ioprio_set, kThisThread, 0,
              priority_class << kClassShift | (priority_class == 2 ? kMiddle : 0));
  }
};

}  // namespace sluice
