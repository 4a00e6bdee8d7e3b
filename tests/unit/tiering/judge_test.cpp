// SPDX-License-Identifier: BSD-2-Clause
#include <gtest/gtest.h>

#include <limits>
#include <ostream>

#include "tests/unit/tiering/plans.hpp"
#include "tiering/choose/planner.hpp"

namespace sluice {

bool operator==(const Verdict& a, const Verdict& b) {
  return a.wants == b.wants && a.reason == b.reason && a.blocker == b.blocker;
}
void PrintTo(const Verdict& verdict, std::ostream* out) {
  *out << unsigned{verdict.wants} << ' ' << name_of(verdict.reason) << ' '
       << name_of(verdict.blocker);
}

namespace {

using test::file_on;
using test::kDay;
using test::kGiB;
using test::kHdd;
using test::kHour;
using test::kMiB;
using test::kNow;
using test::kNvme;
using test::kSsd;

class JudgeTest : public testing::Test {
 protected:
  Verdict judge() const { return sluice::judge(file_, tiers_, policy_, {}, kNow); }
  void add_rule(TierIndex tier) {
    policy_.rules.resize(1);
    policy_.rules[0].tier = tier;
    file_.rule = 0;
  }

  std::vector<TierFacts> tiers_ = test::three_tiers();
  Policy policy_{.method = Method::Thresholds};
  FileFacts file_ = file_on(kHdd, 0);
};

TEST_F(JudgeTest, AFileBetweenTheThresholdsStays) {
  for (const float score : {5.F, 10.F, 99.F}) {
    file_ = file_on(kSsd, score);
    EXPECT_EQ(judge(), (Verdict{kSsd, Reason::Stays, Blocker::None})) << score;
  }
}

TEST_F(JudgeTest, TheThresholdItselfIsEnough) {
  file_ = file_on(kSsd, 100);
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Hot, Blocker::None}));
}

TEST_F(JudgeTest, AHotFileWantsTheFastestTierThatItsScoreReaches) {
  file_ = file_on(kHdd, 120);
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Hot, Blocker::None}));
  file_.score = 99;
  EXPECT_EQ(judge(), (Verdict{kSsd, Reason::Hot, Blocker::None}));
}

TEST_F(JudgeTest, AHotFileDoesNotWantAnOfflineOrDrainingTier) {
  file_ = file_on(kHdd, 120);
  tiers_[kNvme].online = false;
  EXPECT_EQ(judge().wants, kSsd);
  tiers_[kSsd].draining = true;
  EXPECT_EQ(judge(), (Verdict{kHdd, Reason::Stays, Blocker::None}));
}

TEST_F(JudgeTest, OneOpenDoesNotMoveAFile) {
  file_ = file_on(kHdd, 120);
  file_.opens = 1;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Hot, Blocker::OnlyOnce}));
  file_.opens = 2;
  EXPECT_EQ(judge().blocker, Blocker::None);
}

TEST_F(JudgeTest, AFileLeavesOnlyBelowHalfOfTheThreshold) {
  file_ = file_on(kNvme, 50);
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Stays, Blocker::None}));
  file_.score = 49.9F;
  EXPECT_EQ(judge(), (Verdict{kSsd, Reason::Cold, Blocker::None}));
}

TEST_F(JudgeTest, AColdFileWantsTheFastestTierThatItsScoreReaches) {
  file_ = file_on(kNvme, 10);
  EXPECT_EQ(judge().wants, kSsd);
  file_.score = 9;
  EXPECT_EQ(judge().wants, kHdd);
}

TEST_F(JudgeTest, TheSlowestTierHasNoThreshold) {
  tiers_[kHdd].threshold = 5;
  file_ = file_on(kNvme, 1);
  EXPECT_EQ(judge().wants, kHdd);
}

TEST_F(JudgeTest, AColdFileSkipsTiersThatAreOfflineOrDraining) {
  file_ = file_on(kNvme, 1);
  tiers_[kHdd].online = false;
  EXPECT_EQ(judge(), (Verdict{kSsd, Reason::Cold, Blocker::None}));
  tiers_[kSsd].draining = true;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Stays, Blocker::None}));
}

TEST_F(JudgeTest, AColdFileOnTheSlowestTierStays) {
  tiers_[kHdd].threshold = 5;
  file_ = file_on(kHdd, 0);
  EXPECT_EQ(judge(), (Verdict{kHdd, Reason::Stays, Blocker::None}));
}

TEST_F(JudgeTest, HeatWaitsForMinStay) {
  file_ = file_on(kSsd, 120);
  file_.arrived = kNow - kHour + 1;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Hot, Blocker::MinStay}));
  file_.score = 1;
  EXPECT_EQ(judge(), (Verdict{kHdd, Reason::Cold, Blocker::MinStay}));
  file_.arrived = kNow - kHour;
  EXPECT_EQ(judge().blocker, Blocker::None);
}

TEST_F(JudgeTest, AMinStayOfZeroBlocksNothing) {
  policy_.min_stay = {};
  file_ = file_on(kSsd, 120);
  file_.arrived = kNow;
  EXPECT_EQ(judge().blocker, Blocker::None);
}

TEST_F(JudgeTest, AClockSetBackBlocksAFileNoLongerThanMinStay) {
  file_ = file_on(kSsd, 120);
  file_.arrived = kNow + 10;
  EXPECT_EQ(judge().blocker, Blocker::MinStay);
  for (const std::int64_t arrived : {kNow + 365 * kDay, std::numeric_limits<std::int64_t>::max(),
                                     std::numeric_limits<std::int64_t>::min()}) {
    file_.arrived = arrived;
    EXPECT_EQ(judge().blocker, Blocker::None) << arrived;
  }
}

TEST_F(JudgeTest, AGhostThatWasUsedAgainReturnsAtHalfTheThreshold) {
  file_ = file_on(kSsd, 50);
  file_.ghost_of = kNvme;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Returning, Blocker::None}));
  file_.score = 49;
  EXPECT_EQ(judge(), (Verdict{kSsd, Reason::Stays, Blocker::None}));
}

TEST_F(JudgeTest, AGhostThatWasNotUsedAgainStaysOut) {
  file_ = file_on(kSsd, 120);
  file_.ghost_of = kNvme;
  file_.last_use = file_.arrived;
  EXPECT_EQ(judge(), (Verdict{kSsd, Reason::Stays, Blocker::None}));
}

TEST_F(JudgeTest, AGhostOfOneTierIsNotAGhostOfAnother) {
  file_ = file_on(kHdd, 60);
  file_.ghost_of = kSsd;
  EXPECT_EQ(judge(), (Verdict{kSsd, Reason::Returning, Blocker::None}));
  file_.score = 120;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Hot, Blocker::None}));
}

TEST_F(JudgeTest, AGhostIsBlockedLikeAnyOtherFile) {
  file_ = file_on(kSsd, 60);
  file_.ghost_of = kNvme;
  file_.opens = 1;
  EXPECT_EQ(judge().blocker, Blocker::OnlyOnce);
  file_.opens = 2;
  file_.arrived = kNow - 10;
  file_.last_use = kNow;
  EXPECT_EQ(judge().blocker, Blocker::MinStay);
}

TEST_F(JudgeTest, APinWinsOverARuleAndHeat) {
  file_ = file_on(kSsd, 120);
  add_rule(kHdd);
  file_.pin = kSsd;
  EXPECT_EQ(judge(), (Verdict{kSsd, Reason::Pinned, Blocker::None}));
  file_.pin = kNvme;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Pinned, Blocker::None}));
}

TEST_F(JudgeTest, ARuleWinsOverHeat) {
  file_ = file_on(kSsd, 120);
  add_rule(kHdd);
  EXPECT_EQ(judge(), (Verdict{kHdd, Reason::Ruled, Blocker::None}));
}

TEST_F(JudgeTest, ARuleWithoutATierKeepsTheFileWhereItIs) {
  add_rule(kNoTier);
  file_.score = 120;
  EXPECT_EQ(judge(), (Verdict{kHdd, Reason::Stays, Blocker::None}));
}

TEST_F(JudgeTest, PinsAndRulesDoNotWaitForMinStayNorASecondOpen) {
  file_.arrived = kNow;
  file_.opens = 0;
  add_rule(kSsd);
  EXPECT_EQ(judge(), (Verdict{kSsd, Reason::Ruled, Blocker::None}));
  file_.pin = kNvme;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Pinned, Blocker::None}));
}

TEST_F(JudgeTest, APinOrARuleWaitsForAnOfflineTier) {
  tiers_[kNvme].online = false;
  add_rule(kNvme);
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Ruled, Blocker::Offline}));
  file_.pin = kNvme;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Pinned, Blocker::Offline}));
  tiers_[kNvme].online = true;
  tiers_[kNvme].draining = true;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Pinned, Blocker::Draining}));
  tiers_[kNvme].draining = false;
  tiers_[kNvme].read_only = true;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Pinned, Blocker::ReadOnly}));
  tiers_[kNvme].read_only = false;
  tiers_[kNvme].failing = true;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Pinned, Blocker::Failing}));
}

TEST_F(JudgeTest, APinOrARuleForAnUnknownTierIsIgnored) {
  file_.pin = 3;
  add_rule(3);
  file_.score = 120;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Hot, Blocker::None}));
  file_.rule = 7;
  EXPECT_EQ(judge().reason, Reason::Hot);
}

TEST_F(JudgeTest, AFileOnAnOfflineTierCannotMove) {
  tiers_[kHdd].online = false;
  file_.score = 120;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Hot, Blocker::Offline}));
  file_.pin = kSsd;
  EXPECT_EQ(judge(), (Verdict{kSsd, Reason::Pinned, Blocker::Offline}));
  tiers_[kHdd].draining = true;
  EXPECT_EQ(judge(), (Verdict{kSsd, Reason::Draining, Blocker::Offline}));
}

TEST_F(JudgeTest, AFileOnAReadOnlyTierCannotMove) {
  tiers_[kHdd].read_only = true;
  file_.score = 120;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Hot, Blocker::ReadOnly}));
}

TEST_F(JudgeTest, AFileThatDoesNotFitMovesOnlyInExchange) {
  file_.score = 120;
  file_.bytes = kMiB;
  tiers_[kNvme].used = tiers_[kNvme].total / 100 * 90 - kMiB / 2;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Hot, Blocker::NoRoom}));
  file_.pin = kNvme;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Pinned, Blocker::None})) << "it may fill the tier";
}

TEST_F(JudgeTest, ADrainedFileGoesToTheTierItWouldWantWithoutItsOwn) {
  tiers_[kSsd].draining = true;
  file_ = file_on(kSsd, 120);
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Draining, Blocker::None}));
  file_.score = 99;
  EXPECT_EQ(judge(), (Verdict{kHdd, Reason::Draining, Blocker::None}));
  file_.pin = kNvme;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Draining, Blocker::None}));
}

TEST_F(JudgeTest, ADrainedFileThatWasOpenedOnceGoesToASlowerTier) {
  tiers_[kSsd].draining = true;
  file_ = file_on(kSsd, 120);
  file_.opens = 1;
  EXPECT_EQ(judge().wants, kHdd);
}

TEST_F(JudgeTest, ADrainDoesNotWaitForMinStay) {
  tiers_[kSsd].draining = true;
  file_ = file_on(kSsd, 1);
  file_.arrived = kNow;
  EXPECT_EQ(judge(), (Verdict{kHdd, Reason::Draining, Blocker::None}));
}

TEST_F(JudgeTest, ADrainIgnoresAPinAndPrefersTheNextSlowerTier) {
  tiers_[kSsd].draining = true;
  file_ = file_on(kSsd, 120);
  file_.pin = kSsd;
  EXPECT_EQ(judge(), (Verdict{kHdd, Reason::Draining, Blocker::None}));
  tiers_[kHdd].online = false;
  EXPECT_EQ(judge(), (Verdict{kNvme, Reason::Draining, Blocker::None}));
}

TEST_F(JudgeTest, ADrainDoesNotWaitForAnOfflinePinnedTier) {
  tiers_[kHdd].draining = true;
  tiers_[kNvme].online = false;
  file_.pin = kNvme;
  EXPECT_EQ(judge(), (Verdict{kSsd, Reason::Draining, Blocker::None}));
}

TEST_F(JudgeTest, ADrainOverridesARuleThatKeepsFiles) {
  tiers_[kNvme].draining = true;
  file_ = file_on(kNvme, 0);
  add_rule(kNoTier);
  EXPECT_EQ(judge(), (Verdict{kSsd, Reason::Draining, Blocker::None}));
}

TEST_F(JudgeTest, TheSlowestTierDrainsUpwards) {
  tiers_[kHdd].draining = true;
  EXPECT_EQ(judge(), (Verdict{kSsd, Reason::Draining, Blocker::None}));
}

TEST_F(JudgeTest, ADrainWithoutAnotherTierIsBlocked) {
  tiers_[kHdd].draining = tiers_[kSsd].draining = true;
  tiers_[kNvme].online = false;
  EXPECT_EQ(judge(), (Verdict{kHdd, Reason::Draining, Blocker::Nowhere}));
}

TEST_F(JudgeTest, ANanScoreMovesNothing) {
  file_ = file_on(kSsd, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(judge(), (Verdict{kSsd, Reason::Stays, Blocker::None}));
}

TEST(RankTest, GrowsWithTheScoreAndShrinksWithTheSize) {
  FileFacts file = file_on(kHdd, 10);
  file.bytes = kMiB;
  EXPECT_DOUBLE_EQ(rank_of(file), 20);
  file.score = 20;
  EXPECT_DOUBLE_EQ(rank_of(file), 40);
  file.bytes = 4 * kMiB;
  EXPECT_DOUBLE_EQ(rank_of(file), 25);
}

TEST(RankTest, FilesSmallerThanAPageRankLikeAPage) {
  FileFacts file = file_on(kHdd, 1);
  file.bytes = 0;
  EXPECT_DOUBLE_EQ(rank_of(file), 257);
  file.bytes = 4096;
  EXPECT_DOUBLE_EQ(rank_of(file), 257);
}

TEST(RankTest, ANanScoreRanksLowest) {
  EXPECT_EQ(rank_of(file_on(kHdd, std::numeric_limits<float>::quiet_NaN())), 0);
  EXPECT_EQ(rank_of(file_on(kHdd, -1)), 0);
}

class ExplainTest : public JudgeTest {
 protected:
  std::string explain(Reason reason, TierIndex to) const {
    return explain_move(file_, reason, to, tiers_, names_, policy_);
  }
  const std::vector<std::string> names_{"nvme", "ssd", "hdd"};
};

TEST_F(ExplainTest, GivesTheScoreAndItsBound) {
  file_ = file_on(kSsd, 120);
  EXPECT_EQ(explain(Reason::Hot, kNvme), "score 120 is at least 100");
  file_.score = 3;
  EXPECT_EQ(explain(Reason::Cold, kHdd), "score 3 is below 5, half of the threshold of ssd");
  file_.score = 60;
  EXPECT_EQ(explain(Reason::Returning, kNvme),
            "accessed again after it left nvme for lack of room, and score 60 is at least 50");
}

TEST_F(ExplainTest, ShowsEnoughDigitsToBeTrue) {
  file_ = file_on(kSsd, 4.9F);
  EXPECT_EQ(explain(Reason::Cold, kHdd), "score 4.9 is below 5, half of the threshold of ssd");
  file_.score = 4.25F;
  EXPECT_EQ(explain(Reason::Cold, kHdd), "score 4 is below 5, half of the threshold of ssd");
  tiers_[kNvme].threshold = 0.25;
  file_.score = 0.26F;
  EXPECT_EQ(explain(Reason::Hot, kNvme), "score 0.3 is at least 0.25");
}

TEST_F(ExplainTest, MentionsThePinTheRuleOrTheTier) {
  file_ = file_on(kNvme, 1);
  add_rule(kHdd);
  policy_.rules[0].match = "*.ckpt";
  EXPECT_EQ(explain(Reason::Pinned, kSsd), "pinned to ssd");
  EXPECT_EQ(explain(Reason::Ruled, kHdd), "rule *.ckpt");
  EXPECT_EQ(explain(Reason::Crowded, kSsd),
            "nvme is above its high watermark and this file ranks lowest");
  EXPECT_EQ(explain(Reason::Outranked, kSsd), "makes room for files that rank higher");
  EXPECT_EQ(explain(Reason::Draining, kSsd), "nvme is being emptied");
}

TEST_F(ExplainTest, ARuleWithoutAGlobIsGivenByItsNumber) {
  add_rule(kHdd);
  EXPECT_EQ(explain(Reason::Ruled, kHdd), "rule 1");
}

TEST_F(ExplainTest, ExplainsWhyAFileStays) {
  EXPECT_EQ(explain(Reason::Stays, kHdd), "the file is on the right tier");
  add_rule(kNoTier);
  policy_.rules[0].match = "*.iso";
  EXPECT_EQ(explain(Reason::Stays, kHdd), "rule *.iso keeps the file where it is");
}

TEST(NameTest, EveryReasonAndBlockerHasAUniqueName) {
  std::map<std::string, int> names;
  for (int i = 0; i <= static_cast<int>(Reason::Requested); ++i)
    ++names[name_of(static_cast<Reason>(i))];
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Reason::Requested) + 1);
  EXPECT_STREQ(name_of(Reason::Hot), "hot");
  EXPECT_STREQ(name_of(Blocker::MinStay), "min_stay");
  EXPECT_STREQ(name_of(Blocker::NoRoom), "no_room");
}

}  // namespace
}  // namespace sluice
