// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/progress.hpp"

#include <gtest/gtest.h>

namespace sluice::tools {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = 1 << 20;
const RateMeter::Time kStart{};

TEST(RateMeterTest, HasNoRateAtFirst) {
  RateMeter meter;
  EXPECT_EQ(meter.rate(), 0);
  EXPECT_EQ(meter.time_to(100), std::nullopt);
  meter.add(kStart, 0);
  EXPECT_EQ(meter.rate(), 0);
}

TEST(RateMeterTest, ForgetsOldRates) {
  RateMeter meter;
  for (int second = 0; second <= 60; ++second) meter.add(kStart + second * 1s, second * 1000u);
  EXPECT_DOUBLE_EQ(meter.rate(), 1000);
  for (int second = 61; second <= 90; ++second) {
    meter.add(kStart + second * 1s, 60000 + (second - 60) * 10u);
  }
  EXPECT_DOUBLE_EQ(meter.rate(), 10);
  EXPECT_EQ(meter.time_to(60300 + 105), 11s);
}

TEST(RateMeterTest, StartsAgainAfterALowerCount) {
  RateMeter meter;
  meter.add(kStart, 1000);
  meter.add(kStart + 1s, 5);
  EXPECT_EQ(meter.rate(), 0);
}

TEST(TransferTextTest, ShowsShareRateAndTimeLeft) {
  RateMeter meter;
  meter.add(kStart, 0);
  meter.add(kStart + 10s, 1000 * kMiB);
  EXPECT_EQ(transfer_text(1000 * kMiB, 2000 * kMiB, 3, 7, meter, true),
            "[########........]  50%  100.0 MiB/s, 10 s left, 1000.0 MiB of 2.0 GiB, 3 of 7 files");
  EXPECT_EQ(transfer_text(0, 0, 1, 4, RateMeter(), false), "25%  0 B of 0 B, 1 of 4 files");
  EXPECT_EQ(transfer_text(0, 0, 0, 0, RateMeter(), false), "0%  0 B of 0 B, 0 of 0 files");
}

}  // namespace
}  // namespace sluice::tools
