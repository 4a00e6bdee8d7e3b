// SPDX-License-Identifier: BSD-2-Clause
// A clock that moves only when a test moves it. Thread-safe.
#pragma once

#include <atomic>

#include "base/clock.hpp"

namespace sluice::test {

class FakeClock final : public Clock {
 public:
  explicit FakeClock(std::int64_t seconds = 1'800'000'000) : start_(seconds) {}

  std::int64_t seconds() const override {
    return start_ + std::chrono::duration_cast<std::chrono::seconds>(passed()).count();
  }
  std::chrono::steady_clock::time_point monotonic() const override {
    return std::chrono::steady_clock::time_point(passed());
  }
  void advance(std::chrono::nanoseconds by) { passed_ += by.count(); }

 private:
  std::chrono::nanoseconds passed() const { return std::chrono::nanoseconds(passed_.load()); }

  const std::int64_t start_;
  std::atomic<std::int64_t> passed_{0};  // nanoseconds; atomic because the tested threads read it
};

}  // namespace sluice::test
