// SPDX-License-Identifier: BSD-2-Clause
// What time it is. Classes whose decisions depend on the time take a Clock, so that tests can set
// it (tests/support/fake_clock.hpp). Sleeping and waiting stay with the machine's own time.
//
// Threads: thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

namespace sluice {

class Clock {
 public:
  virtual ~Clock() = default;

  // The time of day in seconds since the epoch, for records and for people. It may jump.
  virtual std::int64_t seconds() const = 0;
  // For durations. It never goes back.
  virtual std::chrono::steady_clock::time_point monotonic() const = 0;
};

// The machine's. It exists as long as the process.
const Clock& real_clock();

}  // namespace sluice
