// SPDX-License-Identifier: BSD-2-Clause
#include "metadata/decay.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace sluice {
namespace {

using std::chrono::seconds;

constexpr seconds kNever{0};
constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();

// Heat like that of real files, sometimes of very old ones.
Heat random_heat(std::mt19937_64& random) {
  return {.score = static_cast<double>(random() % 1'000'000) / 1000,
          .last_access = static_cast<std::int64_t>(random() % 100'000),
          .opens = random() % 1000,
          .gpu_bytes = random() >> (random() % 64),
          .recent = static_cast<double>(random() % 1'000'000) / 1000,
          .since = static_cast<std::int64_t>(random() % 100'000)};
}

void expect_same(const Heat& a, const Heat& b) {
  EXPECT_NEAR(a.score, b.score, 1e-12 * (a.score + b.score));
  EXPECT_EQ(a.last_access, b.last_access);
  EXPECT_EQ(a.opens, b.opens);
  EXPECT_EQ(a.gpu_bytes, b.gpu_bytes);
  EXPECT_NEAR(a.recent, b.recent, 1e-12 * (a.recent + b.recent));
  EXPECT_EQ(a.since, b.since);
}

TEST(DecayTest, AScoreHalvesEveryHalfLife) {
  EXPECT_DOUBLE_EQ(decayed(8, 100, 110, seconds(10)), 4);
  EXPECT_DOUBLE_EQ(decayed(8, 100, 130, seconds(10)), 1);
}

TEST(DecayTest, AScoreNeverGrowsWhenTheClockIsSetBack) {
  EXPECT_DOUBLE_EQ(decayed(8, 100, 50, seconds(10)), 8);
}

TEST(DecayTest, WithoutAHalfLifeScoresArePlainCounts) {
  EXPECT_DOUBLE_EQ(decayed(8, 0, 1'000'000'000, kNever), 8);
  EXPECT_DOUBLE_EQ(sum({.score = 1}, {.score = 2, .last_access = 999}, kNever).score, 3);
}

TEST(DecayTest, TimesAsFarApartAsPossibleDoNotOverflow) {
  constexpr auto kFirst = std::numeric_limits<std::int64_t>::min();
  constexpr auto kLast = std::numeric_limits<std::int64_t>::max();
  EXPECT_DOUBLE_EQ(decayed(8, kFirst, kLast, seconds(10)), 0);
}

TEST(DecayTest, TheSumIsAsOfTheLaterAccess) {
  const Heat total = sum({.score = 8, .last_access = 100, .opens = 3, .gpu_bytes = 5},
                         {.score = 1, .last_access = 110, .opens = 1, .gpu_bytes = 7}, seconds(10));
  EXPECT_EQ(total, (Heat{.score = 5, .last_access = 110, .opens = 4, .gpu_bytes = 12}));
}

TEST(DecayTest, TheRecentCountHalvesEveryDayAndTheFirstAccessStaysTheFirst) {
  const Heat total = sum({.last_access = 1000, .opens = 4, .recent = 4, .since = 900},
                         {.last_access = 87'400, .opens = 1, .recent = 1, .since = 87'400}, kNever);
  EXPECT_DOUBLE_EQ(total.recent, 3);
  EXPECT_EQ(total.since, 900);
}

TEST(DecayTest, AFileThatWasNeverAccessedHasNoFirstAccess) {
  EXPECT_EQ(sum({}, {.opens = 1, .since = 900}, kNever).since, 900);
  EXPECT_EQ(sum({.opens = 1, .since = 900}, {}, kNever).since, 900);
}

TEST(DecayTest, TheSumDoesNotDependOnGroupingOrOrder) {
  std::mt19937_64 random(3);
  for (const seconds half_life : {kNever, seconds(1), seconds(3600), seconds(604'800)}) {
    for (int round = 0; round < 10'000; ++round) {
      const Heat a = random_heat(random);
      const Heat b = random_heat(random);
      const Heat c = random_heat(random);
      expect_same(sum(sum(a, b, half_life), c, half_life), sum(a, sum(b, c, half_life), half_life));
      expect_same(sum(a, b, half_life), sum(b, a, half_life));
      expect_same(sum(a, Heat{}, half_life), a);
    }
  }
}

TEST(DecayTest, CountsAndScoresSaturate) {
  const Heat most{.score = std::numeric_limits<double>::max(), .opens = kMost, .gpu_bytes = kMost};
  EXPECT_EQ(sum(most, most, kNever), most);
  EXPECT_TRUE(is_storable(sum(most, most, kNever)));
}

}  // namespace
}  // namespace sluice
