// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/choose/tier_speed.hpp"

#include <cmath>

namespace sluice {

TierSpeed usual_speed(StorageKind kind) {
  switch (kind) {
    case StorageKind::Nvme:
      return {.latency = 80e-6, .bandwidth = 3e9};
    case StorageKind::Ssd:
      return {.latency = 150e-6, .bandwidth = 500e6};
    case StorageKind::Hdd:
      return {.latency = 8e-3, .bandwidth = 180e6};
    case StorageKind::Memory:
      return {.latency = 5e-6, .bandwidth = 6e9};
    case StorageKind::Network:
      return {.latency = 2e-3, .bandwidth = 100e6};
    case StorageKind::Virtual:
    case StorageKind::Unknown:
      break;
  }
  return {.latency = 1e-3, .bandwidth = 200e6};
}

TierSpeed usual_speed(std::size_t tier, std::size_t tiers) {
  if (tiers < 2 || tier + 1 >= tiers)
    return usual_speed(tiers < 2 ? StorageKind::Nvme : StorageKind::Hdd);
  // 0 is NVMe, 1 is SSD, 2 is a hard disk. In geometric steps: each tier is as many times slower
  // than the one before.
  const double place = 2 * static_cast<double>(tier) / static_cast<double>(tiers - 1);
  const TierSpeed fast = usual_speed(place < 1 ? StorageKind::Nvme : StorageKind::Ssd);
  const TierSpeed slow = usual_speed(place < 1 ? StorageKind::Ssd : StorageKind::Hdd);
  const double part = place < 1 ? place : place - 1;
  const auto between = [part](double a, double b) { return a * std::pow(b / a, part); };
  return {.latency = between(fast.latency, slow.latency),
          .bandwidth = between(fast.bandwidth, slow.bandwidth)};
}

}  // namespace sluice
