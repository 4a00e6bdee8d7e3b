// SPDX-License-Identifier: BSD-2-Clause
#include "base/occasion.hpp"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(OccasionTest, LetsTheFirstCallerThroughAndNoOtherOneInThePause) {
  Occasion occasion{std::chrono::hours(1)};
  EXPECT_TRUE(occasion.take());
  EXPECT_FALSE(occasion.take());
}

TEST(OccasionTest, LetsAnotherOneThroughAfterThePause) {
  Occasion occasion{std::chrono::nanoseconds(0)};
  EXPECT_TRUE(occasion.take());
  EXPECT_TRUE(occasion.take());
}

}  // namespace
}  // namespace sluice
