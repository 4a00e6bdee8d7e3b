// SPDX-License-Identifier: BSD-2-Clause
#pragma once

namespace sluice {

// Background: the thread works for no request of a user, so no request is to blame if it crashes.
enum class ThreadKind { Serving, Background };

// Every thread of ours must call this first. It sets the thread's name (at most 15 characters),
// provides a stack for signal handlers (ensure_signal_stack()), and resets what a thread inherits
// from the one that started it: the CPU affinity becomes that of the process's main thread, and
// files are created and room is taken as the user of the process, not as the one whose request the
// other thread was answering.
void begin_thread(const char* name, ThreadKind kind = ThreadKind::Serving);

// Whether the calling thread is one of those. May be called by a signal handler.
bool is_background_thread();

}  // namespace sluice
