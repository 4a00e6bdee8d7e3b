// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/move_rate.hpp"

#include <gtest/gtest.h>

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr MoveRate::Time kStart{seconds(1000)};

TEST(MoveRateTest, NothingIsKnownBeforeSomethingWasMoved) {
  MoveRate rate;
  EXPECT_EQ(rate.time_for(kStart, 1, kMiB), std::nullopt);
  rate.begin(kStart);
  EXPECT_EQ(rate.time_for(kStart + seconds(5), 1, kMiB), std::nullopt);
  rate.add(kStart + milliseconds(10), 0, kMiB);
  EXPECT_EQ(rate.time_for(kStart + milliseconds(20), 1, kMiB), std::nullopt) << "too early to tell";
  EXPECT_EQ(rate.time_for(kStart, 0, 0), seconds(0));
}

TEST(MoveRateTest, LargeFilesTakeAsLongAsTheirBytes) {
  MoveRate rate;
  rate.begin(kStart);
  for (int i = 1; i <= 10; ++i) rate.add(kStart + seconds(i), 0, 100 * kMiB);
  EXPECT_EQ(rate.time_for(kStart + seconds(10), 0, 1000 * kMiB), seconds(10));
}

TEST(MoveRateTest, SmallFilesTakeTimeForThemselves) {
  MoveRate rate;
  rate.begin(kStart);
  for (int i = 1; i <= 10; ++i) rate.add(kStart + seconds(i), 100, 100);
  const auto left = rate.time_for(kStart + seconds(10), 1000, 1000);
  ASSERT_TRUE(left);
  EXPECT_EQ(*left, seconds(10)) << "not the time for a kilobyte";
}

TEST(MoveRateTest, ARestDoesNotCount) {
  MoveRate rate;
  rate.begin(kStart);
  for (int i = 1; i <= 10; ++i) rate.add(kStart + seconds(i), 0, kMiB);
  const auto later = kStart + seconds(1000);
  rate.begin(later);
  for (int i = 1; i <= 10; ++i) rate.add(later + seconds(i), 0, 10 * kMiB);
  EXPECT_EQ(rate.time_for(later + seconds(10), 0, 100 * kMiB), seconds(10));
}

TEST(MoveRateTest, OnlyTheLastMinuteCounts) {
  MoveRate rate;
  rate.begin(kStart);
  for (int i = 1; i <= 600; ++i) rate.add(kStart + seconds(i), 0, 100 * kMiB);
  for (int i = 601; i <= 700; ++i) rate.add(kStart + seconds(i), 0, kMiB);
  const auto left = rate.time_for(kStart + seconds(700), 0, 60 * kMiB);
  ASSERT_TRUE(left);
  EXPECT_GE(*left, seconds(58));
  EXPECT_LE(*left, seconds(61));
}

}  // namespace
}  // namespace sluice
