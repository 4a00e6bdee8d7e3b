// SPDX-License-Identifier: BSD-2-Clause
// Replay of intents that an earlier daemon left and that cannot simply be finished.
#include <sys/xattr.h>

#include "tests/unit/tiering/pools.hpp"
#include "tiering/move/intent.hpp"

namespace sluice {
namespace {

using Kind = Step::Kind;
using test::MemoryStore;

class ReplayTest : public test::PoolTest {
 protected:
  void prepare() override {
    settings_ = make_tiers("ab");
    pool_ = open(settings_);
  }
  Tier& a() const { return (*pool_)[0]; }
  Tier& b() const { return (*pool_)[1]; }
  void take_away(const std::string& tier) {
    ASSERT_EQ(::rename((dir_ / tier).c_str(), (dir_ / ("away-" + tier)).c_str()), 0);
    for (const auto& t : *pool_) t->check_presence();
  }
  void bring_back(const std::string& tier) {
    ASSERT_EQ(::rename((dir_ / ("away-" + tier)).c_str(), (dir_ / tier).c_str()), 0);
    for (const auto& t : *pool_)
      if (t->check_presence()) t->admit();
  }

  std::vector<TierSettings> settings_;
  std::unique_ptr<Pool> pool_;
  MemoryStore store_;
};

TEST_F(ReplayTest, WithoutIntentsDoesNothing) {
  dir_.make_file("a/f", "x");
  const auto replayed = replay_intents(store_, *pool_);
  ASSERT_TRUE(replayed);
  EXPECT_EQ(*replayed, 0u);
  EXPECT_EQ(shown(), "a/f 644 \"x\"\n");
}

TEST_F(ReplayTest, FinishesSeveralIntentsInTheirOrder) {
  dir_.make_file("a/f", "x");
  Step first = step(Kind::Rename, a(), "f", "g");
  Step second = first;
  second.from.name = "g";
  second.to.name = "h";
  ASSERT_TRUE(announce(store_, {first}));
  ASSERT_TRUE(announce(store_, {second}));
  EXPECT_EQ(*replay_intents(store_, *pool_), 2u);
  EXPECT_EQ(shown(), "a/h 644 \"x\"\n");
}

TEST_F(ReplayTest, DropsDamagedIntents) {
  dir_.make_file("a/f", "x");
  ASSERT_TRUE(store_.begin_intents({"garbage"}));
  ASSERT_TRUE(announce(store_, {step(Kind::Rename, a(), "f", "g")}));
  ASSERT_TRUE(store_.begin_intents({""}));
  EXPECT_EQ(*replay_intents(store_, *pool_), 3u);
  EXPECT_EQ(intents_in(store_), 0u);
  EXPECT_EQ(shown(), "a/g 644 \"x\"\n");
}

TEST_F(ReplayTest, ReportsAStoreThatFails) {
  dir_.make_file("a/f", "x");
  ASSERT_TRUE(announce(store_, {step(Kind::Rename, a(), "f", "g")}));
  store_.fail_call(1);
  EXPECT_TRUE(failed_with(replay_intents(store_, *pool_), EIO));
  EXPECT_EQ(shown(), "a/f 644 \"x\"\n");
  // An intent that is finished but cannot be cleared stays, and does not prevent the mount.
  store_.fail_call(2);
  EXPECT_TRUE(replay_intents(store_, *pool_));
  store_.fail_call(0);
  EXPECT_EQ(intents_in(store_), 1u);
  EXPECT_TRUE(replay_intents(store_, *pool_));
  EXPECT_EQ(shown(), "a/g 644 \"x\"\n");
  EXPECT_EQ(intents_in(store_), 0u);
}

TEST_F(ReplayTest, StepsInAMissingDirectoryAreSkipped) {
  dir_.make_file("a/d/f", "x");
  ASSERT_TRUE(announce(store_, {step(Kind::Rename, a(), "d/f", "d/g")}));
  ASSERT_EQ(::unlink(at("a", "d/f").c_str()), 0);
  ASSERT_EQ(::rmdir(at("a", "d").c_str()), 0);
  ASSERT_TRUE(replay_intents(store_, *pool_));
  EXPECT_EQ(intents_in(store_), 0u);
}

TEST_F(ReplayTest, WaitsForATierThatIsOffline) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("b/d/g", "2");
  ASSERT_TRUE(
      announce(store_, {step(Kind::Rename, a(), "d", "e"), step(Kind::Rename, b(), "d", "e")}));
  take_away("b");
  ASSERT_TRUE(replay_intents(store_, *pool_));
  EXPECT_EQ(intents_in(store_), 1u);
  bring_back("b");
  ASSERT_TRUE(replay_intents(store_, *pool_));
  EXPECT_EQ(intents_in(store_), 0u);
  EXPECT_EQ(shown(), "a/e/ 755\na/e/f 644 \"1\"\nb/e/ 755\nb/e/g 644 \"2\"\n");
}

TEST_F(ReplayTest, WaitsForTwoTiersThatAreOffline) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("b/d/g", "2");
  ASSERT_TRUE(
      announce(store_, {step(Kind::Rename, a(), "d", "e"), step(Kind::Rename, b(), "d", "e")}));
  take_away("a");
  take_away("b");
  ASSERT_TRUE(replay_intents(store_, *pool_));
  bring_back("b");
  ASSERT_TRUE(replay_intents(store_, *pool_));
  EXPECT_EQ(intents_in(store_), 1u);
  EXPECT_TRUE(test::exists(at("b", "d/g"))) << "a directory must not have two names";
  bring_back("a");
  ASSERT_TRUE(replay_intents(store_, *pool_));
  EXPECT_EQ(intents_in(store_), 0u);
  EXPECT_EQ(shown(), "a/e/ 755\na/e/f 644 \"1\"\nb/e/ 755\nb/e/g 644 \"2\"\n");
}

TEST_F(ReplayTest, WaitsForATierThatIsNotConfigured) {
  dir_.make_file("b/f", "x");
  ASSERT_TRUE(announce(store_, {step(Kind::Rename, b(), "f", "g")}));
  pool_.reset();
  pool_ = open({settings_[0]}, Pool::Missing::Tolerate);
  ASSERT_TRUE(replay_intents(store_, *pool_));
  EXPECT_EQ(intents_in(store_), 1u);
  EXPECT_TRUE(test::exists(at("b", "f")));
}

TEST_F(ReplayTest, WaitsForTheTargetTierOfAMirrorStep) {
  dir_.make_dir("a/d");
  dir_.make_dir("b/d");
  ASSERT_TRUE(announce(store_, {mirror(a(), b(), "d")}));
  ASSERT_EQ(::chmod(at("a", "d").c_str(), 0700), 0);
  take_away("b");
  ASSERT_TRUE(replay_intents(store_, *pool_));
  EXPECT_EQ(intents_in(store_), 1u) << "b's copy never learns its new mode";
  bring_back("b");
  ASSERT_TRUE(replay_intents(store_, *pool_));
  EXPECT_EQ(shown(), "a/d/ 700\nb/d/ 700\n");
}

// The intent of a rename over a file of another tier: the old file may be removed only after the
// new one has the name.
TEST_F(ReplayTest, RemovesNothingBeforeEarlierStepsAreDone) {
  dir_.make_file("a/src", "new");
  dir_.make_file("b/dst", "old");
  const std::vector steps{step(Kind::Rename, a(), "src", "dst"), step(Kind::Unlink, b(), "dst")};
  ASSERT_TRUE(announce(store_, steps));
  take_away("a");
  ASSERT_TRUE(replay_intents(store_, *pool_));
  EXPECT_TRUE(test::exists(at("b", "dst"))) << "removed while the new file is not there";
  EXPECT_EQ(intents_in(store_), 1u);
  bring_back("a");
  ASSERT_TRUE(replay_intents(store_, *pool_));
  EXPECT_EQ(shown(), "a/dst 644 \"new\"\n");
}

TEST_F(ReplayTest, RemovesNothingAfterAStepThatFails) {
  dir_.make_file("a/src", "new");
  dir_.make_file("b/dst", "old");
  const std::vector steps{step(Kind::Rename, a(), "src", "dst"), step(Kind::Unlink, b(), "dst")};
  dir_.make_dir("a/dst");  // this makes the rename fail
  ASSERT_TRUE(announce(store_, steps));
  ASSERT_TRUE(replay_intents(store_, *pool_));
  EXPECT_TRUE(test::exists(at("a", "src")));
  EXPECT_TRUE(test::exists(at("b", "dst"))) << "removed although the new file has not its name";
}

// A daemon undid a failed operation, and crashed or failed to clear the intent. The caller was told
// that the operation failed.
TEST_F(ReplayTest, OfAFailedOperationLeavesNoPartOfIt) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("b/d/g", "2");
  dir_.make_file("b/e", "in the way");
  const std::string before = shown();
  const std::vector steps{step(Kind::Rename, a(), "d", "e"), step(Kind::Rename, b(), "d", "e")};
  store_.fail_call(2);  // 1: begin, 2: clear
  EXPECT_FALSE(execute(store_, *pool_, steps));
  ASSERT_TRUE(store_.has_failed());
  EXPECT_EQ(shown(), before);
  ASSERT_TRUE(replay_intents(store_, *pool_));
  EXPECT_EQ(shown(), before) << "the directory now has two names";
}

TEST_F(ReplayTest, AFailedStepIsReportedEvenIfTheStoreFailsToo) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("b/d/g", "2");
  dir_.make_file("b/e", "in the way");
  const std::vector steps{step(Kind::Rename, a(), "d", "e"), step(Kind::Rename, b(), "d", "e")};
  store_.fail_call(2);
  EXPECT_TRUE(failed_with(execute(store_, *pool_, steps), EEXIST));
}

}  // namespace
}  // namespace sluice
