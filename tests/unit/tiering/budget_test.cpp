// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/choose/budget.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/support/seed.hpp"

namespace sluice {
namespace {

using Victims = std::vector<std::uint32_t>;

constexpr double kToday = 1'800'000'000;

TEST(BudgetTest, IsStoredWithTheUserWhoSetIt) {
  const Budget budget{200ULL << 30, 1000};
  EXPECT_EQ(encode_budget(budget), "214748364800 1000");
  EXPECT_EQ(decode_budget(encode_budget(budget)), budget);
}

TEST(BudgetTest, RefusesWhatItDidNotWrite) {
  for (const char* text :
       {"", " ", "5", "5 ", " 5", "5 x", "x 5", "5 5 ", "5  5", "-1 0", "99999999999999999999 0"}) {
    EXPECT_FALSE(decode_budget(text)) << text;
  }
}

TEST(ChooseVictimsTest, LongestUnusedGoesFirst) {
  const std::vector<Expendable> files{
      {10, 1, kToday - 100, 0}, {10, 1, kToday - 300, 0}, {10, 1, kToday - 200, 0}};
  EXPECT_EQ(choose_victims(files, 11, kToday), (Victims{1, 2}));
}

TEST(ChooseVictimsTest, OftenUsedStaysLonger) {
  const std::vector<Expendable> files{{10, 8, kToday - 110, 0}, {10, 1, kToday - 100, 0}};
  EXPECT_EQ(choose_victims(files, 1, kToday), (Victims{1}));
}

TEST(ChooseVictimsTest, LargeGoesBeforeSmallOfEqualUse) {
  const std::vector<Expendable> files{{10, 1, kToday - 100, 0}, {1000, 1, kToday - 100, 0}};
  EXPECT_EQ(choose_victims(files, 1, kToday), (Victims{1}));
}

TEST(ChooseVictimsTest, AmongEqualsTheOldestGenerationGoesFirst) {
  const std::vector<Expendable> files{{10, 1, kToday - 50, kToday - 70},
                                      {10, 1, kToday - 50, kToday - 90},
                                      {10, 1, kToday - 50, kToday - 80}};
  EXPECT_EQ(choose_victims(files, 30, kToday), (Victims{1, 2, 0}));
}

TEST(ChooseVictimsTest, NothingGoesWithoutNeed) {
  const std::vector<Expendable> files{{10, 1, 0, 0}};
  EXPECT_TRUE(choose_victims(files, 0, kToday).empty());
  EXPECT_TRUE(choose_victims({}, 10, kToday).empty());
}

TEST(ChooseVictimsTest, FilesThatFreeNothingStay) {
  const std::vector<Expendable> files{{0, 1, 0, 0}, {5, 1, kToday, kToday}};
  EXPECT_EQ(choose_victims(files, 100, kToday), (Victims{1}));
}

TEST(ChooseVictimsTest, AmongEqualsTheIdDecides) {
  const std::vector<Expendable> files{{5, 1, 9, 9, 3}, {5, 1, 9, 9, 1}, {5, 1, 9, 9, 2}};
  EXPECT_EQ(choose_victims(files, 15, kToday), (Victims{1, 2, 0}));
}

// Compared with a model that sorts: random trees with ties, times in the future and huge counts.
TEST(ChooseVictimsTest, IsTheShortestBeginningOfTheOrderThatFreesEnough) {
  std::mt19937_64 random(test::test_seed());
  const auto whole = [&](std::uint64_t most) { return random() % (most + 1); };
  for (int round = 0; round < test::samples(300, 5000); ++round) {
    std::vector<Expendable> files(whole(60));
    for (Expendable& file : files) {
      file.bytes = whole(3) * (1ULL << whole(40));
      file.uses = static_cast<double>(whole(5));
      file.last_use = kToday + 10 - static_cast<double>(whole(4) * whole(100));
      file.written = kToday - static_cast<double>(whole(5));
    }
    const std::uint64_t all =
        std::accumulate(files.begin(), files.end(), std::uint64_t{0},
                        [](std::uint64_t sum, const Expendable& file) { return sum + file.bytes; });
    const std::uint64_t wanted = whole(all + all / 4);
    std::vector<std::uint32_t> order;
    for (std::uint32_t i = 0; i < files.size(); ++i) {
      if (files[i].bytes > 0) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      const double x = value_of(files[a], kToday), y = value_of(files[b], kToday);
      return x != y ? x < y : files[a].written < files[b].written;
    });
    std::uint64_t freed = 0;
    std::size_t count = 0;
    while (count < order.size() && freed < wanted) freed += files[order[count++]].bytes;
    order.resize(count);
    ASSERT_EQ(choose_victims(files, wanted, kToday), order) << "round " << round;
  }
}

class WhyKeptTest : public testing::Test {
 protected:
  static constexpr std::int64_t kNow = 1'000'000;
  static constexpr uid_t kSetter = 7, kOther = 8;

  // A file that anybody's budget may delete.
  static DeletionFacts file() {
    DeletionFacts out;
    out.names = out.links = 1;
    out.owner = kSetter;
    out.directory_owners = {kSetter};
    out.written = kNow - 60;
    return out;
  }
  static std::optional<Kept> why(const DeletionFacts& file, uid_t setter = kSetter) {
    return why_kept(file, Budget{1, setter}, kNow, std::chrono::seconds(60));
  }
};

TEST_F(WhyKeptTest, NothingKeepsAFileThatRestedAndNobodyUses) {
  EXPECT_EQ(why(file()), std::nullopt);
}

TEST_F(WhyKeptTest, EachProtectionKeepsIt) {
  auto pinned = file(), linked = file(), used = file(), moving = file(), fresh = file();
  pinned.has_pin = true;
  linked.links = 2;
  used.is_in_use = true;
  moving.is_moving = true;
  fresh.written = kNow - 59;
  EXPECT_EQ(why(pinned), Kept::Pinned);
  EXPECT_EQ(why(linked), Kept::LinkedOutside);
  EXPECT_EQ(why(used), Kept::InUse);
  EXPECT_EQ(why(moving), Kept::Moving);
  EXPECT_EQ(why(fresh), Kept::Fresh);
  fresh.written = kNow + 1;  // says nothing
  EXPECT_EQ(why(fresh), std::nullopt);
}

TEST_F(WhyKeptTest, AFileOfOthersInADirectoryOfOthersStaysUnlessRootSetsTheBudget) {
  auto own_in_others = file(), others_in_own = file(), others = file();
  own_in_others.directory_owners = {kOther};
  others_in_own.owner = kOther;
  others.owner = kOther;
  others.names = others.links = 2;
  others.directory_owners = {kSetter, kOther};  // one of its names could not be removed
  EXPECT_EQ(why(own_in_others), std::nullopt);
  EXPECT_EQ(why(others_in_own), std::nullopt);
  EXPECT_EQ(why(others), Kept::OfOthers);
  EXPECT_EQ(why(others, 0), std::nullopt);
}

TEST_F(WhyKeptTest, AReasonThatLastsComesBeforeOneThatDoesNot) {
  auto both = file();
  both.is_in_use = true;
  EXPECT_TRUE(is_for_now(*why(both)));
  both.has_pin = true;
  EXPECT_FALSE(is_for_now(*why(both)));
}

}  // namespace
}  // namespace sluice
