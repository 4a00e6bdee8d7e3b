// SPDX-License-Identifier: BSD-2-Clause
#include "client/compat/cufile/state.hpp"

#include <pthread.h>

#include "client/compat/cufile/real.hpp"

namespace sluice::dropin {
namespace {

RealFunction<CUfileError_t(CUstream, unsigned)> g_real_register("cuFileStreamRegister");

// No lock may be held by a thread that does not exist in the child.
void before_fork() NO_THREAD_SAFETY_ANALYSIS {
  state().batches.lock();
  state().streams.lock();
  state().handles.lock();
  state().memory.lock();
}

void unlock_all() NO_THREAD_SAFETY_ANALYSIS {
  state().memory.unlock();
  state().handles.unlock();
  state().streams.unlock();
  state().batches.unlock();
}

void in_child() NO_THREAD_SAFETY_ANALYSIS {
  state().memory.begin_anew_in_child();
  unlock_all();
}

}  // namespace

void StreamTable::add(CUstream stream, unsigned flags) {
  const MutexLock lock(mutex_);
  streams_[stream] = {flags, false};
}

bool StreamTable::remove(CUstream stream) {
  const MutexLock lock(mutex_);
  const auto found = streams_.find(stream);
  // NVIDIA's library may have used a stream that was never registered.
  if (found == streams_.end()) return true;
  const bool is_announced = found->second.is_announced;
  streams_.erase(found);
  return is_announced;
}

unsigned StreamTable::flags(CUstream stream) {
  const MutexLock lock(mutex_);
  const auto found = streams_.find(stream);
  return found != streams_.end() ? found->second.flags : 0;
}

void StreamTable::announce_to_real(CUstream stream) {
  unsigned flags = 0;
  {
    const MutexLock lock(mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end() || found->second.is_announced) return;
    found->second.is_announced = true;
    flags = found->second.flags;
  }
  // Registration only makes requests faster, so a failure is ignored.
  if (g_real_register) g_real_register(stream, flags);
}

State::State() { ::pthread_atfork(before_fork, unlock_all, in_child); }

State& state() {
  static State& s_state = *new State();
  return s_state;
}

}  // namespace sluice::dropin
