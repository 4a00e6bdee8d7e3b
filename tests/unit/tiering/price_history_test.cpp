// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/price_history.hpp"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(PriceHistoryTest, KeepsTheLatestSamples) {
  PriceHistory history;
  const auto most = static_cast<std::int64_t>(PriceHistory::kMost);
  for (std::int64_t i = 0; i < most + 5; ++i) history.add({1000 * i, {static_cast<double>(i)}});
  const auto samples = history.samples();
  ASSERT_EQ(samples.size(), PriceHistory::kMost);
  EXPECT_EQ(samples.front().time, 5000);
  EXPECT_EQ(samples.back().time, 1000 * (most + 4));
  EXPECT_EQ(samples.back().prices, std::vector<double>{static_cast<double>(most + 4)});
}

TEST(PriceHistoryTest, ManyPlansInAMinuteAreFewSamples) {
  PriceHistory history;
  for (std::int64_t second = 0; second <= 600; ++second)
    history.add({second, {static_cast<double>(second)}});
  const auto samples = history.samples();
  EXPECT_GE(samples.size(), 9u);
  EXPECT_LE(samples.size(), 12u);
  EXPECT_EQ(samples.back().time, 600) << "the latest is always there";
}

}  // namespace
}  // namespace sluice
