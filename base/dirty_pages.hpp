// SPDX-License-Identifier: BSD-2-Clause
// How much the kernel still has to write to disks. Once that is too much, it makes every write(2)
// wait, up to 200 ms at a time.
//
// Threads: any thread, any time.
#pragma once

#include <string_view>

namespace sluice {

// Whether the next write may have to wait. Asks the kernel at most 20 times a second.
bool writes_may_be_slowed();

// The same of the text of /proc/vmstat. False if it does not say.
bool has_many_dirty_pages(std::string_view vmstat);

}  // namespace sluice
