// SPDX-License-Identifier: BSD-2-Clause
#pragma once

namespace sluice {

// The first thing that a thread of ours does: takes a name (at most 15 characters), gets a stack
// for signal handlers (ensure_signal_stack()), and may run wherever the process's main thread may.
// A thread begins with the binding of the one that started it, and libfuse binds each of its
// io_uring threads to a core: workers that the first request on such a thread started would share
// that one core for ever.
void begin_thread(const char* name);

}  // namespace sluice
