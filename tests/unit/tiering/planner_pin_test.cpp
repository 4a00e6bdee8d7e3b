// SPDX-License-Identifier: BSD-2-Clause
// Plans for files that must move: pins, rules and drains.
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

class PlannerPinTest : public test::PlannerStage {};

TEST_F(PlannerPinTest, PinsFillATierAboveItsHighWatermarkUpTo98Percent) {
  world_.add_foreign(kNvme, 89 * kGiB);
  for (int i = 0; i < 20; ++i) world_.add(pinned(file_on(kHdd, 0), kNvme));
  const Plan plan = world_.plan();
  EXPECT_EQ(plan.moves.size(), 9U);
  EXPECT_EQ(plan.used_after[kNvme], 98 * kGiB);
  EXPECT_EQ(plan.blocked_by(Blocker::NoRoom), 11U);
}

TEST_F(PlannerPinTest, OtherFilesAreEvictedForPinnedOnes) {
  world_.add(90, kNvme, 500);
  const auto file = world_.add(pinned(file_on(kHdd, 0), kNvme));
  const Plan plan = world_.plan();
  EXPECT_EQ(plan.moves.back(), (PlannedMove{file, kNvme, Reason::Pinned}));
  EXPECT_EQ(plan.moves.front().reason, Reason::Crowded);
  EXPECT_EQ(plan.used_after[kNvme], 80 * kGiB);
}

TEST_F(PlannerPinTest, NothingIsEvictedForAPinThatCannotFit) {
  world_.add(85, kNvme, 500);
  FileFacts file = pinned(file_on(kHdd, 0), kNvme);
  file.bytes = 99 * kGiB;
  world_.add(file);
  const Plan plan = world_.plan();
  EXPECT_TRUE(plan.moves.empty());
  EXPECT_EQ(plan.blocked_by(Blocker::NoRoom), 1U);
}

TEST_F(PlannerPinTest, APinTakesPrecedenceOverARuleIfOnlyOneFits) {
  world_.add_foreign(kNvme, 97 * kGiB);
  world_.add(ruled(file_on(kHdd, 500), kNvme));
  const auto file = world_.add(pinned(file_on(kHdd, 0), kNvme));
  EXPECT_EQ(world_.plan().moves, (Moves{{file, kNvme, Reason::Pinned}}));
}

TEST_F(PlannerPinTest, ATierEvictsNothingIfLeavingPinnedFilesFreeEnough) {
  world_.add(80, kNvme, 100);
  for (int i = 0; i < 15; ++i) world_.add(pinned(file_on(kNvme, 500), kHdd));
  const Plan plan = world_.plan();
  EXPECT_EQ(plan.moves.size(), 15U);
  EXPECT_EQ(plan.moves[0].reason, Reason::Pinned);
}

TEST_F(PlannerPinTest, PinnedFilesThatSwapTiersMoveInAnOrderThatFits) {
  world_.add_foreign(kNvme, 97 * kGiB);
  world_.add_foreign(kSsd, 96 * kGiB);
  const auto up = world_.add(pinned(file_on(kSsd, 500), kNvme));
  const auto down = world_.add(pinned(file_on(kNvme, 0), kSsd));
  EXPECT_EQ(world_.plan().moves,
            (Moves{{down, kSsd, Reason::Pinned}, {up, kNvme, Reason::Pinned}}));
}

TEST_F(PlannerPinTest, APinnedFileThatWaitsForRoomMayBeEvicted) {
  world_.add_foreign(kNvme, 98 * kGiB);
  world_.add_foreign(kSsd, 90 * kGiB);
  const auto waiting = world_.add(pinned(file_on(kSsd, 500), kNvme));
  EXPECT_EQ(world_.plan().moves, (Moves{{waiting, kHdd, Reason::Crowded}}));
}

TEST_F(PlannerPinTest, HeatDoesNotMoveFilesThatARuleKeeps) {
  world_.add(ruled(file_on(kHdd, 500), kNoTier));
  EXPECT_TRUE(world_.plan().moves.empty());
}

TEST_F(PlannerPinTest, ADrainEmptiesItsTier) {
  world_.tiers[kSsd].draining = true;
  const auto hot = world_.add(kSsd, 120), warm = world_.add(kSsd, 20);
  const auto stubborn = world_.add(pinned(new_file_on(kSsd, 0), kSsd));
  const auto moves = by_file(world_.plan());
  EXPECT_EQ(moves.at(hot), (PlannedMove{hot, kNvme, Reason::Draining}));
  EXPECT_EQ(moves.at(warm), (PlannedMove{warm, kHdd, Reason::Draining}));
  EXPECT_EQ(moves.at(stubborn), (PlannedMove{stubborn, kHdd, Reason::Draining}));
}

TEST_F(PlannerPinTest, ADrainedFileReplacesLowerRankedFiles) {
  world_.tiers[kNvme].draining = true;
  world_.add(89, kSsd, 80);
  const auto lowest = world_.add(kSsd, 10), drained = world_.add(kNvme, 120);
  EXPECT_EQ(world_.plan().moves,
            (Moves{{lowest, kHdd, Reason::Outranked}, {drained, kSsd, Reason::Draining}}));
}

TEST_F(PlannerPinTest, ADrainedFilePrefersAFasterTierToExceedingAHighWatermark) {
  world_.tiers[kHdd].draining = true;
  world_.tiers[kSsd].total = 0;
  world_.add_foreign(kNvme, 88 * kGiB);
  const auto file = world_.add(kHdd, 0);
  EXPECT_EQ(world_.plan().moves, (Moves{{file, kNvme, Reason::Draining}}));
}

TEST_F(PlannerPinTest, ADrainFillsOtherTiersUpTo98Percent) {
  world_.tiers[kHdd].draining = true;
  world_.add_foreign(kNvme, 96 * kGiB);
  world_.add_foreign(kSsd, 96 * kGiB);
  world_.add(10, kHdd, 0);
  const Plan plan = world_.plan();
  EXPECT_EQ(plan.used_after, (std::vector<std::uint64_t>{98 * kGiB, 98 * kGiB, 6 * kGiB}));
  EXPECT_EQ(plan.blocked_by(Blocker::NoRoom), 6U);
}

TEST_F(PlannerPinTest, ADrainDoesNotWaitForAPinThatHasNoRoom) {
  world_.tiers[kHdd].draining = true;
  world_.add_foreign(kNvme, 98 * kGiB);
  const auto file = world_.add(pinned(file_on(kHdd, 0), kNvme));
  EXPECT_EQ(world_.plan().moves, (Moves{{file, kSsd, Reason::Draining}}));
}

}  // namespace
}  // namespace sluice
