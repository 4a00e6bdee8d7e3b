// SPDX-License-Identifier: BSD-2-Clause
#pragma once

#include <sys/types.h>

namespace sluice {

// Whether a daemon that ends has ended except for threads that are blocked in a filesystem that
// does not answer (DescriptorTaker). They have no files of the pool open and cannot be killed, but
// as long as they exist, the process does.
bool has_only_blocked_threads(pid_t pid);

}  // namespace sluice
