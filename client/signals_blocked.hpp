// SPDX-License-Identifier: BSD-2-Clause
// Blocks all signals of the current thread while it lives. Threads started meanwhile inherit the
// mask, so they receive no signals of the host program. Threads: used by the thread that created
// it.
#pragma once

#include <pthread.h>

#include <csignal>

namespace sluice {

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace sluice
