// SPDX-License-Identifier: BSD-2-Clause
// Blocks all signals while it lives: a thread that is started meanwhile inherits the mask, and
// takes none of the host program's. Threads: for the thread that made it.
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
