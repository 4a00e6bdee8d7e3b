// SPDX-License-Identifier: BSD-2-Clause
#pragma once

#include <sys/types.h>

namespace sluice {

// The names of threads that share no descriptors with the others, because they may be blocked.
inline constexpr const char* kTakerThread = "sluice-taker";    // by a filesystem: DescriptorTaker
inline constexpr const char* kTakeThread = "sluice-take";      // by a descriptor that it closes
inline constexpr const char* kNoticeThread = "sluice-notice";  // by the mount: KernelNotices

// Whether a daemon that ends has ended except for such threads. They cannot be killed while they
// are blocked, and as long as they exist, the process does.
bool has_only_blocked_threads(pid_t pid);

// Closes the descriptors of this thread but `one`. REQUIRES: it shares them with no other thread.
void close_all_but(int one);

}  // namespace sluice
