// SPDX-License-Identifier: BSD-2-Clause
// What a daemon says when it dies of a fault of its own.
#pragma once

namespace sluice {

// From here on, a signal that ends the process for a fault (SIGSEGV, SIGBUS, SIGFPE, SIGILL,
// SIGABRT) writes its number and the calls that led there to stderr first. Sanitizers do so
// themselves: in their builds this does nothing.
void report_crashes();

// Gives the calling thread a stack of its own for signal handlers, so that a fault for want of
// stack is reported, too. Costs a thread-local test when it has one.
void ensure_signal_stack();

}  // namespace sluice
