// SPDX-License-Identifier: BSD-2-Clause
#include "client/compat/cufile/state.hpp"

#include <pthread.h>

#include "client/compat/cufile/real.hpp"

namespace sluice::dropin {
namespace {

RealFunction<CUfileError_t(CUstream, unsigned)> g_real_register("cuFileStreamRegister");

// No lock may be held by a thread that the child does not have.
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
  // One that it was never told of may have had requests of its all the same.
  if (found == streams_.end()) return true;
  const bool is_settled = found->second.is_settled;
  streams_.erase(found);
  return is_settled;
}

unsigned StreamTable::flags(CUstream stream) {
  const MutexLock lock(mutex_);
  const auto found = streams_.find(stream);
  return found != streams_.end() ? found->second.flags : 0;
}

void StreamTable::settle(CUstream stream) {
  unsigned flags = 0;
  {
    const MutexLock lock(mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end() || found->second.is_settled) return;
    found->second.is_settled = true;
    flags = found->second.flags;
  }
  // It only makes requests faster: one that fails is one that is not registered.
  if (g_real_register) g_real_register(stream, flags);
}

State::State() { ::pthread_atfork(before_fork, unlock_all, in_child); }

State& state() {
  static State& s_state = *new State();
  return s_state;
}

}  // namespace sluice::dropin
