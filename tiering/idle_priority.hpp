// SPDX-License-Identifier: BSD-2-Clause
// The I/O priority of a thread that works behind the users' backs. Threads: it is the calling
// thread's.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

namespace sluice {

// The disk's queue serves this thread when nobody else wants it (where the I/O scheduler knows
// priorities). Not while names change hands: somebody may be waiting for that.
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
