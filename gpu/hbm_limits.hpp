// SPDX-License-Identifier: BSD-2-Clause
// How much memory of each GPU may be used for copies of files. Threads: immutable.
#pragma once

#include <cstdint>

namespace sluice {

// An amount of a GPU's memory: bytes, or percent of all of it.
struct GpuShare {
  std::uint64_t bytes = 0;
  unsigned percent = 0;
  std::uint64_t of(std::uint64_t memory) const { return bytes + memory / 100 * percent; }
  bool operator==(const GpuShare&) const = default;
};

struct HbmLimits {
  GpuShare size = {};                  // for copies; 0: none
  GpuShare reserve = {.percent = 10};  // stays free for programs
  bool operator==(const HbmLimits&) const = default;
};

}  // namespace sluice
