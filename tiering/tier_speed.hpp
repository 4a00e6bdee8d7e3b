// SPDX-License-Identifier: BSD-2-Clause
// What reading a file costs on a tier: the time until its first byte, and the rate of the bytes
// after that. The planner compares tiers by it. Threads: plain values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

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

enum class DiskKind : std::uint8_t { Nvme, Ssd, Hdd };

// What a disk of this kind usually does.
TierSpeed usual_speed(DiskKind kind);

// What tier number `tier` of `tiers` usually does, if nothing else is known about it: the fastest
// is an NVMe disk, the slowest a hard disk, and those between them are between.
TierSpeed usual_speed(std::size_t tier, std::size_t tiers);

}  // namespace sluice
