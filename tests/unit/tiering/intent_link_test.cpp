// SPDX-License-Identifier: BSD-2-Clause
// Intents of files with several names: links, the order of removals, and several intents at once.
#include <linux/fs.h>
#include <sys/ioctl.h>

#include "tests/unit/tiering/pools.hpp"
#include "tiering/move/intent.hpp"
#include "tiering/move/relocate.hpp"

namespace sluice {
namespace {

using Kind = Step::Kind;
using test::MemoryStore;
using test::open_directory;
using test::open_file;

constexpr const char* kBefore =
    "a/d/ 755\na/d/x 644 \"content\"\na/e/ 755\na/e/y 644 \"content\"\nb/d/ 755\nb/e/ 755\n";
constexpr const char* kAfter =
    "a/d/ 755\na/e/ 755\nb/d/ 755\nb/d/x 644 \"content\"\nb/e/ 755\nb/e/y 644 \"content\"\n";

// A file of tier a with the names d/x and e/y, and a copy of it on tier b.
class LinkedMoveTest : public test::PoolTest {
 protected:
  Result<void> move(const std::vector<Step>& steps) {
    const auto ends =
        SLUICE_TRY(execute_moves(store_, *pool_, {steps}, [](std::size_t) { return KeptTimes{}; }));
    return ends[0].result;
  }
  void prepare() override {
    pool_ = open(make_tiers("ab"));
    for (const char* path : {"a/d", "a/e", "b/d", "b/e"}) dir_.make_dir(path);
    make_file_and_copy();
  }
  void make_file_and_copy() {
    dir_.make_file("a/d/x", "content");
    ASSERT_EQ(::link(at("a", "d/x").c_str(), at("a", "e/y").c_str()), 0);
    const Identity identity = identity_of(a(), at("a", "d/x"));
    auto copy = make_hidden_copy(open_file(at("a", "d/x"), O_RDONLY).get(), identity, b());
    ASSERT_TRUE(copy);
    copy_ = *std::move(copy);
    steps_ = steps_to({{"d", "x"}, {"e", "y"}});
    ASSERT_EQ(steps_.size(), 4u);
  }
  void TearDown() override {
    for (const char* path : {"a/d", "a/e"}) set_immutable(path, false);
  }

  Tier& a() const { return (*pool_)[0]; }
  Tier& b() const { return (*pool_)[1]; }

  std::vector<Step> steps_to(const std::vector<std::pair<std::string, std::string>>& names) const {
    std::vector<UniqueFd> open;
    std::vector<NamePlaces> places;
    for (const auto& [directory, name] : names) {
      open.push_back(open_directory(at("a", directory)));
      open.push_back(open_directory(at("b", directory)));
      places.push_back({open[open.size() - 2].get(), open.back().get(), name});
    }
    const auto steps = relocation_steps(copy_, a(), b(), places);
    if (!steps) throw std::runtime_error(steps.error().operation);
    return *steps;
  }
  // Executes the first steps, as a daemon that was killed after them.
  void do_first(std::size_t count) const {
    MemoryStore ignored;
    for (std::size_t i = 0; i < count; ++i) ASSERT_TRUE(execute(ignored, *pool_, {steps_[i]})) << i;
  }
  // What a mount does first.
  void restart() {
    ASSERT_TRUE(replay_intents(store_, *pool_));
    pool_->clear_temporaries();
  }
  void set_immutable(const std::string& path, bool on) const {
    const auto fd = open_directory(dir_ / path);
    int flags = 0;
    if (::ioctl(fd.get(), FS_IOC_GETFLAGS, &flags) < 0) return;
    flags = on ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
    ::ioctl(fd.get(), FS_IOC_SETFLAGS, &flags);
  }
  bool can_be_immutable() const {
    return test::require("unit", test::on_ext4(dir_.path()), "needs ext4's immutable flag");
  }

  MemoryStore store_;
  std::unique_ptr<Pool> pool_;
  HiddenCopy copy_;
  std::vector<Step> steps_;
};

TEST_F(LinkedMoveTest, GivesTheCopyAllNamesOfTheOriginal) {
  ASSERT_TRUE(move(steps_));
  EXPECT_EQ(shown(), kAfter);
  EXPECT_EQ(test::lstat_of(at("b", "d/x")).st_ino, test::lstat_of(at("b", "e/y")).st_ino);
  EXPECT_EQ(test::lstat_of(at("b", "d/x")).st_nlink, 2u);
  EXPECT_EQ(intents_in(store_), 0u);
}

TEST_F(LinkedMoveTest, IsFinishedByReplayAfterACrashAtAnyStep) {
  for (std::size_t done = 0; done <= steps_.size(); ++done) {
    if (done > 0) {
      for (const char* path : {"b/d/x", "b/e/y"}) ASSERT_EQ(::unlink((dir_ / path).c_str()), 0);
      make_file_and_copy();
    }
    ASSERT_TRUE(announce(store_, steps_));
    do_first(done);
    restart();
    EXPECT_EQ(shown(), kAfter) << "cut off after step " << done;
    EXPECT_EQ(intents_in(store_), 0u);
  }
}

TEST_F(LinkedMoveTest, ReplayedWhenFinishedChangesNothing) {
  ASSERT_TRUE(move(steps_));
  ASSERT_TRUE(announce(store_, steps_));  // as if a crash had lost the clearing
  restart();
  EXPECT_EQ(shown(), kAfter);
}

TEST_F(LinkedMoveTest, ALinkToAnExistingNameUndoesTheMove) {
  dir_.make_file("b/e/y", "in the way");
  EXPECT_TRUE(failed_with(move(steps_), EEXIST));
  EXPECT_EQ(shown(), kBefore + std::string("b/e/y 644 \"in the way\"\n"));
  EXPECT_EQ(test::names_in(at("b", ".sluice/tmp")), std::vector<std::string>{copy_.name});
}

TEST_F(LinkedMoveTest, ALinkIsUndoneWithTheRest) {
  // A third name, which exists already on the target tier.
  ASSERT_EQ(::link(at("a", "d/x").c_str(), at("a", "d/z").c_str()), 0);
  dir_.make_file("b/d/z", "in the way");
  EXPECT_TRUE(failed_with(move(steps_to({{"d", "x"}, {"e", "y"}, {"d", "z"}})), EEXIST));
  EXPECT_FALSE(test::exists(at("b", "d/x")) || test::exists(at("b", "e/y")));
  EXPECT_EQ(test::lstat_of(at("a", "d/x")).st_nlink, 3u);
}

TEST_F(LinkedMoveTest, LinkingAMissingFileFails) {
  Step link;
  link.kind = Kind::Link;
  link.from = place(a(), "d/missing");
  link.to = place(a(), "d/new");
  link.subject = identity_of(a(), at("a", "d/x"));
  EXPECT_TRUE(failed_with(execute(store_, *pool_, {link}), ESTALE));
  EXPECT_EQ(shown(), kBefore);
}

TEST_F(LinkedMoveTest, RemovesNothingBeforeAllNamesAreInPlace) {
  int calls = 0;
  const auto ends = execute_moves(store_, *pool_, {steps_}, [&](std::size_t i) {
    ++calls;
    EXPECT_EQ(i, 0u);
    for (const char* path : {"a/d/x", "a/e/y", "b/d/x", "b/e/y"})
      EXPECT_EQ(test::read_file(dir_ / path), "content") << path;
    EXPECT_EQ(intents_in(store_), 1u);
    return KeptTimes{};
  });
  ASSERT_TRUE(ends);
  EXPECT_TRUE(ends->at(0).result);
  EXPECT_TRUE(ends->at(0).is_finished);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(shown(), kAfter);
}

TEST_F(LinkedMoveTest, AChangedOriginalIsKeptAndTheCopyIsRemoved) {
  const auto ends = execute_moves(store_, *pool_, {steps_}, [&](std::size_t) {
    test::write_file(at("a", "d/x"), "changed on its tier");
    return KeptTimes{};
  });
  ASSERT_TRUE(ends);
  EXPECT_TRUE(failed_with(ends->at(0).result, EUCLEAN));
  EXPECT_TRUE(ends->at(0).is_finished);
  EXPECT_EQ(test::read_file(at("a", "d/x")), "changed on its tier");
  EXPECT_EQ(test::read_file(at("a", "e/y")), "changed on its tier");
  EXPECT_FALSE(test::exists(at("b", "d/x")) || test::exists(at("b", "e/y")));
}

TEST_F(LinkedMoveTest, ReplayKeepsBothIfBothWereChanged) {
  ASSERT_TRUE(announce(store_, steps_));
  do_first(2);
  test::write_file(at("a", "d/x"), "changed on its tier");
  test::write_file(at("b", "d/x"), "changed, too");
  restart();
  EXPECT_EQ(test::read_file(at("a", "d/x")), "changed on its tier");
  EXPECT_EQ(test::read_file(at("b", "d/x")), "changed, too");
  EXPECT_EQ(intents_in(store_), 0u);
}

TEST_F(LinkedMoveTest, ReplayRemovesTheOriginalIfOnlyTheCopyWasChanged) {
  ASSERT_TRUE(announce(store_, steps_));
  do_first(2);
  test::write_file(at("b", "d/x"), "written after the move");
  restart();
  EXPECT_FALSE(test::exists(at("a", "d/x")) || test::exists(at("a", "e/y")));
  EXPECT_EQ(test::read_file(at("b", "e/y")), "written after the move");
}

TEST_F(LinkedMoveTest, ReplayKeepsAnOriginalThatDiffersFromItsCopy) {
  ASSERT_TRUE(announce(store_, steps_));
  do_first(2);
  test::write_file(at("a", "d/x"), "changed on its tier");
  restart();
  restart();
  EXPECT_EQ(test::read_file(at("a", "d/x")), "changed on its tier");
  EXPECT_FALSE(test::exists(at("b", "d/x")) || test::exists(at("b", "e/y")));
}

TEST_F(LinkedMoveTest, ReplayKeepsANewerOriginalOfTheSameSize) {
  ASSERT_TRUE(announce(store_, steps_));
  test::write_file(at("a", "d/x"), "CONTENT");
  restart();
  EXPECT_EQ(test::read_file(at("a", "d/x")), "CONTENT");
}

TEST_F(LinkedMoveTest, IsUndoneIfTheFirstNameCannotBeRemoved) {
  if (!can_be_immutable()) return;
  set_immutable("a/d", true);
  const auto done = move(steps_);
  EXPECT_TRUE(failed_with(done, EPERM));
  EXPECT_EQ(shown(), kBefore);
}

TEST_F(LinkedMoveTest, KeepsTheCopyIfTheSecondNameCannotBeRemoved) {
  if (!can_be_immutable()) return;
  set_immutable("a/e", true);
  [[maybe_unused]] const auto done = move(steps_);
  EXPECT_FALSE(test::exists(at("a", "d/x")));
  EXPECT_EQ(test::read_file(at("b", "d/x")), "content");
  EXPECT_EQ(test::read_file(at("b", "e/y")), "content");
}

// The daemon was killed after the first removal. Then another file took the copy's second name.
// Removing the copy would leave the file without a name.
TEST_F(LinkedMoveTest, UndoKeepsTheCopyIfANameOfTheOriginalIsGone) {
  ASSERT_TRUE(announce(store_, steps_));
  do_first(3);
  ASSERT_FALSE(test::exists(at("a", "d/x")));
  ASSERT_EQ(::unlink(at("b", "e/y").c_str()), 0);
  dir_.make_file("b/e/y", "in the way");
  restart();
  EXPECT_EQ(test::read_file(at("b", "d/x")), "content");
  EXPECT_EQ(test::read_file(at("a", "e/y")), "content");
  EXPECT_EQ(test::read_file(at("b", "e/y")), "in the way");
}

// Whichever step is the last before a crash, each name has the content on some tier.
TEST_F(LinkedMoveTest, EveryNameExistsAtEveryMoment) {
  for (std::size_t done = 0; done <= steps_.size(); ++done) {
    if (done > 0) do_first(done);
    for (const char* name : {"d/x", "e/y"})
      EXPECT_TRUE(test::exists(at("a", name)) || test::exists(at("b", name))) << name << done;
  }
}

class SeveralMovesTest : public test::PoolTest {
 protected:
  void prepare() override { pool_ = open(make_tiers("ab")); }
  std::vector<Step> make(const std::string& name) {
    dir_.make_file("a/" + name, name);
    const auto file = test::open_file(at("a", name), O_RDONLY);
    auto copy = make_hidden_copy(file.get(), identity_of((*pool_)[0], at("a", name)), (*pool_)[1]);
    EXPECT_TRUE(copy && sync_copy(*copy));
    return *relocation_steps(
        *copy, (*pool_)[0], (*pool_)[1],
        {{test::open_directory(at("a", "")).get(), test::open_directory(at("b", "")).get(), name}});
  }

  MemoryStore store_;
  std::unique_ptr<Pool> pool_;
};

TEST_F(SeveralMovesTest, ShareWritesToTheStore) {
  const std::vector<std::vector<Step>> moves{make("f"), make("g")};
  store_.fail_call(0);
  const auto ends = execute_moves(store_, *pool_, moves, [](std::size_t) { return KeptTimes{}; });
  ASSERT_TRUE(ends);
  EXPECT_EQ(store_.calls(), 2u);  // begin and clear
  EXPECT_EQ(shown(), "b/f 644 \"f\"\nb/g 644 \"g\"\n");
  EXPECT_EQ(intents_in(store_), 0u);
}

TEST_F(SeveralMovesTest, OneFailureDoesNotAffectTheOthers) {
  const std::vector<std::vector<Step>> moves{make("f"), make("g"), make("h")};
  dir_.make_file("b/g", "in the way");
  std::vector<std::size_t> removing;
  const auto ends = execute_moves(store_, *pool_, moves, [&](std::size_t i) {
    removing.push_back(i);
    return KeptTimes{};
  });
  ASSERT_TRUE(ends);
  ASSERT_EQ(ends->size(), 3u);
  EXPECT_TRUE((*ends)[0].result);
  EXPECT_TRUE(failed_with((*ends)[1].result, EEXIST));
  EXPECT_TRUE((*ends)[2].result);
  EXPECT_EQ(removing, (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(shown(), "a/g 644 \"g\"\nb/f 644 \"f\"\nb/g 644 \"in the way\"\nb/h 644 \"h\"\n");
  EXPECT_EQ(intents_in(store_), 0u);
}

}  // namespace
}  // namespace sluice
