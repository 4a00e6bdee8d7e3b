// SPDX-License-Identifier: BSD-2-Clause
// The source of time. Classes whose decisions depend on the time take a Clock, so that tests can
// set it (tests/support/fake_clock.hpp). Sleeping and waiting always use real time.
//
// Threads: thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

namespace sluice {

class Clock {
 public:
  virtual ~Clock() = default;

  // The time of day in seconds since the epoch, for records and for display. It may jump.
  virtual std::int64_t seconds() const = 0;
  // For durations. It never goes back.
  virtual std::chrono::steady_clock::time_point monotonic() const = 0;
};

// The clock of the machine. It exists until the process ends.
const Clock& real_clock();

}  // namespace sluice
