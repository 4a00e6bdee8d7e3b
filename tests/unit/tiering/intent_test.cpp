// SPDX-License-Identifier: BSD-2-Clause
// Executing intents: every kind of step, failures in the middle, a store that fails.
#include "tiering/move/intent.hpp"

#include <sys/xattr.h>

#include <functional>
#include <ostream>

#include "tests/support/tree.hpp"
#include "tests/unit/tiering/pools.hpp"

namespace sluice {
namespace {

using Kind = Step::Kind;
using test::MemoryStore;

// Operations on two tiers as the filesystem makes them, and their results.
struct Scenario {
  const char* name;
  std::vector<std::string> before;  // "a/d/f=content", "a/d/" for a directory
  std::function<std::vector<Step>(Tier& a, Tier& b)> steps;
  std::string after;

  friend void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }
};

class OperationTest : public test::PoolTest, public testing::WithParamInterface<Scenario> {
 public:
  static std::vector<Scenario> all() {
    return {
        {"RenameADirectory",
         {"a/d/f=1", "b/d/g=2"},
         [](Tier& a, Tier& b) {
           return std::vector{step(Kind::Rename, a, "d", "e"), step(Kind::Rename, b, "d", "e")};
         },
         "a/e/ 755\na/e/f 644 \"1\"\nb/e/ 755\nb/e/g 644 \"2\"\n"},
        {"RenameOverAFileOnAnotherTier",
         {"a/d/", "a/src=1", "b/d/dst=2"},
         [](Tier& a, Tier& b) {
           return std::vector{step(Kind::Rename, a, "src", "d/dst"),
                              step(Kind::Unlink, b, "d/dst")};
         },
         "a/d/ 755\na/d/dst 644 \"1\"\nb/d/ 755\n"},
        {"ReplaceAFileOnEachTier",
         {"a/x=1", "a/y=2", "b/x=3", "b/y=4"},
         [](Tier& a, Tier& b) {
           return std::vector{step(Kind::Replace, a, "x", "y"), step(Kind::Replace, b, "x", "y")};
         },
         "a/y 644 \"1\"\nb/y 644 \"3\"\n"},
        {"ReplaceAnEmptyDirectory",
         {"a/d/f=1", "a/e/", "b/d/g=2", "b/e/"},
         [](Tier& a, Tier& b) {
           return std::vector{step(Kind::Replace, a, "d", "e"), step(Kind::Replace, b, "d", "e")};
         },
         "a/e/ 755\na/e/f 644 \"1\"\nb/e/ 755\nb/e/g 644 \"2\"\n"},
        {"RenameOverAnEmptyDirectoryOnAnotherTier",
         {"a/d/f=1", "b/e/"},
         [](Tier& a, Tier& b) {
           return std::vector{step(Kind::Rename, a, "d", "e"), step(Kind::Rmdir, b, "e")};
         },
         "a/e/ 755\na/e/f 644 \"1\"\n"},
        {"ExchangeFilesOfTwoTiers",
         {"a/x=1", "b/y=2"},
         [](Tier& a, Tier& b) {
           return std::vector{step(Kind::Rename, a, "x", "y"), step(Kind::Rename, b, "y", "x")};
         },
         "a/y 644 \"1\"\nb/x 644 \"2\"\n"},
        {"ExchangeDirectories",
         {"a/d/f=1", "a/e/", "b/d/", "b/e/g=2"},
         [](Tier& a, Tier& b) {
           return std::vector{step(Kind::Exchange, a, "d", "e"), step(Kind::Exchange, b, "d", "e")};
         },
         "a/d/ 755\na/e/ 755\na/e/f 644 \"1\"\nb/d/ 755\nb/d/g 644 \"2\"\nb/e/ 755\n"},
        {"MirrorADirectory",
         {"a/d/", "b/d/f=1"},
         [](Tier& a, Tier& b) {
           ::chmod((a.path() + "/d").c_str(), 02750);
           ::setxattr((a.path() + "/d").c_str(), "user.k", "v", 1, 0);
           return std::vector{mirror(a, b, "d")};
         },
         "a/d/ 2750 k=v\nb/d/ 2750 k=v\nb/d/f 644 \"1\"\n"},
    };
  }

 protected:
  // Opens a new pool on new directories with the files that the operation needs.
  void start() {
    pool_.reset();
    test::remove_tree(dir_ / "a");
    test::remove_tree(dir_ / "b");
    pool_ = open(make_tiers("ab"));
    for (const std::string& item : GetParam().before) {
      const std::size_t equals = item.find('=');
      if (equals == std::string::npos) {
        dir_.make_dir(item);
      } else {
        dir_.make_file(item.substr(0, equals), item.substr(equals + 1));
      }
    }
    steps_ = GetParam().steps((*pool_)[0], (*pool_)[1]);
    before_ = shown();
  }

  std::unique_ptr<Pool> pool_;
  std::vector<Step> steps_;
  std::string before_;
};

TEST_P(OperationTest, IsExecuted) {
  start();
  MemoryStore store;
  const auto done = execute(store, *pool_, steps_);
  ASSERT_TRUE(done) << done.error().operation;
  EXPECT_EQ(shown(), GetParam().after);
  EXPECT_EQ(intents_in(store), 0u);
}

TEST_P(OperationTest, IntentIsStoredBeforeTheFirstStep) {
  start();
  MemoryStore store;
  const auto sequence = announce(store, steps_);
  ASSERT_TRUE(sequence);
  EXPECT_EQ(shown(), before_);
  ASSERT_EQ(intents_in(store), 1u);
  EXPECT_EQ(*decode_steps(store.intents()->at(0).bytes), steps_);
  ASSERT_TRUE(complete(store, *pool_, *sequence, steps_));
  EXPECT_EQ(shown(), GetParam().after);
}

TEST_P(OperationTest, IsFinishedByReplayAfterACrashAtAnyStep) {
  start();
  for (std::size_t done = 0; done <= steps_.size(); ++done) {
    if (done > 0) start();
    MemoryStore store, ignored;
    ASSERT_TRUE(announce(store, steps_));
    const std::vector<Step> first(steps_.begin(), steps_.begin() + static_cast<long>(done));
    ASSERT_TRUE(execute(ignored, *pool_, first));
    const auto replayed = replay_intents(store, *pool_);
    ASSERT_TRUE(replayed);
    EXPECT_EQ(*replayed, 1u);
    EXPECT_EQ(shown(), GetParam().after) << "cut off after step " << done;
    EXPECT_EQ(intents_in(store), 0u);
  }
}

TEST_P(OperationTest, ReplayedWhenFinishedChangesNothing) {
  start();
  MemoryStore store;
  ASSERT_TRUE(execute(store, *pool_, steps_));
  for (int again = 0; again < 2; ++again) {
    ASSERT_TRUE(announce(store, steps_));  // as if a crash had lost the clearing
    ASSERT_TRUE(replay_intents(store, *pool_));
    EXPECT_EQ(shown(), GetParam().after);
  }
}

TEST_P(OperationTest, IsAllOrNothingWhicheverStoreCallFails) {
  for (const auto failure : {MemoryStore::Failure::Once, MemoryStore::Failure::ForGood}) {
    for (std::uint64_t nth = 1;; ++nth) {
      ASSERT_LT(nth, 100u);
      start();
      MemoryStore store;
      store.fail_call(nth, EIO, failure);
      const auto done = execute(store, *pool_, steps_);
      const bool failed = store.has_failed();
      const std::string left = shown();
      store.fail_call(0);
      if (intents_in(store) == 0) {
        EXPECT_EQ(left, done ? GetParam().after : before_) << "call " << nth;
      } else {
        EXPECT_TRUE(left == before_ || left == GetParam().after) << "call " << nth << '\n' << left;
        ASSERT_TRUE(replay_intents(store, *pool_));
        EXPECT_EQ(shown(), GetParam().after) << "call " << nth;
        EXPECT_EQ(intents_in(store), 0u);
      }
      if (!failed) break;
    }
  }
}

TEST_P(OperationTest, SucceedsEvenIfItsIntentCannotBeCleared) {
  start();
  MemoryStore store;
  store.fail_call(2);  // 1: begin, 2: clear
  const auto done = execute(store, *pool_, steps_);
  ASSERT_TRUE(store.has_failed());
  ASSERT_EQ(shown(), GetParam().after);
  EXPECT_TRUE(done) << "the caller was told that nothing happened";
}

INSTANTIATE_TEST_SUITE_P(Intents, OperationTest, testing::ValuesIn(OperationTest::all()),
                         [](const testing::TestParamInfo<Scenario>& tested) {
                           return tested.param.name;
                         });

class IntentTest : public test::PoolTest {
 protected:
  void prepare() override { pool_ = open(make_tiers("abc")); }
  Tier& a() const { return (*pool_)[0]; }
  Tier& b() const { return (*pool_)[1]; }
  Tier& c() const { return (*pool_)[2]; }
  std::string all() const { return shown("abc"); }

  std::unique_ptr<Pool> pool_;
  MemoryStore store_;
};

TEST_F(IntentTest, AFailedStepUndoesTheStepsBeforeIt) {
  for (const char* tier : {"a", "b", "c"}) dir_.make_file(std::string(tier) + "/d/f", tier);
  dir_.make_file("c/e", "in the way");
  const std::string before = all();
  const std::vector steps{step(Kind::Rename, a(), "d", "e"), step(Kind::Rename, b(), "d", "e"),
                          step(Kind::Rename, c(), "d", "e")};
  EXPECT_TRUE(failed_with(execute(store_, *pool_, steps), EEXIST));
  EXPECT_EQ(all(), before);
  EXPECT_EQ(intents_in(store_), 0u);
}

TEST_F(IntentTest, AnExchangeIsUndoneToo) {
  dir_.make_file("a/x", "1");
  dir_.make_file("a/y", "2");
  dir_.make_file("b/x", "3");
  dir_.make_file("b/y", "in the way");
  const std::string before = all();
  const std::vector steps{step(Kind::Exchange, a(), "x", "y"), step(Kind::Rename, b(), "x", "y")};
  EXPECT_TRUE(failed_with(execute(store_, *pool_, steps), EEXIST));
  EXPECT_EQ(all(), before);
}

TEST_F(IntentTest, TheFirstFailingStepChangesNothing) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("a/e", "in the way");
  dir_.make_file("b/d/g", "2");
  const std::string before = all();
  const std::vector steps{step(Kind::Rename, a(), "d", "e"), step(Kind::Rename, b(), "d", "e")};
  EXPECT_TRUE(failed_with(execute(store_, *pool_, steps), EEXIST));
  EXPECT_EQ(all(), before);
}

TEST_F(IntentTest, ANonEmptyDirectoryIsNotRemoved) {
  dir_.make_dir("a/d");
  dir_.make_file("b/e/keep", "1");
  const std::string before = all();
  const std::vector steps{step(Kind::Rename, a(), "d", "e"), step(Kind::Rmdir, b(), "e")};
  EXPECT_TRUE(failed_with(execute(store_, *pool_, steps), ENOTEMPTY));
  EXPECT_EQ(all(), before);
}

TEST_F(IntentTest, AStepIsSkippedIfItsNameNowBelongsToAnotherFile) {
  dir_.make_file("a/f", "old");
  const Step unlink = step(Kind::Unlink, a(), "f");
  ASSERT_EQ(::rename(at("a", "f").c_str(), at("a", "moved").c_str()), 0);
  dir_.make_file("a/f", "new");
  ASSERT_TRUE(execute(store_, *pool_, {unlink}));
  EXPECT_EQ(test::read_file(at("a", "f")), "new");
  EXPECT_EQ(test::read_file(at("a", "moved")), "old");
}

TEST_F(IntentTest, APlaceIsFoundAfterARenameOfItsAncestors) {
  dir_.make_file("a/d/e/f", "x");
  const Step rename = step(Kind::Rename, a(), "d/e/f", "d/e/g");
  ASSERT_EQ(::rename(at("a", "d").c_str(), at("a", "elsewhere").c_str()), 0);
  ASSERT_TRUE(execute(store_, *pool_, {rename}));
  EXPECT_EQ(test::read_file(at("a", "elsewhere/e/g")), "x");
}

TEST_F(IntentTest, APlaceWithoutAHandleIsFoundByItsPath) {
  dir_.make_file("a/d/f", "x");
  Step rename = step(Kind::Rename, a(), "d/f", "g");
  rename.from = {a().member().slot, {}, "d", "f"};
  rename.to = {a().member().slot, {}, "", "g"};
  ASSERT_TRUE(execute(store_, *pool_, {rename}));
  EXPECT_EQ(test::read_file(at("a", "g")), "x");
}

TEST_F(IntentTest, APathThatLeavesTheTierIsRejected) {
  dir_.make_file("a/f", "x");
  dir_.make_file("outside/f", "x");
  ASSERT_EQ(::symlink((dir_ / "outside").c_str(), at("a", "link").c_str()), 0);
  Step unlink = step(Kind::Unlink, a(), "f");
  unlink.subject = identity_of(a(), dir_ / "outside/f");
  for (const char* path : {"../outside", "link", "/tmp"}) {
    unlink.from = {a().member().slot, {}, path, "f"};
    EXPECT_FALSE(execute(store_, *pool_, {unlink})) << path;
  }
  EXPECT_TRUE(test::exists(dir_ / "outside/f"));
}

TEST_F(IntentTest, AStepOnAnOfflineTierFailsAndUndoesTheRest) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("b/d/g", "2");
  const std::vector steps{step(Kind::Rename, a(), "d", "e"), step(Kind::Rename, b(), "d", "e")};
  ASSERT_EQ(::rename((dir_ / "b").c_str(), (dir_ / "away").c_str()), 0);
  ASSERT_TRUE(b().check_presence());
  EXPECT_TRUE(failed_with(execute(store_, *pool_, steps), EIO));
  EXPECT_TRUE(test::exists(at("a", "d/f")));
  EXPECT_TRUE(test::exists(dir_ / "away/d/g"));
}

}  // namespace
}  // namespace sluice
