// SPDX-License-Identifier: BSD-2-Clause
#pragma once

namespace sluice {

// Every thread of ours must call this first. It sets the thread's name (at most 15 characters),
// provides a stack for signal handlers (ensure_signal_stack()), and resets the CPU affinity to that
// of the process's main thread. A thread inherits the affinity of the thread that started it, and
// libfuse binds each of its io_uring threads to one core: without the reset, all workers started by
// such a thread would share that core.
void begin_thread(const char* name);

}  // namespace sluice
