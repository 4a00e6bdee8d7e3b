// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/price_history.hpp"

#include <utility>

namespace sluice {

void PriceHistory::add(Sample sample) {
  constexpr std::int64_t kApart = 60;  // seconds
  const MutexLock lock(mutex_);
  // Compared with the one before the last: otherwise a plan every 59 s would never add one.
  const bool replaces = samples_.size() >= 2 &&
                        sample.time - samples_[samples_.size() - 2].time < kApart &&
                        sample.time >= samples_.back().time;
  if (replaces) samples_.pop_back();
  samples_.push_back(std::move(sample));
  if (samples_.size() > kMost) samples_.pop_front();
}

std::vector<PriceHistory::Sample> PriceHistory::samples() const {
  const MutexLock lock(mutex_);
  return {samples_.begin(), samples_.end()};
}

}  // namespace sluice
