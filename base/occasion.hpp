// SPDX-License-Identifier: BSD-2-Clause
// Occasion lets one caller through now and then, for what must not be done each time. Threads:
// thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace sluice {

class Occasion {
 public:
  explicit Occasion(std::chrono::nanoseconds pause) : pause_(pause.count()) {}

  // Whether this caller is the first one since the pause after the last one ended.
  bool take() {
    const std::int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
    std::int64_t before = last_.load();
    if (before != 0 && now - before < pause_) return false;
    return last_.compare_exchange_strong(before, now);
  }

 private:
  const std::int64_t pause_;           // nanoseconds, as below
  std::atomic<std::int64_t> last_{0};  // when it last let a caller through; 0: never
};

}  // namespace sluice
