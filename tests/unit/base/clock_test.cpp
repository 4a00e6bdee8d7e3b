// SPDX-License-Identifier: BSD-2-Clause
#include "base/clock.hpp"

#include <gtest/gtest.h>

#include <ctime>

#include "tests/support/fake_clock.hpp"

namespace sluice {
namespace {

TEST(ClockTest, TheRealClockHasTheTimeOfTheMachine) {
  const std::int64_t before = std::time(nullptr);
  const auto begun = std::chrono::steady_clock::now();
  const std::int64_t seconds = real_clock().seconds();
  const auto monotonic = real_clock().monotonic();
  EXPECT_GE(seconds, before);
  EXPECT_LE(seconds, std::time(nullptr));
  EXPECT_GE(monotonic, begun);
  EXPECT_LE(monotonic, std::chrono::steady_clock::now());
}

TEST(ClockTest, AFakeClockMovesOnlyOnCommand) {
  test::FakeClock clock(1000);
  const auto begun = clock.monotonic();
  EXPECT_EQ(clock.seconds(), 1000);
  clock.advance(std::chrono::milliseconds(2500));
  EXPECT_EQ(clock.seconds(), 1002);
  EXPECT_EQ(clock.monotonic() - begun, std::chrono::milliseconds(2500));
}

}  // namespace
}  // namespace sluice
