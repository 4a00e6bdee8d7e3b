// SPDX-License-Identifier: BSD-2-Clause
// Moves do not change the times that users see.
#include <sys/stat.h>

#include <array>
#include <thread>
#include <tuple>

#include "tests/unit/fs/moving_filesystem.hpp"
#include "tiering/pool/copier.hpp"

namespace sluice {
namespace {

std::int64_t ns(const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; }
std::int64_t ns(const statx_timestamp& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; }

class ShownTimesTest : public FileMoveTest {
 protected:
  // The results of stat(2) that a move must not change.
  static auto facts(const struct stat& st) {
    return std::tuple(st.st_ino, st.st_mode, st.st_nlink, st.st_uid, st.st_gid, st.st_size,
                      ns(st.st_atim), ns(st.st_mtim), ns(st.st_ctim));
  }
  auto asked(const std::string& path) { return facts(fs_->attributes().get(id_of(path))->st); }
  auto looked_up(const std::string& path) { return facts(entry_of(path).st); }
  std::int64_t ctime_of(const std::string& path) { return ns(entry_of(path).st.st_ctim); }
  // Atime, mtime and ctime: a directory's size and link count depend on the number of its copies.
  auto times_of(const std::string& path) {
    const struct stat st = fs_->attributes().get(id_of(path))->st;
    return std::tuple(ns(st.st_atim), ns(st.st_mtim), ns(st.st_ctim));
  }
  std::int64_t own_ctime(const char* tier, const std::string& path) {
    return ns(test::lstat_of(at(tier, path)).st_ctim);
  }
  void chmod(const std::string& path, mode_t mode) {
    AttributeChange change;
    change.mode = mode;
    ASSERT_TRUE(fs_->attributes().set(id_of(path), change));
  }
  void forget(const std::string& path) { fs_->names().forget(id_of(path), 1'000'000); }
};

TEST_F(ShownTimesTest, AMoveDoesNotChangeStat) {
  dir_.make_file("a/f", "content");
  const auto before = looked_up("f");
  const struct statx born = *fs_->attributes().statx(id_of("f"));
  ASSERT_EQ(asked("f"), before);
  for (const TierIndex to : {kB, kC, kA, kC}) {
    ASSERT_TRUE(move("f", to));
    EXPECT_NE(ctime_of("f"), own_ctime((*pool_)[to].name().c_str(), "f"));
    EXPECT_EQ(looked_up("f"), before) << int{to};
    EXPECT_EQ(asked("f"), before) << int{to};
    const struct statx st = *fs_->attributes().statx(id_of("f"));
    EXPECT_EQ(ns(st.stx_ctime), ns(born.stx_ctime)) << int{to};
    EXPECT_EQ(ns(st.stx_btime), ns(born.stx_btime)) << int{to};
  }
}

TEST_F(ShownTimesTest, AChangeAfterAMoveIsShownAndSurvivesTheNextMove) {
  dir_.make_file("a/f", "content");
  const std::int64_t before = ctime_of("f");
  const std::int64_t born = ns(fs_->attributes().statx(id_of("f"))->stx_btime);
  ASSERT_TRUE(move("f"));
  chmod("f", 0600);
  const std::int64_t changed = ctime_of("f");
  EXPECT_GT(changed, before);
  EXPECT_EQ(changed, own_ctime("b", "f"));
  ASSERT_TRUE(move("f", kC));
  EXPECT_EQ(ctime_of("f"), changed);
  EXPECT_EQ(ns(fs_->attributes().statx(id_of("f"))->stx_btime), born);
}

TEST_F(ShownTimesTest, AChangeDirectlyOnTheTierIsShown) {
  dir_.make_file("a/f", "content");
  ASSERT_TRUE(move("f"));
  ASSERT_EQ(::chmod(at("b", "f").c_str(), 0600), 0);
  EXPECT_EQ(ctime_of("f"), own_ctime("b", "f"));
}

TEST_F(ShownTimesTest, ALinkMadeAfterAMoveIsShown) {
  dir_.make_file("a/f", "content");
  const std::int64_t before = ctime_of("f");
  ASSERT_TRUE(move("f"));
  const auto linked = fs_->names().link(id_of("f"), kRootId, "g");
  ASSERT_TRUE(linked);
  EXPECT_GT(ns(linked->st.st_ctim), before);
  EXPECT_EQ(ctime_of("f"), ns(linked->st.st_ctim));
}

TEST_F(ShownTimesTest, OpeningForWritingChangesNothing) {
  dir_.make_file("a/f", "content");
  ASSERT_TRUE(move("f"));
  const auto before = asked("f");
  const InodeId id = id_of("f");
  open_file(id, O_RDWR);
  fs_->files().release(id, O_RDWR);
  EXPECT_EQ(asked("f"), before);
}

TEST_F(ShownTimesTest, ForgetAndRemountChangeNothing) {
  dir_.make_file("a/f", "content");
  const auto before = looked_up("f");
  const std::int64_t born = ns(fs_->attributes().statx(id_of("f"))->stx_btime);
  ASSERT_TRUE(move("f"));
  forget("f");
  EXPECT_EQ(looked_up("f"), before);
  ASSERT_TRUE(move("f", kC));
  mount();
  EXPECT_EQ(looked_up("f"), before);
  EXPECT_EQ(ns(fs_->attributes().statx(id_of("f"))->stx_btime), born);
}

TEST_F(ShownTimesTest, LosingTheStoredTimesChangesOnlyTheCtime) {
  dir_.make_file("a/f", "content");
  const InodeId id = id_of("f");
  ASSERT_TRUE(move("f"));
  ASSERT_TRUE(store_.forget_times({id}));
  mount();
  EXPECT_EQ(ctime_of("f"), own_ctime("b", "f"));
  EXPECT_EQ(read_all(id_of("f")), "content");
}

TEST_F(ShownTimesTest, TheStoreIsNotAskedAboutAFileThatNeverMoved) {
  dir_.make_file("a/f", "content");
  dir_.make_file("a/g", "content");
  ASSERT_TRUE(move("g"));
  entry_of("f");
  forget("f");
  store_.fail_call(0);
  entry_of("f");
  EXPECT_EQ(store_.calls(), 0u);
}

TEST_F(ShownTimesTest, EveryStepOfAMoveShowsTheSameTimes) {
  dir_.make_file("a/d/f", "content");
  dir_.make_file("b/d/old", "");
  ASSERT_EQ(::link(at("a", "d/f").c_str(), at("a", "d/g").c_str()), 0);
  const auto before = looked_up("d/f");
  const auto directory = times_of("d");
  TierIndex to = kB;
  for (int call = 1; call <= 40; ++call, to = to == kB ? kA : kB) {
    Flight flight = begun("d/f", to);
    bool ran = false;
    syscall_hook.calls = call;
    syscall_hook.before_naming = [&] {
      ran = true;
      for (const char* name : {"d/f", "d/g"}) {
        EXPECT_EQ(looked_up(name), before) << name << " at call " << call;
        EXPECT_EQ(asked(name), before) << name << " at call " << call;
      }
      EXPECT_EQ(times_of("d"), directory) << "at call " << call;
    };
    ASSERT_TRUE(end(flight));
    syscall_hook = {};
    if (!ran) break;
  }
  EXPECT_EQ(looked_up("d/f"), before);
}

TEST_F(ShownTimesTest, AMoveDoesNotChangeTheTimesOfTheDirectory) {
  dir_.make_file("a/d/f", "content");
  dir_.make_file("b/d/old", "");
  const auto before = times_of("d");
  for (const TierIndex to : {kB, kA, kB}) {
    ASSERT_TRUE(move("d/f", to));
    EXPECT_EQ(times_of("d"), before) << int{to};
    EXPECT_EQ(ns(entry_of("d").st.st_ctim), std::get<2>(before)) << int{to};
  }
  mount();
  EXPECT_EQ(times_of("d"), before);
  ASSERT_TRUE(fs_->names().mkdir(id_of("d"), "new", 0755, kRoot));
  EXPECT_GT(times_of("d"), before);
  const auto changed = times_of("d");
  ASSERT_TRUE(move("d/f", kA));
  EXPECT_EQ(times_of("d"), changed);
  chmod("d", 0700);
  EXPECT_GT(std::get<2>(times_of("d")), std::get<2>(changed));
  EXPECT_EQ(std::get<1>(times_of("d")), std::get<1>(changed));
}

TEST_F(ShownTimesTest, ANewDirectoryCopyDoesNotChangeTheTimes) {
  dir_.make_file("a/d/e/f", "content");
  const auto root = times_of(""), d = times_of("d"), e = times_of("d/e");
  const std::int64_t born = ns(fs_->attributes().statx(id_of("d"))->stx_btime);
  for (const TierIndex to : {kC, kB}) {
    ASSERT_TRUE(move("d/e/f", to));
    EXPECT_EQ(times_of(""), root) << int{to};
    EXPECT_EQ(times_of("d"), d) << int{to};
    EXPECT_EQ(times_of("d/e"), e) << int{to};
    EXPECT_EQ(ns(fs_->attributes().statx(id_of("d"))->stx_btime), born) << int{to};
  }
}

TEST_F(ShownTimesTest, ANameMadeDuringAMoveChangesTheTimesOfTheDirectory) {
  dir_.make_file("a/d/f", "content");
  dir_.make_file("b/d/old", "");
  TierIndex to = kB;
  for (int call = 1; call <= 40; ++call, to = to == kB ? kA : kB) {
    const InodeId d = id_of("d");
    const auto before = fs_->attributes().get(d)->st;
    wait_until_past(ns(before.st_ctim));
    Flight flight = begun("d/f", to);
    struct stat made {};
    bool ran = false;
    syscall_hook.calls = call;
    syscall_hook.before_naming = [&] {
      ran = true;
      ASSERT_TRUE(fs_->names().mkdir(d, ("n" + std::to_string(call)).c_str(), 0755, kRoot));
      made = fs_->attributes().get(d)->st;
      EXPECT_GT(ns(made.st_mtim), ns(before.st_mtim)) << call;
      EXPECT_GT(ns(made.st_ctim), ns(before.st_ctim)) << call;
    };
    ASSERT_TRUE(end(flight));
    syscall_hook = {};
    if (!ran) break;
    const struct stat after = fs_->attributes().get(d)->st;
    EXPECT_GE(ns(after.st_mtim), ns(made.st_mtim)) << call;
    EXPECT_GE(ns(after.st_ctim), ns(made.st_ctim)) << call;
  }
}

// A daemon that died in the middle of a change of the directory d on the tier `a`.
void die_while_changing(Store& store, InodeId directory, const std::string& path) {
  const UniqueFd fd = test::open_directory(path);
  KeptTimes times{.is_directory = true, .copies = {}};
  ASSERT_TRUE(begin_change(times, 1, fd.get()));
  ASSERT_TRUE(store.keep_times({{directory, times}}));
  test::write_file(path + "/arrived", "by a move");
}

TEST_F(ShownTimesTest, AChangeThatADaemonDidNotLiveToEndIsHidden) {
  dir_.make_file("a/d/f", "content");
  const auto before = times_of("d");
  const InodeId d = id_of("d");
  die_while_changing(store_, d, at("a", "d"));
  EXPECT_NE(ns(test::lstat_of(at("a", "d")).st_mtim), std::get<1>(before));
  for (int daemon = 0; daemon < 2; ++daemon) {
    mount();
    EXPECT_EQ(times_of("d"), before);
    EXPECT_FALSE(store_.times(d)->copies.at(0).is_changing);
  }
  EXPECT_EQ(ns(test::lstat_of(at("a", "d")).st_mtim), std::get<1>(before));
}

TEST_F(ShownTimesTest, AUsersChangeAfterOneOfADeadDaemonIsShown) {
  dir_.make_file("a/d/f", "content");
  const auto before = times_of("d");
  const InodeId d = id_of("d");
  for (const bool makes_a_name : {true, false}) {
    die_while_changing(store_, d, at("a", "d"));
    mount();
    const InodeId directory = id_of("d");
    const auto changed =
        makes_a_name ? fs_->names().mkdir(directory, "new", 0755, kRoot).has_value() : [&] {
          AttributeChange change;
          change.mode = 0700;
          return fs_->attributes().set(directory, change).has_value();
        }();
    ASSERT_TRUE(changed);
    const auto after = times_of("d");
    EXPECT_GT(std::get<2>(after), std::get<2>(before));
    mount();
    EXPECT_EQ(times_of("d"), after);
  }
}

TEST_F(ShownTimesTest, TimesAreInTheStoreWhenAMoveEnds) {
  dir_.make_file("a/d/f", "content");
  dir_.make_file("b/d/old", "");
  const auto before = looked_up("d/f");
  const auto directory = times_of("d");
  ASSERT_TRUE(move("d/f"));
  mount();  // without a flush, as after a crash
  EXPECT_EQ(looked_up("d/f"), before);
  EXPECT_EQ(times_of("d"), directory);
}

TEST_F(ShownTimesTest, AUsersChangeRightAfterAMoveIsShownByTheNextDaemon) {
  dir_.make_file("a/d/f", "content");
  dir_.make_file("b/d/old", "");
  ASSERT_TRUE(move("d/f"));
  ASSERT_TRUE(fs_->names().mkdir(id_of("d"), "new", 0755, kRoot));
  const auto after = times_of("d");
  mount();
  EXPECT_EQ(times_of("d"), after);
}

TEST_F(ShownTimesTest, ARemovedDirectoryLeavesNoTimesInTheStore) {
  dir_.make_file("a/d/f", "content");
  dir_.make_file("b/d/old", "");
  const InodeId d = id_of("d");
  id_of("d/old");  // the kernel must know a file to remove it
  ASSERT_TRUE(move("d/f"));
  EXPECT_FALSE(store_.times(d)->copies.empty());
  ASSERT_TRUE(fs_->names().unlink(d, "f"));
  ASSERT_TRUE(fs_->names().unlink(d, "old"));
  ASSERT_TRUE(fs_->names().rmdir(kRootId, "d"));
  EXPECT_TRUE(store_.times(d)->copies.empty());
}

TEST_F(ShownTimesTest, AChangeOfADirectoryIsInTheStoreWhenItIsMade) {
  dir_.make_file("a/d/f", "");
  dir_.make_file("b/d/f", "");
  const UniqueFd a(::open(at("a", "d").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const UniqueFd b(::open(at("b", "d").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto identity = (*pool_)[kA].identity_of(a.get(), "");
  ASSERT_TRUE(identity);
  Inode directory(*identity, S_IFDIR);
  ShownTimes times(*pool_, store_);
  // Another mover makes copies of the directory meanwhile.
  const std::jthread other([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      times.copy_begins(directory, kA, a.get(), kB, b.get());
      times.copy_ends(directory, kB, b.get());
    }
  });
  int missing = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto act = [&]() -> Result<void> {
      const auto stored = store_.times(directory.id());
      const auto* copy = stored ? find_copy(*stored, (*pool_)[kA].member().slot) : nullptr;
      missing += copy == nullptr || !copy->is_changing;
      return {};
    };
    ASSERT_TRUE(times.change_with_old_times(directory, kA, a.get(), act));
  }
  EXPECT_EQ(missing, 0);
}

// Before Linux 6.13, the clock of ctimes ticks, so that a change may have the ctime from before.
TEST_F(ShownTimesTest, AChangeWithinATickOfTheClockIsHidden) {
  dir_.make_file("a/d/f", "");
  const UniqueFd fd = test::open_directory(at("a", "d"));
  const std::int64_t before = ns(test::lstat_of(at("a", "d")).st_mtim);
  wait_until_past(before);
  KeptTimes times{.is_directory = true, .copies = {}};
  ASSERT_TRUE(begin_change(times, 1, fd.get()));
  test::write_file(at("a", "d/arrived"), "by a move");
  times.copies.at(0).ctime = own_ctime("a", "d");
  end_change(times, 1, fd.get());
  EXPECT_EQ(ns(test::lstat_of(at("a", "d")).st_mtim), before);
}

TEST_F(ShownTimesTest, AChangeOfModeKeepsTheLatestMtimeOfADirectory) {
  dir_.make_file("a/d/fast", "");
  dir_.make_file("b/d/slow", "");
  const InodeId d = id_of("d");
  id_of("d/slow");  // the kernel must know a file to remove it
  wait_until_past(std::get<1>(times_of("d")));
  ASSERT_TRUE(fs_->names().unlink(d, "slow"));
  const std::int64_t mtime = std::get<1>(times_of("d"));
  EXPECT_GT(mtime, ns(test::lstat_of(at("a", "d")).st_mtim));
  chmod("d", 0700);
  EXPECT_EQ(std::get<1>(times_of("d")), mtime);
  for (const char* tier : {"a", "b"})
    EXPECT_EQ(test::lstat_of(at(tier, "d")).st_mode & 07777, 0700u) << tier;
}

// A move makes copies of a directory while a user changes its mode.
TEST_F(ShownTimesTest, NewCopiesOfADirectoryHaveTheModeThatAUserHasSet) {
  for (int i = 0; i < 200; ++i) {
    const std::string d = "d" + std::to_string(i);
    dir_.make_file("c/" + d + "/f", "");
    id_of(d);
    Flight flight = begun(d + "/f", kA);
    std::jthread user([&] { chmod(d, 0700); });
    ASSERT_TRUE(end(flight));
    user.join();
    for (const char* tier : {"a", "c"})
      ASSERT_EQ(test::lstat_of(at(tier, d)).st_mode & 07777, 0700u) << tier << " " << i;
  }
}

// The two moves of the files of a directory to different tiers, at the worst moment.
TEST_F(ShownTimesTest, ADirectoryCopyMadeDuringAnotherMoveHasTheShownTimes) {
  dir_.make_file("a/d/f", "");
  dir_.make_file("b/d/f", "");
  const UniqueFd a = test::open_directory(at("a", "d")), b = test::open_directory(at("b", "d"));
  const auto identity = (*pool_)[kA].identity_of(a.get(), "");
  ASSERT_TRUE(identity);
  Inode directory(*identity, S_IFDIR);
  ShownTimes times(*pool_, store_);
  const std::int64_t before = ns(test::lstat_of(at("a", "d")).st_mtim);
  wait_until_past(before);
  ASSERT_TRUE(times.change_with_old_times(directory, kA, a.get(), [&]() -> Result<void> {
    test::write_file(at("a", "d/arrived"), "by a move");
    EXPECT_GT(ns(test::lstat_of(at("a", "d")).st_mtim), before);
    SLUICE_TRY(copy_attributes(a.get(), b.get()));
    times.copy_begins(directory, kA, a.get(), kB, b.get());
    times.copy_ends(directory, kB, b.get());
    return {};
  }));
  for (const char* tier : {"a", "b"})
    EXPECT_EQ(ns(test::lstat_of(at(tier, "d")).st_mtim), before) << tier;
}

TEST_F(ShownTimesTest, TheAtimeOfAReadDuringTheCopyIsKept) {
  const std::string path = dir_.make_file("a/f", "content");
  const std::array<timespec, 2> times{{{1'000'000'000, 0}, {1'000'000'001, 0}}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times.data(), 0), 0);
  Flight flight = begun("f");
  ASSERT_EQ(test::read_file(path), "content");
  const std::int64_t read_at = ns(test::lstat_of(path).st_atim);
  if (read_at == 1'000'000'000'000'000'000) GTEST_SKIP() << "mounted with noatime";
  ASSERT_TRUE(end(flight));
  EXPECT_EQ(ns(entry_of("f").st.st_atim), read_at);
}

}  // namespace
}  // namespace sluice
