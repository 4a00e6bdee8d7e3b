// SPDX-License-Identifier: BSD-2-Clause
// A DecayingCount is a sum in which old amounts count less: each half as much after every
// half-life. Threads: caller locks.
#pragma once

#include <chrono>
#include <cmath>

namespace sluice {

class DecayingCount {
 public:
  using Clock = std::chrono::steady_clock;

  void add(double amount, Clock::time_point now, std::chrono::nanoseconds half_life) {
    sum_ = at(now, half_life) + amount;
    since_ = now;
  }
  double at(Clock::time_point now, std::chrono::nanoseconds half_life) const {
    using Seconds = std::chrono::duration<double>;
    return sum_ * std::exp2(-(Seconds(now - since_) / Seconds(half_life)));
  }

 private:
  double sum_ = 0;
  Clock::time_point since_ = {};
};

}  // namespace sluice
