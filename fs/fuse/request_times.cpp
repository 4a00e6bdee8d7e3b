// SPDX-License-Identifier: BSD-2-Clause
#include "fs/fuse/request_times.hpp"

#include <algorithm>

namespace sluice {

void RequestTimes::add(std::size_t kind, std::chrono::nanoseconds took) {
  if (kind >= kKinds) return;
  const auto at = std::ranges::lower_bound(kBounds, took) - kBounds.begin();
  Kind& times = kinds_[kind];
  times.counts[static_cast<std::size_t>(at)].fetch_add(1, std::memory_order_relaxed);
  times.nanoseconds.fetch_add(static_cast<std::uint64_t>(took.count()), std::memory_order_relaxed);
}

RequestTimes::Times RequestTimes::of(std::size_t kind) const {
  Times out;
  const Kind& times = kinds_.at(kind);
  for (std::size_t i = 0; i < out.counts.size(); ++i)
    out.counts[i] = times.counts[i].load(std::memory_order_relaxed);
  out.sum = std::chrono::nanoseconds(times.nanoseconds.load(std::memory_order_relaxed));
  return out;
}

}  // namespace sluice
