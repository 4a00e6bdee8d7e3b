// SPDX-License-Identifier: BSD-2-Clause
#include "base/thread.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <unistd.h>

#include "base/crash.hpp"

namespace sluice {

void begin_thread(const char* name) {
  ensure_signal_stack();
  ::pthread_setname_np(::pthread_self(), name);
  ::setfsuid(::geteuid());
  ::setfsgid(::getegid());
  cpu_set_t cores;
  if (::sched_getaffinity(::getpid(), sizeof cores, &cores) == 0) {
    ::sched_setaffinity(0, sizeof cores, &cores);
  }
}

}  // namespace sluice
