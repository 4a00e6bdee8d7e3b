// SPDX-License-Identifier: BSD-2-Clause
// What reading a file costs on a tier: the time until its first byte, and the rate of the bytes
// after that. The planner compares tiers by it. Threads: plain values and pure functions.
#pragma once

#include <cstdint>

namespace sluice {

struct TierSpeed {
  double latency = 0;    // seconds until the first byte
  double bandwidth = 0;  // bytes per second; 0: unknown

  // The time that one reading of a whole file of `bytes` takes.
  double seconds_for(std::uint64_t bytes) const {
    return latency + (bandwidth > 0 ? static_cast<double>(bytes) / bandwidth : 0);
  }
  bool operator==(const TierSpeed&) const = default;
};

}  // namespace sluice
