// SPDX-License-Identifier: BSD-2-Clause
#pragma once

namespace sluice {

// Serving: the thread works for requests of users, so one of them may be to blame if it crashes.
enum class ThreadKind { Background, Serving };

// Every thread of ours must call this first. It sets the thread's name (at most 15 characters),
// provides a stack for signal handlers (ensure_signal_stack()), and resets what a thread inherits
// from the one that started it: the CPU affinity becomes that of the process's main thread, and
// files are created and room is taken as the user of the process, not as the one whose request the
// other thread was answering.
void begin_thread(const char* name, ThreadKind kind = ThreadKind::Background);

// Whether the calling thread serves users. May be called by a signal handler.
bool is_serving_thread();

}  // namespace sluice
