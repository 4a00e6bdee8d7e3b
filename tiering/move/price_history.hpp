// SPDX-License-Identifier: BSD-2-Clause
// The prices of the tiers in the last plans, for people who want to see whether a tier is too
// small: the price of a tier rises when more files want to be there. It lives as long as the
// daemon. Threads: thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/mutex.hpp"

namespace sluice {

class PriceHistory {
 public:
  static constexpr std::size_t kMost = 1000;  // ten days of passes every 15 minutes

  struct Sample {
    std::int64_t time = 0;       // seconds since the epoch
    std::vector<double> prices;  // by tier, per byte and second; see Market
  };

  // A sample soon after the one before replaces it: users may ask for many plans.
  void add(Sample sample);
  std::vector<Sample> samples() const;  // oldest first

 private:
  mutable Mutex mutex_;
  std::deque<Sample> samples_ GUARDED_BY(mutex_);
};

}  // namespace sluice
