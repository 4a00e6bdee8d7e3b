// SPDX-License-Identifier: BSD-2-Clause
#pragma once

namespace sluice {

// Every thread of ours must call this first. It sets the thread's name (at most 15 characters),
// provides a stack for signal handlers (ensure_signal_stack()), and resets what a thread inherits
// from the one that started it: the CPU affinity becomes that of the process's main thread, and
// files are created as the user of the process, not as the one whose request the other thread was
// answering.
void begin_thread(const char* name);

}  // namespace sluice
