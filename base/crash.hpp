// SPDX-License-Identifier: BSD-2-Clause
// Reports of crashes of the daemon.
#pragma once

namespace sluice {

// From here on, a fatal signal (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) writes its number and the
// call stack to stderr before the process ends. Does nothing in builds with sanitizers, which
// report faults themselves.
void report_crashes();

// Called first by the thread that crashes, in a signal handler: it may only do what is allowed
// there.
void set_crash_hook(void (*hook)());

// Gives the calling thread a separate stack for signal handlers, so that a stack overflow is
// reported, too. If the thread has one already, this costs a thread-local test.
void ensure_signal_stack();

}  // namespace sluice
