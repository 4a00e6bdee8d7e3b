// SPDX-License-Identifier: BSD-2-Clause
// What reading a file costs on a tier: the time until its first byte, and the rate of the bytes
// after that. The planner compares tiers by it. Threads: plain values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice {

struct TierSpeed {
  double latency = 0;    // seconds until the first byte
  double bandwidth = 0;  // bytes per second; 0: unknown

  // The time that one reading of a whole file of `bytes` takes.
  double seconds_for(std::uint64_t bytes) const {
    return latency + (bandwidth > 0 ? static_cast<double>(bytes) / bandwidth : 0);
  }
  bool is_known() const { return bandwidth > 0; }
  bool operator==(const TierSpeed&) const = default;
};

// The user lists tiers from fast to slow, and that order holds whatever was measured: a tier is
// taken to be at least a quarter slower than the one before it. `speeds` is in the order of the
// tiers.
inline void obey_order(std::vector<TierSpeed>& speeds) {
  constexpr double kStep = 1.25;
  for (std::size_t i = 1; i < speeds.size(); ++i) {
    const TierSpeed& faster = speeds[i - 1];
    TierSpeed& speed = speeds[i];
    if (speed.latency < faster.latency * kStep) speed.latency = faster.latency * kStep;
    if (faster.bandwidth > 0 &&
        (speed.bandwidth <= 0 || speed.bandwidth > faster.bandwidth / kStep)) {
      speed.bandwidth = faster.bandwidth / kStep;
    }
  }
}

// From fast to slow, as far as the kind tells.
enum class StorageKind : std::uint8_t {
  Memory,
  Nvme,
  Ssd,
  Virtual,  // a disk of a virtual machine or a loop device; it may call itself rotational
  Hdd,
  Network,
  Unknown,
};

// What storage of this kind usually does.
TierSpeed usual_speed(StorageKind kind);

// What tier number `tier` of `tiers` usually does, if nothing else is known about it: the fastest
// is an NVMe disk, the slowest a hard disk, and those between them are between.
TierSpeed usual_speed(std::size_t tier, std::size_t tiers);

}  // namespace sluice
