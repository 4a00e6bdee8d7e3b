// SPDX-License-Identifier: BSD-2-Clause
// Tells whether the kernel has many dirty pages. Once there are too many, the kernel makes every
// write(2) wait, up to 200 ms at a time.
//
// Threads: thread-safe.
#pragma once

#include <string_view>

namespace sluice {

// Whether the next write may have to wait. Asks the kernel at most 20 times a second.
bool writes_may_be_slowed();

// The same for a given text of /proc/vmstat. False if the text lacks the values.
bool has_many_dirty_pages(std::string_view vmstat);

}  // namespace sluice
