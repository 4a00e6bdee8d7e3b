// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/choose/planner.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/tiering/planner_stage.hpp"

namespace sluice {

namespace {

using test::by_file;
using test::file_on;
using test::kGiB;
using test::kHdd;
using test::kMiB;
using test::kNow;
using test::kNvme;
using test::kSsd;
using test::Moves;

class PlannerTest : public test::PlannerStage {};

TEST_F(PlannerTest, WithoutFilesOrTiersThereIsNothingToDo) {
  EXPECT_TRUE(world_.plan().moves.empty());
  EXPECT_EQ(world_.plan().used_after, (std::vector<std::uint64_t>{0, 0, 0}));
  world_.tiers.clear();
  EXPECT_TRUE(world_.plan().used_after.empty());
}

TEST_F(PlannerTest, FilesOnTheRightTierStay) {
  world_.add(50, kNvme, 150);
  world_.add(50, kSsd, 50);
  world_.add(50, kHdd, 1);
  EXPECT_TRUE(world_.plan().moves.empty());
}

TEST_F(PlannerTest, HotFilesGoUpAndColdOnesDown) {
  const auto hot = world_.add(kHdd, 120), warm = world_.add(kHdd, 20), cold = world_.add(kNvme, 1);
  EXPECT_EQ(
      world_.plan().moves,
      (Moves{{cold, kHdd, Reason::Cold}, {hot, kNvme, Reason::Hot}, {warm, kSsd, Reason::Hot}}));
}

TEST_F(PlannerTest, ReportsTheUsedSpaceAfterwards) {
  world_.add(kHdd, 120);
  world_.add(kNvme, 20);
  world_.add_foreign(kSsd, 5 * kGiB);
  EXPECT_EQ(world_.plan().used_after, (std::vector<std::uint64_t>{kGiB, 6 * kGiB, 0}));
}

TEST_F(PlannerTest, UsedSpaceBelowTheSumOfFilesDoesNotUnderflow) {
  world_.add(kHdd, 120);
  world_.tiers[kHdd].used = 10;
  EXPECT_EQ(world_.plan().used_after[kHdd], 0U);
}

TEST_F(PlannerTest, APromotionStopsAtTheHighWatermark) {
  world_.add_foreign(kNvme, 88 * kGiB);
  world_.add(5, kSsd, 120);
  const Plan plan = world_.plan();
  EXPECT_EQ(plan.moves.size(), 2U);
  EXPECT_EQ(plan.used_after[kNvme], 90 * kGiB);
  EXPECT_EQ(plan.blocked_by(Blocker::NoRoom), 3U);
}

TEST_F(PlannerTest, TheHighestRankedFilesArePromotedFirst) {
  world_.add_foreign(kNvme, 88 * kGiB);
  world_.add(5, kSsd, 120);
  const auto hottest = world_.add(kSsd, 300), hotter = world_.add(kSsd, 200);
  EXPECT_EQ(world_.plan().moves,
            (Moves{{hottest, kNvme, Reason::Hot}, {hotter, kNvme, Reason::Hot}}));
}

TEST_F(PlannerTest, TheSmallerOfTwoFilesWithEqualScoreIsPromotedFirst) {
  world_.add_foreign(kNvme, 90 * kGiB - kMiB);
  world_.add(kSsd, 120);
  FileFacts file = file_on(kSsd, 120);
  file.bytes = kMiB;
  const auto small = world_.add(file);
  EXPECT_EQ(world_.plan().moves, (Moves{{small, kNvme, Reason::Hot}}));
}

TEST_F(PlannerTest, TheMostRecentlyUsedOfEqualRankIsPromotedFirst) {
  world_.add_foreign(kNvme, 89 * kGiB);
  world_.add(kSsd, 120);
  FileFacts file = file_on(kSsd, 120);
  file.last_use += 1;
  const auto last = world_.add(file);
  EXPECT_EQ(world_.plan().moves, (Moves{{last, kNvme, Reason::Hot}}));
}

TEST_F(PlannerTest, AHotFileThatFindsNoRoomTriesTheNextTier) {
  world_.add_foreign(kNvme, 90 * kGiB);
  const auto hot = world_.add(kHdd, 120);
  EXPECT_EQ(world_.plan().moves, (Moves{{hot, kSsd, Reason::Hot}}));
}

TEST_F(PlannerTest, AReturningGhostHasItsOwnReason) {
  FileFacts file = file_on(kSsd, 60);
  file.ghost_of = kNvme;
  const auto ghost = world_.add(file);
  EXPECT_EQ(world_.plan().moves, (Moves{{ghost, kNvme, Reason::Returning}}));
}

TEST_F(PlannerTest, EveryEligibleFileEntersBelowTheLowWatermark) {
  world_.add(79, kNvme, 500);
  const auto hot = world_.add(kSsd, 100);
  EXPECT_EQ(world_.plan().moves, (Moves{{hot, kNvme, Reason::Hot}}));
}

TEST_F(PlannerTest, BetweenTheWatermarksOnlyClearlyHigherRanksEnter) {
  world_.add(80, kNvme, 500);
  world_.add(kSsd, 749);
  const auto hot = world_.add(kSsd, 751);
  EXPECT_EQ(world_.plan().moves, (Moves{{hot, kNvme, Reason::Hot}}));
}

TEST_F(PlannerTest, ANewcomerReplacesTheLowestRankedFiles) {
  world_.add(88, kNvme, 150);
  const auto lowest = world_.add(kNvme, 100);
  world_.add(kNvme, 110);
  const auto hot = world_.add(kSsd, 160);
  EXPECT_EQ(world_.plan().moves,
            (Moves{{lowest, kSsd, Reason::Outranked}, {hot, kNvme, Reason::Hot}}));
}

TEST_F(PlannerTest, ANewcomerDoesNotReplaceFilesOfSimilarRank) {
  world_.add(90, kNvme, 110);
  world_.add(kSsd, 160);
  const Plan plan = world_.plan();
  EXPECT_TRUE(plan.moves.empty());
  EXPECT_EQ(plan.blocked_by(Blocker::NoRoom), 1U);
}

TEST_F(PlannerTest, NothingIsReplacedIfThatWouldNotBeEnough) {
  world_.add(88, kNvme, 150);
  world_.add(2, kNvme, 60);
  FileFacts file = file_on(kHdd, 160);
  file.bytes = 3 * kGiB;
  const auto large = world_.add(file);
  EXPECT_EQ(world_.plan().moves, (Moves{{large, kSsd, Reason::Hot}}));
}

TEST_F(PlannerTest, ALargeNewcomerReplacesSeveral) {
  world_.add(87, kNvme, 150);
  world_.add(3, kNvme, 60);
  FileFacts file = file_on(kHdd, 160);
  file.bytes = 3 * kGiB;
  const auto large = world_.add(file);
  const Plan plan = world_.plan();
  ASSERT_EQ(plan.moves.size(), 4U);
  EXPECT_EQ(plan.moves.back(), (PlannedMove{large, kNvme, Reason::Hot}));
  EXPECT_EQ(plan.used_after[kNvme], 90 * kGiB);
}

TEST_F(PlannerTest, NewPinnedAndRuledFilesAreNotReplaced) {
  world_.add(87, kNvme, 200);
  world_.add(new_file_on(kNvme, 1));
  world_.add(pinned(file_on(kNvme, 1), kNvme));
  world_.add(ruled(file_on(kNvme, 1), kNvme));
  world_.add(kSsd, 290);
  EXPECT_TRUE(world_.plan().moves.empty());
}

TEST_F(PlannerTest, AReplacedFileReplacesLowerRankedFilesInTurn) {
  world_.add(90, kNvme, 100);
  world_.add(89, kSsd, 80);
  const auto lowest = world_.add(kSsd, 10);
  const auto hot = world_.add(kHdd, 160);
  const Plan plan = world_.plan();
  ASSERT_EQ(plan.moves.size(), 3U);
  EXPECT_EQ(plan.moves[0], (PlannedMove{lowest, kHdd, Reason::Outranked}));
  EXPECT_EQ(plan.moves[1].to, kSsd);
  EXPECT_EQ(plan.moves[1].reason, Reason::Outranked);
  EXPECT_EQ(plan.moves[2], (PlannedMove{hot, kNvme, Reason::Hot}));
}

TEST_F(PlannerTest, TheExampleInTheDocumentationHolds) {
  const auto add = [&](TierIndex tier, std::uint64_t bytes, float score) {
    FileFacts file = file_on(tier, score);
    file.bytes = bytes;
    return world_.add(file);
  };
  const auto train = add(kHdd, kGiB, 180), old = add(kNvme, kGiB, 70);
  add(kNvme, 64 << 10, 55);
  add(kHdd, 4 * kGiB, 1);
  const auto notes = add(kSsd, 4 << 10, 3);
  add(kSsd, 2 * kGiB, 104);
  world_.add(88, kNvme, 150);
  world_.add_foreign(kNvme, kGiB - (64 << 10));
  EXPECT_EQ(world_.plan().moves, (Moves{{notes, kHdd, Reason::Cold},
                                        {old, kSsd, Reason::Outranked},
                                        {train, kNvme, Reason::Hot}}));
}

TEST_F(PlannerTest, ColdFilesMakeRoomForHotOnesInTheSamePlan) {
  world_.add(89, kNvme, 200);
  const auto cold = world_.add(kNvme, 1), hot = world_.add(kHdd, 310);
  world_.tiers[kNvme].low_watermark = 90;
  EXPECT_EQ(world_.plan().moves, (Moves{{cold, kHdd, Reason::Cold}, {hot, kNvme, Reason::Hot}}));
}

TEST_F(PlannerTest, AboveTheHighWatermarkATierEvictsDownToTheLowWatermark) {
  world_.add(80, kNvme, 200);
  world_.add(11, kNvme, 100);
  const Plan plan = world_.plan();
  ASSERT_EQ(plan.moves.size(), 11U);
  for (const PlannedMove& move : plan.moves) {
    EXPECT_EQ(world_.files[move.file].score, 100);
    EXPECT_EQ(move.to, kSsd);
    EXPECT_EQ(move.reason, Reason::Crowded);
  }
  EXPECT_EQ(plan.used_after[kNvme], 80 * kGiB);
}

TEST_F(PlannerTest, AtTheHighWatermarkATierEvictsNothing) {
  world_.add(90, kNvme, 100);
  EXPECT_TRUE(world_.plan().moves.empty());
}

TEST_F(PlannerTest, TheLeastRecentlyUsedOfEqualRankIsEvictedFirst) {
  world_.add_foreign(kNvme, 89 * kGiB);
  world_.tiers[kNvme].low_watermark = 90;
  world_.add(kNvme, 100);
  FileFacts file = file_on(kNvme, 100);
  file.last_use -= 1;
  const auto oldest = world_.add(file);
  EXPECT_EQ(world_.plan().moves, (Moves{{oldest, kSsd, Reason::Crowded}}));
}

TEST_F(PlannerTest, NewFilesAreEvictedLast) {
  world_.tiers[kNvme].low_watermark = 88;
  world_.add_foreign(kNvme, 88 * kGiB);
  world_.add(2, kNvme, 500);
  const auto newcomer = world_.add(new_file_on(kNvme, 1));
  const Plan plan = world_.plan();
  ASSERT_EQ(plan.moves.size(), 3U);
  EXPECT_EQ(plan.moves.back(), (PlannedMove{newcomer, kSsd, Reason::Crowded}));
}

TEST_F(PlannerTest, NewFilesAreNotEvictedIfOthersAreEnough) {
  world_.tiers[kNvme].low_watermark = 90;
  world_.add_foreign(kNvme, 89 * kGiB);
  const auto old = world_.add(kNvme, 500);
  world_.add(new_file_on(kNvme, 1));
  EXPECT_EQ(world_.plan().moves, (Moves{{old, kSsd, Reason::Crowded}}));
}

TEST_F(PlannerTest, PinnedAndRuledFilesAreNotEvicted) {
  world_.add_foreign(kNvme, 91 * kGiB);
  world_.add(pinned(file_on(kNvme, 0), kNvme));
  world_.add(ruled(file_on(kNvme, 0), kNvme));
  world_.add(ruled(file_on(kNvme, 0), kNoTier));
  EXPECT_TRUE(world_.plan().moves.empty());
}

TEST_F(PlannerTest, EmptyFilesAreNotEvicted) {
  world_.add_foreign(kNvme, 91 * kGiB);
  FileFacts file = file_on(kNvme, 60);
  file.bytes = 0;
  world_.add(file);
  EXPECT_TRUE(world_.plan().moves.empty());
}

TEST_F(PlannerTest, AnEvictedFileSkipsATierWithoutRoom) {
  world_.tiers[kNvme].low_watermark = 90;
  world_.add(91, kNvme, 100);
  world_.add(90, kSsd, 90);
  const Plan plan = world_.plan();
  ASSERT_EQ(plan.moves.size(), 1U);
  EXPECT_EQ(plan.moves[0].to, kHdd);
}

TEST_F(PlannerTest, AnEvictedFileReplacesFilesThatRankClearlyLower) {
  world_.tiers[kNvme].low_watermark = 90;
  world_.add(91, kNvme, 100);
  world_.add(89, kSsd, 90);
  const auto lowest = world_.add(kSsd, 10);
  const Plan plan = world_.plan();
  ASSERT_EQ(plan.moves.size(), 2U);
  EXPECT_EQ(plan.moves[0], (PlannedMove{lowest, kHdd, Reason::Outranked}));
  EXPECT_EQ(plan.moves[1].to, kSsd);
}

TEST_F(PlannerTest, ASlowerTierEvictsFirstToMakeRoom) {
  world_.add(91, kNvme, 100);
  world_.add(91, kSsd, 50);
  const Plan plan = world_.plan();
  EXPECT_EQ(world_.files[plan.moves.front().file].tier, kSsd);
  EXPECT_EQ(plan.used_after[kNvme], 80 * kGiB);
  EXPECT_LE(plan.used_after[kSsd], 90 * kGiB);
}

TEST_F(PlannerTest, TheSlowestTierEvictsNothing) {
  world_.add(99, kHdd, 0);
  EXPECT_TRUE(world_.plan().moves.empty());
}

TEST_F(PlannerTest, TheSlowestTierAcceptsEvictedFilesUpTo98Percent) {
  world_.add(95, kNvme, 100);
  world_.add_foreign(kSsd, 90 * kGiB);
  world_.add_foreign(kHdd, 95 * kGiB);
  const Plan plan = world_.plan();
  EXPECT_EQ(plan.moves.size(), 3U);
  EXPECT_EQ(plan.used_after[kHdd], 98 * kGiB);
}

TEST_F(PlannerTest, ColdFilesStopAtTheHighWatermarkOfTheSlowestTier) {
  world_.add(2, kNvme, 1);
  world_.add_foreign(kSsd, 90 * kGiB);
  world_.add_foreign(kHdd, 89 * kGiB);
  const Plan plan = world_.plan();
  EXPECT_EQ(plan.moves.size(), 1U);
  EXPECT_EQ(plan.blocked_by(Blocker::NoRoom), 1U);
}

TEST_F(PlannerTest, ACrowdedTierKeepsFilesThatHaveNowhereToGo) {
  world_.add(95, kNvme, 100);
  world_.add_foreign(kSsd, 98 * kGiB);
  world_.tiers[kHdd].online = false;
  EXPECT_TRUE(world_.plan().moves.empty());
}

TEST_F(PlannerTest, AFileTooLargeForSlowerTiersIsSkippedForASmallerOne) {
  FileFacts file = file_on(kNvme, 60);
  file.bytes = 95 * kGiB;
  world_.add(file);
  world_.tiers[kSsd].total = world_.tiers[kHdd].total = 10 * kGiB;
  const auto small = world_.add(kNvme, 100);
  EXPECT_EQ(world_.plan().moves, (Moves{{small, kSsd, Reason::Crowded}}));
}

TEST_F(PlannerTest, NothingLeavesOrEntersAnOfflineTier) {
  world_.tiers[kSsd].online = false;
  world_.add(95, kSsd, 500);
  world_.add(kHdd, 20);
  const Plan plan = world_.plan();
  EXPECT_TRUE(plan.moves.empty());
  EXPECT_EQ(plan.blocked_by(Blocker::Offline), 95U);
}

TEST_F(PlannerTest, CountsBlockedFilesByCause) {
  world_.tiers[kNvme].online = false;
  world_.add(new_file_on(kHdd, 50));
  FileFacts file = file_on(kHdd, 50);
  file.opens = 1;
  world_.add(file);
  world_.add(pinned(file_on(kHdd, 0), kNvme));
  world_.add_foreign(kSsd, 90 * kGiB);
  world_.add(kHdd, 50);
  const Plan plan = world_.plan();
  EXPECT_EQ(plan.blocked_by(Blocker::MinStay), 1U);
  EXPECT_EQ(plan.blocked_by(Blocker::OnlyOnce), 1U);
  EXPECT_EQ(plan.blocked_by(Blocker::Offline), 1U);
  EXPECT_EQ(plan.blocked_by(Blocker::NoRoom), 1U);
}

TEST_F(PlannerTest, AHighWatermarkIsLimitedTo98Percent) {
  world_.tiers[kNvme].high_watermark = world_.tiers[kNvme].low_watermark = 100;
  world_.add_foreign(kNvme, 97 * kGiB);
  world_.add(5, kSsd, 120);
  EXPECT_EQ(world_.plan().used_after[kNvme], 98 * kGiB);
}

TEST_F(PlannerTest, ALowWatermarkIsLimitedToTheHighWatermark) {
  world_.tiers[kNvme].low_watermark = 95;
  world_.add(91, kNvme, 100);
  EXPECT_EQ(world_.plan().used_after[kNvme], 90 * kGiB);
}

TEST_F(PlannerTest, TiersOfManyExabytesDoNotOverflow) {
  world_.tiers[kNvme].total = std::numeric_limits<std::uint64_t>::max();
  const auto hot = world_.add(kHdd, 120);
  EXPECT_EQ(world_.plan().moves, (Moves{{hot, kNvme, Reason::Hot}}));
}

// By value. Every file was used at the same rate all the time.
class ValuePlannerTest : public PlannerTest {
 protected:
  ValuePlannerTest() { world_.policy.method = Method::Value; }
  static FileFacts steady(TierIndex tier, float score) {
    FileFacts file = file_on(tier, score);
    file.recent = score / 7;  // it halves every day, the score every week
    return file;
  }
};

TEST_F(ValuePlannerTest, AFileReplacesOthersOnlyIfItIsWorthATenthMore) {
  for (int i = 0; i < 90; ++i) world_.add(steady(kNvme, 100));
  // In a pool of unequal files, each is believed to be as its count says.
  for (int i = 0; i < 80; ++i) world_.add(steady(kHdd, 1));
  const std::uint32_t file = world_.add(steady(kHdd, 105));
  world_.tiers[kSsd].online = false;
  EXPECT_TRUE(world_.plan().moves.empty());
  world_.files[file].score = 120;
  world_.files[file].recent = 120.0F / 7;
  const Plan plan = world_.plan();
  ASSERT_EQ(plan.moves.size(), 2u);
  EXPECT_EQ(plan.moves[0].reason, Reason::Outranked);
  EXPECT_EQ(plan.moves[1], (PlannedMove{file, kNvme, Reason::Hot}));
  world_.execute(plan);
  EXPECT_TRUE(world_.plan().moves.empty());
}

}  // namespace
}  // namespace sluice
