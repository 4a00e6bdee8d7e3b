// SPDX-License-Identifier: BSD-2-Clause
#include "base/thread.hpp"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "base/crash.hpp"
#include "base/user_room.hpp"

namespace sluice {
namespace {

thread_local bool is_serving = false;  // so, too, for the threads of libraries

}  // namespace

void begin_thread(const char* name, ThreadKind kind) {
  is_serving = kind == ThreadKind::Serving;
  ensure_signal_stack();
  ::pthread_setname_np(::pthread_self(), name);
  reset_filesystem_user();
  cpu_set_t cores;
  if (::sched_getaffinity(::getpid(), sizeof cores, &cores) == 0) {
    ::sched_setaffinity(0, sizeof cores, &cores);
  }
}

bool is_serving_thread() { return is_serving; }

}  // namespace sluice
