// SPDX-License-Identifier: BSD-2-Clause
// MoveRate estimates how long the moves that are left will take, from what was moved in the last
// minute. A file costs time for its bytes and for itself: thousands of small files take long and
// have few bytes. Threads: caller locks.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>

namespace sluice {

class MoveRate {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Work begins, or goes on. After a long rest, earlier work does not count.
  void begin(Time now);
  void add(Time now, std::uint64_t files, std::uint64_t bytes);
  // How long `files` files with together `bytes` bytes will take; nothing while it is unknown.
  std::optional<std::chrono::seconds> time_for(Time now, std::uint64_t files,
                                               std::uint64_t bytes) const;

 private:
  struct Slice {
    Time begin;
    double work = 0;
  };
  Time begun_{};  // when the work began that slices_ are about
  Time last_{};   // when something was added last
  std::deque<Slice> slices_;
};

}  // namespace sluice
