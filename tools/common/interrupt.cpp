// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/interrupt.hpp"

#include <signal.h>

#include <cstdio>
#include <cstdlib>

#include "base/check.hpp"
#include "tools/common/verbs.hpp"

namespace sluice::tools {
namespace {

volatile sig_atomic_t g_signal = 0;

void handle(int signal) { g_signal = signal; }

void set_handler(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = handler == SIG_DFL ? 0 : static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    // A shell that runs it in the background has it ignored.
    if (before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace

Interrupt::Interrupt() {
  g_signal = 0;
  set_handler(handle);
}

Interrupt::~Interrupt() { set_handler(SIG_DFL); }

bool Interrupt::came() const { return g_signal != 0; }

void Interrupt::end(const std::string& verb, const std::string& message) const {
  SLUICE_CHECK(came(), "a program ends by a signal that came");
  fail(verb, "interrupted; " + message);
  std::fflush(stdout);
  const int signal = g_signal;
  set_handler(SIG_DFL);
  ::raise(signal);
  std::_Exit(128 + signal);  // the signal is blocked
}

}  // namespace sluice::tools
