// SPDX-License-Identifier: BSD-2-Clause
// The memory that this process and others could use. Pure functions.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

struct MachineMemory {
  std::uint64_t total = 0;
  // What programs could allocate, including page cache that the kernel can drop. The kernel counts
  // page cache that is registered with a GPU, too, although it can't drop that.
  std::uint64_t available = 0;
};

// The memory of the machine, or of our control group if it has a limit and less is available there.
// If the kernel tells nothing, everything is taken as available. `root`: the directory of proc and
// sys.
MachineMemory machine_memory(const std::string& root = "/");

}  // namespace sluice
