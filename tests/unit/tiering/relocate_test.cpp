// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/relocate.hpp"

#include <sys/fsuid.h>
#include <sys/xattr.h>

#include <array>
#include <set>

#include "base/user_room.hpp"
#include "tests/support/loop_fs.hpp"
#include "tests/unit/tiering/pools.hpp"

namespace sluice {
namespace {

using test::MemoryStore;
using test::open_directory;
using test::open_file;

// A file on tier a, to be moved to tier b.
class RelocateTest : public test::PoolTest {
 protected:
  void prepare() override {
    settings_ = make_tiers("ab");
    pool_ = open(settings_);
    dir_.make_dir("a/d");
    dir_.make_dir("b/d");
    make_source();
  }

  void make_source() {
    test::write_file(at("a", "d/f"), test::pattern(100'000, 1));
    const auto fd = open_file(at("a", "d/f"));
    ASSERT_EQ(::pwrite(fd.get(), "end", 3, 8 << 20), 3);
    ASSERT_EQ(::fchown(fd.get(), 12, 34), 0);
    ASSERT_EQ(::fchmod(fd.get(), 04751), 0);
    ASSERT_EQ(::fsetxattr(fd.get(), "user.k", "v", 1, 0), 0);
    const std::array<timespec, 2> times{timespec{1000, 1}, timespec{2000, 2}};
    ASSERT_EQ(::futimens(fd.get(), times.data()), 0);
    identity_ = identity_of(a(), at("a", "d/f"));
    source_ = test::lstat_of(at("a", "d/f"));
    content_ = test::read_file(at("a", "d/f"));
    // Reading changed atime if the mount is strictatime; read the times as the copier will see
    // them.
    source_ = test::lstat_of(at("a", "d/f"));
  }

  Tier& a() const { return (*pool_)[0]; }
  Tier& b() const { return (*pool_)[1]; }

  Result<HiddenCopy> hide() const {
    return make_hidden_copy(open_file(at("a", "d/f"), O_RDONLY).get(), identity_, b());
  }
  // The steps that switch the names to `copy`.
  std::vector<Step> steps_of(const HiddenCopy& copy) const {
    EXPECT_TRUE(sync_copy(copy));
    const auto steps = relocation_steps(
        copy, a(), b(),
        {{open_directory(at("a", "d")).get(), open_directory(at("b", "d")).get(), "f"}});
    EXPECT_TRUE(steps);
    return *steps;
  }
  Result<void> switch_over(Store& store, const HiddenCopy& copy) const {
    const auto ends = SLUICE_TRY(
        execute_moves(store, *pool_, {steps_of(copy)}, [](std::size_t) { return KeptTimes{}; }));
    return ends[0].result;
  }

  void expect_moved() const {
    EXPECT_FALSE(test::exists(at("a", "d/f")));
    ASSERT_TRUE(test::exists(at("b", "d/f")));
    EXPECT_TRUE(test::names_in(at("b", ".sluice/tmp")).empty());
    const struct stat moved = test::lstat_of(at("b", "d/f"));
    EXPECT_EQ(moved.st_mode, source_.st_mode);
    EXPECT_EQ(moved.st_uid, 12u);
    EXPECT_EQ(moved.st_gid, 34u);
    EXPECT_EQ(moved.st_nlink, 1u);
    EXPECT_EQ(moved.st_mtim.tv_sec, 2000);
    EXPECT_EQ(moved.st_mtim.tv_nsec, 2);
    EXPECT_EQ(moved.st_blocks, source_.st_blocks) << "holes";
    EXPECT_EQ(test::xattr_of(at("b", "d/f"), "user.k"), "v");
    EXPECT_EQ(identity_of(b(), at("b", "d/f")), identity_);
    EXPECT_TRUE(test::read_file(at("b", "d/f")) == content_);
  }
  void expect_not_moved() const {
    EXPECT_FALSE(test::exists(at("b", "d/f")));
    ASSERT_TRUE(test::exists(at("a", "d/f")));
    EXPECT_TRUE(test::read_file(at("a", "d/f")) == content_);
    EXPECT_EQ(identity_of(a(), at("a", "d/f")), identity_);
  }
  // What a mount does first.
  void restart(Store& store) const {
    ASSERT_TRUE(replay_intents(store, *pool_));
    pool_->clear_temporaries();
  }
  bool somewhere() const {
    for (const char* tier : {"a", "b"}) {
      if (test::exists(at(tier, "d/f")) && test::read_file(at(tier, "d/f")) == content_)
        return true;
    }
    return false;
  }

  std::vector<TierSettings> settings_;
  std::unique_ptr<Pool> pool_;
  Identity identity_;
  struct stat source_ {};
  std::string content_;
};

// What users see of the file on tier b and of both copies of its directory.
TEST_F(RelocateTest, ReplayHidesTheMoveFromTheTimes) {
  const auto ns = [](const timespec& time) { return nanoseconds(time); };
  constexpr ShownBefore kShown{.ctime = 5'000'000'000, .birth = 4'000'000'000};
  const InodeId d = identity_of(a(), at("a", "d")).id;
  const struct stat old_a = test::lstat_of(at("a", "d")), old_b = test::lstat_of(at("b", "d"));
  MemoryStore store;
  auto copy = hide();
  ASSERT_TRUE(copy);
  std::vector<Step> steps = steps_of(*copy);
  steps.back().original.shown = kShown;
  ASSERT_TRUE(announce(store, steps));
  restart(store);
  expect_moved();
  struct stat file = test::lstat_of(at("b", "d/f"));
  const auto times = store.times(identity_.id);
  ASSERT_TRUE(times);
  show_times(*times, b().member().slot, file);
  EXPECT_EQ(ns(file.st_ctim), kShown.ctime);
  EXPECT_EQ(times->copies.at(0).birth, kShown.birth);
  struct stat new_a = test::lstat_of(at("a", "d"));
  EXPECT_NE(ns(new_a.st_ctim), ns(old_a.st_ctim));
  show_times(*store.times(d), a().member().slot, new_a);
  EXPECT_EQ(ns(new_a.st_ctim), ns(old_a.st_ctim));
  EXPECT_EQ(ns(new_a.st_mtim), ns(old_a.st_mtim));
  struct stat new_b = test::lstat_of(at("b", "d"));
  show_times(*store.times(identity_of(b(), at("b", "d")).id), b().member().slot, new_b);
  EXPECT_EQ(ns(new_b.st_ctim), ns(old_b.st_ctim));
  EXPECT_EQ(ns(new_b.st_mtim), ns(old_b.st_mtim));
}

// A user may have changed the copy since a daemon stored its times.
TEST_F(RelocateTest, ReplayDoesNotReplaceTimesOfTheCopy) {
  MemoryStore store;
  auto copy = hide();
  ASSERT_TRUE(copy);
  std::vector<Step> steps = steps_of(*copy);
  steps.back().original.shown = {.ctime = 5'000'000'000, .birth = 4'000'000'000};
  KeptTimes kept{.is_directory = false, .copies = {{.slot = 2, .ctime = 1, .shown_ctime = 2}}};
  ASSERT_EQ(b().member().slot, 2u);
  ASSERT_TRUE(store.keep_times({{identity_.id, kept}}));
  ASSERT_TRUE(announce(store, steps));
  restart(store);
  expect_moved();
  EXPECT_EQ(*store.times(identity_.id), kept);
}

TEST_F(RelocateTest, MovesAFileWithAllItsAttributes) {
  MemoryStore store;
  const auto copy = hide();
  ASSERT_TRUE(copy) << copy.error().operation;
  ASSERT_TRUE(switch_over(store, *copy));
  expect_moved();
  EXPECT_EQ(intents_in(store), 0u);
}

TEST_F(RelocateTest, TheHiddenCopyIsCompleteAndInvisible) {
  const auto copy = hide();
  ASSERT_TRUE(copy);
  expect_not_moved();
  EXPECT_EQ(test::names_in(at("b", ".sluice/tmp")), std::vector<std::string>{copy->name});
  EXPECT_TRUE(test::read_file(at("b", ".sluice/tmp/" + copy->name)) == content_);
  EXPECT_EQ(copy->located.identity, identity_);
  EXPECT_EQ(copy->located.tier, 1);
  EXPECT_EQ(::fcntl(copy->fd.get(), F_GETFL) & O_ACCMODE, O_RDWR);
  EXPECT_TRUE(b().open(copy->located.handle, O_RDONLY));
  discard(*copy, b());
  EXPECT_TRUE(test::names_in(at("b", ".sluice/tmp")).empty());
}

TEST_F(RelocateTest, TheIdentityIsKeptAcrossARemountAndASecondMove) {
  MemoryStore store;
  ASSERT_TRUE(switch_over(store, *hide()));
  pool_.reset();
  pool_ = open(settings_);
  EXPECT_EQ(identity_of(b(), at("b", "d/f")), identity_);
  // Move it back.
  const auto copy = make_hidden_copy(open_file(at("b", "d/f"), O_RDONLY).get(), identity_, a());
  ASSERT_TRUE(copy);
  const auto steps = relocation_steps(
      *copy, b(), a(),
      {{open_directory(at("b", "d")).get(), open_directory(at("a", "d")).get(), "f"}});
  ASSERT_TRUE(steps);
  ASSERT_TRUE(execute(store, *pool_, *steps));
  EXPECT_EQ(identity_of(a(), at("a", "d/f")), identity_);
  EXPECT_FALSE(test::exists(at("b", "d/f")));
}

TEST_F(RelocateTest, ATierThatIsTooSmallIsNotChanged) {
  if (!test::require_loop("unit", "ext4")) return;
  const test::LoopFs small(dir_ / "small", "ext4", 4 << 20);
  const auto other = open({tier("s", small.path())});
  test::write_file(at("a", "d/f"), test::pattern(8 << 20, 2));
  const auto copy =
      make_hidden_copy(open_file(at("a", "d/f"), O_RDONLY).get(), identity_, (*other)[0]);
  EXPECT_TRUE(failed_with(copy, ENOSPC));
  EXPECT_TRUE(test::names_in(small.path() + "/.sluice/tmp").empty());
}

TEST_F(RelocateTest, AnExistingNameIsNotReplaced) {
  test::write_file(at("b", "d/f"), "other");
  MemoryStore store;
  const auto copy = hide();
  ASSERT_TRUE(copy);
  EXPECT_TRUE(failed_with(switch_over(store, *copy), EEXIST));
  EXPECT_EQ(test::read_file(at("b", "d/f")), "other");
  EXPECT_TRUE(test::exists(at("a", "d/f")));
  EXPECT_EQ(intents_in(store), 0u);
}

// Only where the number of a user gives root's room away. The server of a network or FUSE
// filesystem would refuse what somebody who is not root does to files of others.
TEST_F(RelocateTest, ACopyIsMadeAsNobodyOnlyWhereThatCounts) {
  const auto numbers_on = [&](Tier& tier) {
    std::set<int> numbers;
    const auto note = [&](std::uint64_t) -> Result<void> {
      numbers.insert(::setfsuid(static_cast<uid_t>(-1)));  // sets nothing
      return {};
    };
    const auto copy =
        make_hidden_copy(open_file(at("a", "d/f"), O_RDONLY).get(), identity_, tier, note);
    EXPECT_TRUE(copy);
    EXPECT_EQ(::setfsuid(static_cast<uid_t>(-1)), 0);
    return numbers;
  };
  if (!test::require_loop("unit", "ext4") || !test::require_loop("unit", "xfs")) return;
  const test::LoopFs by_number(dir_ / "c", "ext4", 16 << 20), others(dir_ / "e", "xfs", 320 << 20);
  const auto more = open({tier("c", by_number.path()), tier("e", others.path())});
  EXPECT_EQ(numbers_on((*more)[0]), std::set<int>{static_cast<int>(kNobody)});
  EXPECT_EQ(numbers_on((*more)[1]), std::set<int>{0});
}

TEST_F(RelocateTest, NothingMovesIfKilledBeforeTheIntent) {
  MemoryStore store;
  ASSERT_TRUE(hide());
  restart(store);
  expect_not_moved();
  EXPECT_TRUE(test::names_in(at("b", ".sluice/tmp")).empty());
}

TEST_F(RelocateTest, ReplayFinishesAMoveKilledAfterAnyStep) {
  for (std::size_t done = 0; done <= 2; ++done) {
    if (done > 0) {
      ASSERT_EQ(::unlink(at("b", "d/f").c_str()), 0);
      make_source();
    }
    MemoryStore store, ignored;
    const auto copy = hide();
    ASSERT_TRUE(copy);
    const auto steps = steps_of(*copy);
    ASSERT_EQ(steps.size(), 2u);
    ASSERT_TRUE(announce(store, steps));
    for (std::size_t i = 0; i < done; ++i) ASSERT_TRUE(execute(ignored, *pool_, {steps[i]}));
    EXPECT_TRUE(somewhere()) << "after step " << done;
    restart(store);
    expect_moved();
    EXPECT_EQ(intents_in(store), 0u);
    restart(store);
    expect_moved();
  }
}

TEST_F(RelocateTest, NoFileIsLostWhicheverStoreCallFails) {
  for (const auto failure : {MemoryStore::Failure::Once, MemoryStore::Failure::ForGood}) {
    for (std::uint64_t nth = 1;; ++nth) {
      ASSERT_LT(nth, 100u);
      ::unlink(at("b", "d/f").c_str());
      make_source();
      MemoryStore store;
      store.fail_call(nth, EIO, failure);
      const auto copy = hide();
      ASSERT_TRUE(copy);
      if (!switch_over(store, *copy)) discard(*copy, b());
      EXPECT_TRUE(somewhere()) << "call " << nth;
      const bool failed = store.has_failed();
      store.fail_call(0);
      restart(store);
      EXPECT_TRUE(somewhere()) << "call " << nth << ", after replay";
      EXPECT_EQ(intents_in(store), 0u);
      if (!failed) break;
    }
  }
}

// A store may keep an intent although begin_intent() failed (docs/metadata-format.md, "intent"),
// and a cleared intent may come back after a crash. Then the copy does not exist any more.
TEST_F(RelocateTest, ReplayWithoutTheCopyKeepsTheSource) {
  MemoryStore store;
  const auto copy = hide();
  ASSERT_TRUE(copy);
  ASSERT_TRUE(announce(store, steps_of(*copy)));
  discard(*copy, b());
  restart(store);
  EXPECT_TRUE(somewhere()) << "the only copy was removed";
}

TEST_F(RelocateTest, ReplayOfAFailedMoveKeepsTheSource) {
  test::write_file(at("b", "d/f"), "in the way");
  MemoryStore store;
  const auto copy = hide();
  ASSERT_TRUE(copy);
  store.fail_call(2);  // 1: begin, 2: clear
  EXPECT_FALSE(switch_over(store, *copy));
  discard(*copy, b());  // as the relocator does after a failure
  restart(store);
  EXPECT_TRUE(somewhere()) << "the only copy was removed";
}

TEST_F(RelocateTest, ReplayThatCannotPlaceTheCopyKeepsTheSource) {
  MemoryStore store;
  const auto copy = hide();
  ASSERT_TRUE(copy);
  ASSERT_TRUE(announce(store, steps_of(*copy)));
  test::write_file(at("b", "d/f"), "in the way");
  restart(store);
  EXPECT_TRUE(somewhere()) << "the only copy was removed";
}

TEST_F(RelocateTest, ReplayKeepsTheSourceIfAPowerCutUndidTheTargetDirectory) {
  MemoryStore store;
  {
    const auto copy = hide();
    ASSERT_TRUE(copy);
    ASSERT_TRUE(announce(store, steps_of(*copy)));
  }
  ASSERT_EQ(::rename(at("b", "d").c_str(), at("b", ".sluice/tmp/unnamed").c_str()), 0);
  restart(store);
  expect_not_moved();
  EXPECT_TRUE(test::names_in(at("b", ".sluice/tmp")).empty());
  EXPECT_EQ(intents_in(store), 0u);
}

TEST_F(RelocateTest, ReplayWhileTheTargetIsOfflineKeepsTheSource) {
  MemoryStore store;
  const auto copy = hide();
  ASSERT_TRUE(copy);
  ASSERT_TRUE(announce(store, steps_of(*copy)));
  ASSERT_EQ(::rename((dir_ / "b").c_str(), (dir_ / "away").c_str()), 0);
  ASSERT_TRUE(b().check_presence());
  restart(store);
  EXPECT_TRUE(test::exists(at("a", "d/f"))) << "the file has no name on any tier";
}

// The original may be open for writing, because its tier was online all the time.
TEST_F(RelocateTest, ReplayWhenTheTargetIsBackKeepsTheSource) {
  for (const std::size_t done : {0, 1}) {
    MemoryStore store, ignored;
    const auto copy = hide();
    ASSERT_TRUE(copy);
    const auto steps = steps_of(*copy);
    ASSERT_TRUE(announce(store, steps));
    for (std::size_t i = 0; i < done; ++i) ASSERT_TRUE(execute(ignored, *pool_, {steps[i]}));
    ASSERT_TRUE(replay_intents(store, *pool_, {.returned = b().index(), .exclude = {}}));
    EXPECT_EQ(intents_in(store), 0u);
    pool_->clear_temporaries();
    expect_not_moved();
  }
}

TEST_F(RelocateTest, ReplayKeepsTheServedCopyWhenTheSourceIsBack) {
  MemoryStore store, ignored;
  const auto copy = hide();
  ASSERT_TRUE(copy);
  const auto steps = steps_of(*copy);
  ASSERT_TRUE(announce(store, steps));
  ASSERT_TRUE(execute(ignored, *pool_, {steps[0]}));
  ASSERT_TRUE(replay_intents(store, *pool_, {.returned = a().index(), .exclude = {}}));
  expect_moved();
}

TEST_F(RelocateTest, ReplaySkipsIntentsThatOthersFinish) {
  MemoryStore store;
  const auto copy = hide();
  ASSERT_TRUE(copy);
  const auto sequence = announce(store, steps_of(*copy));
  ASSERT_TRUE(sequence);
  ASSERT_TRUE(replay_intents(store, *pool_, {.returned = b().index(), .exclude = {*sequence}}));
  EXPECT_EQ(intents_in(store), 1u);
  expect_not_moved();
}

}  // namespace
}  // namespace sluice
