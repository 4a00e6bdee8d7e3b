// SPDX-License-Identifier: BSD-2-Clause
// The time that simulated disks take. A request waits for the part of a copy that its disk is busy
// with, then for its own reading. Requests do not wait for each other: traces are of opens, and how
// many requests a disk serves at once is not known. Threads: caller locks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tiering/choose/tier_speed.hpp"

namespace sluice::tools::lab {

class Disks {
 public:
  explicit Disks(std::vector<TierSpeed> speeds)
      : speeds_(std::move(speeds)), busy_until_(speeds_.size(), 0) {}

  // Seconds that a request at `now` for a file on `tier` takes.
  double serve(std::size_t tier, std::uint64_t bytes, double now) const {
    // Copies are made in parts and give way to requests between them, as the mover's do.
    constexpr std::uint64_t kPart = 8 << 20;
    const double wait = std::clamp(busy_until_[tier] - now, 0.0, speeds_[tier].seconds_for(kPart));
    return wait + speeds_[tier].seconds_for(bytes);
  }

  // Copies a file, which keeps the slower disk busy. Copies of one disk wait for each other.
  // Returns when it ends.
  double copy(std::size_t from, std::size_t to, std::uint64_t bytes, double now) {
    const std::size_t slower = std::max(from, to);
    const double start = std::max(now, busy_until_[slower]);
    return busy_until_[slower] =
               start + std::max(speeds_[from].seconds_for(bytes), speeds_[to].seconds_for(bytes));
  }

 private:
  std::vector<TierSpeed> speeds_;
  std::vector<double> busy_until_;  // with copies
};

}  // namespace sluice::tools::lab
