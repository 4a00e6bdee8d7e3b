// SPDX-License-Identifier: BSD-2-Clause
// Polls for a condition in another process or thread. Thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace sluice::test {

// Returns true as soon as `condition()` is true, or false after `limit`, which should be far more
// than a busy machine needs.
template <typename Condition>
bool eventually(Condition condition, std::chrono::milliseconds limit = std::chrono::seconds(60)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (std::chrono::microseconds pause(100);;
       pause = std::min<std::chrono::microseconds>(pause * 2, std::chrono::milliseconds(20))) {
    if (condition()) return true;
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace sluice::test
