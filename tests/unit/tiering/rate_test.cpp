// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/choose/rate.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/tiering/plans.hpp"

namespace sluice {
namespace {

using test::kDay;
using test::kHour;
using test::kNow;

constexpr std::chrono::seconds kWeek = std::chrono::hours(7 * 24);
constexpr double kPerDay = 86'400;

// The decayed count of accesses at a constant rate, the first of them at the beginning.
double count_of(double per_day, std::int64_t time, std::int64_t half_life) {
  double count = 0;
  for (double ago = static_cast<double>(time); ago >= 0; ago -= kPerDay / per_day)
    count += std::exp2(-ago / static_cast<double>(half_life));
  return count;
}

FileFacts used(double per_day, std::int64_t time) {
  FileFacts file;
  file.bytes = 1 << 20;
  file.opens = static_cast<std::uint32_t>(per_day * static_cast<double>(time) / kPerDay) + 1;
  file.since = kNow - time;
  file.score = static_cast<float>(count_of(per_day, time, kWeek.count()));
  file.recent = static_cast<float>(count_of(per_day, time, kDay));
  return file;
}

double per_day(const RateModel& model, const FileFacts& file) {
  return model.rate_of(file, kNow) * kPerDay;
}

class RateModelTest : public testing::Test {
 protected:
  // A pool in which files are used once a day, or a hundred times.
  RateModelTest() {
    for (int i = 0; i < 1000; ++i) files_.push_back(used(i % 50 == 0 ? 100 : 1, 30 * kDay));
    model_ = RateModel(files_, kWeek, kNow);
  }
  std::vector<FileFacts> files_;
  RateModel model_;
};

TEST_F(RateModelTest, AFileSeenForDaysComparesFairlyWithOneSeenForAMonth) {
  for (const std::int64_t time : {3 * kDay, 10 * kDay, 30 * kDay})
    EXPECT_NEAR(per_day(model_, used(20, time)), 20, 4) << time;
}

TEST(RateModelBeforeAnythingIsLearned, GivesANumberForAFileJustCreated) {
  FileFacts file;
  file.bytes = 1000;
  file.opens = 2;
  file.score = 2;
  file.recent = 2;
  file.since = 1'000'000;
  const double rate = RateModel().rate_of(file, file.since);
  EXPECT_TRUE(std::isfinite(rate)) << rate;
  EXPECT_LT(rate * 86'400, 0.1) << "nothing is known yet";
}

TEST_F(RateModelTest, OneAccessAMinuteAgoIsNotManyADay) {
  FileFacts file = used(1, 0);
  file.since = kNow - 60;
  EXPECT_LT(per_day(model_, file), 10);
}

TEST_F(RateModelTest, AFileThatBecameBusyIsSeenWithinHours) {
  FileFacts file = used(1, 30 * kDay);
  file.score += 30;
  file.recent += 30;
  EXPECT_GT(per_day(model_, file), 10);
}

TEST_F(RateModelTest, AFileThatFellSilentIsSeenWithinDays) {
  FileFacts file = used(100, 30 * kDay);
  file.score *= static_cast<float>(std::exp2(-4.0 / 7));
  file.recent *= static_cast<float>(std::exp2(-4.0));
  EXPECT_LT(per_day(model_, file), 30);
}

TEST_F(RateModelTest, WithoutAHalfLifeCountsAreDividedByTheirTime) {
  FileFacts file = used(10, 30 * kDay);
  file.score = 301;
  EXPECT_NEAR(per_day(RateModel(files_, std::chrono::seconds(0), kNow), file), 10, 2);
}

TEST(RateTest, AnEmptyPoolAndStrangeCountsGiveFiniteRates) {
  const RateModel empty({}, kWeek, kNow);
  for (const float count : {0.0F, -1.0F, NAN, INFINITY}) {
    FileFacts file = used(1, kHour);
    file.score = file.recent = count;
    const double rate = empty.rate_of(file, kNow);
    EXPECT_TRUE(std::isfinite(rate) && rate >= 0) << count;
  }
}

}  // namespace
}  // namespace sluice
