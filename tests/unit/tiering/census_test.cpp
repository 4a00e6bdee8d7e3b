// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/heat/census.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>

#include "tests/support/chain.hpp"
#include "tests/support/user.hpp"
#include "tests/unit/tiering/pools.hpp"
#include "tiering/pool/pin.hpp"

namespace sluice {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using test::MemoryStore;
using Paths = std::vector<std::string>;

constexpr std::int64_t kHour = 3600, kDay = 24 * kHour;

class CensusTest : public test::PoolTest {
 protected:
  void prepare() override { pool_ = open(make_tiers("abc")); }

  Census take() const {
    auto census = try_take();
    if (!census) throw std::runtime_error(census.error().operation);
    return *std::move(census);
  }
  Result<Census> try_take(std::function<bool(std::uint64_t)> progress = {}) const {
    return Census::take({*pool_, store_, policy_, hours(1), now_, std::move(progress)});
  }
  static Paths all(const Census& census) {
    Paths out;
    for (std::size_t i = 0; i < census.files().size(); ++i) out.push_back(census.path(i));
    std::ranges::sort(out);
    return out;
  }
  static std::size_t index_of(const Census& census, const std::string& path) {
    for (std::size_t i = 0; i < census.files().size(); ++i) {
      if (census.path(i) == path) return i;
    }
    throw std::runtime_error("no " + path);
  }
  static FileFacts facts(const Census& census, const std::string& path) {
    return census.files()[index_of(census, path)];
  }
  InodeId id(const char* tier, const std::string& name) const {
    return identity_of(*pool_->by_name(tier), at(tier, name)).id;
  }
  void pin(const char* tier, const std::string& name, const std::string& to) const {
    ASSERT_EQ(::setxattr(at(tier, name).c_str(), kPinXattr, to.data(), to.size(), 0), 0);
  }
  void heat(InodeId id, const Heat& heat) { ASSERT_TRUE(store_.add_heat({{id, heat}})); }
  void take_away(const char* tier) const {
    ASSERT_EQ(::rename((dir_ / tier).c_str(), (dir_ / "away").c_str()), 0);
    ASSERT_TRUE(pool_->by_name(tier)->check_presence());
  }

  std::unique_ptr<Pool> pool_;
  MemoryStore store_{hours(1)};
  Policy policy_;
  std::int64_t now_ = std::time(nullptr);
};

TEST_F(CensusTest, SkipsDirectoriesWithTooLongPaths) {
  dir_.make_file("a/d/f", "1");
  test::make_chain(at("a", ""), 3000);
  const Census census = take();
  test::remove_chain(at("a", ""));
  EXPECT_EQ(all(census), Paths{"/d/f"});
  EXPECT_EQ(census.too_deep(), 1u);
}

TEST_F(CensusTest, CountsEveryFileOfEveryTier) {
  dir_.make_file("a/f", "1");
  dir_.make_file("b/d/g", "2");
  dir_.make_file("c/d/e/h", "3");
  const Census census = take();
  EXPECT_EQ(all(census), (Paths{"/d/e/h", "/d/g", "/f"}));
  EXPECT_EQ(facts(census, "/f").tier, 0);
  EXPECT_EQ(facts(census, "/d/g").tier, 1);
  EXPECT_EQ(facts(census, "/d/e/h").tier, 2);
  EXPECT_EQ(facts(census, "/d/g").id, id("b", "d/g"));
}

TEST_F(CensusTest, IsSortedById) {
  for (const char* name : {"c/z", "a/y", "b/x", "a/w", "c/v"}) dir_.make_file(name, "x");
  const Census census = take();
  ASSERT_EQ(census.files().size(), 5u);
  EXPECT_TRUE(std::ranges::is_sorted(census.files(), {}, &FileFacts::id));
}

TEST_F(CensusTest, CountsAllocatedBytesWithoutHoles) {
  dir_.make_file("a/full", test::pattern(100'000, 1));
  dir_.make_file("a/sparse", "x");
  ASSERT_EQ(::truncate(at("a", "sparse").c_str(), 1 << 30), 0);
  dir_.make_file("a/empty", "");
  const Census census = take();
  EXPECT_GE(facts(census, "/full").bytes, 100'000u);
  EXPECT_LT(facts(census, "/full").bytes, 200'000u);
  EXPECT_LT(facts(census, "/sparse").bytes, 1u << 20);
  EXPECT_EQ(facts(census, "/empty").bytes, 0u);
}

TEST_F(CensusTest, ArrivalTimeIsTheBirthTimeOfTheCopy) {
  dir_.make_file("a/f", "x");
  const std::array<timespec, 2> old{timespec{1000, 0}, timespec{1000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, at("a", "f").c_str(), old.data(), 0), 0);
  EXPECT_NEAR(static_cast<double>(facts(take(), "/f").arrived), static_cast<double>(now_), 5);
}

TEST_F(CensusTest, FileWithoutHeatWasNeverUsed) {
  dir_.make_file("a/f", "x");
  const FileFacts file = facts(take(), "/f");
  EXPECT_EQ(file.score, 0);
  EXPECT_EQ(file.last_use, 0);
  EXPECT_EQ(file.opens, 0u);
  EXPECT_EQ(file.pin, kNoTier);
  EXPECT_EQ(file.ghost_of, kNoTier);
  EXPECT_EQ(file.rule, kNoRule);
}

TEST_F(CensusTest, CountsOnlyTheFastestTiersFileOfAPath) {
  dir_.make_file("b/d/f", "middle");
  dir_.make_file("c/d/f", "slow");
  const Census census = take();
  EXPECT_EQ(all(census), Paths{"/d/f"});
  EXPECT_EQ(census.files()[0].tier, 1);
}

TEST_F(CensusTest, FilesHiddenByAnotherTypeAreNotCounted) {
  dir_.make_dir("a/dir");
  dir_.make_file("b/dir", "hidden by a directory");
  dir_.make_file("a/file", "x");
  dir_.make_file("b/file/below", "hidden by a file");
  ASSERT_EQ(::symlink("nowhere", at("a", "link").c_str()), 0);
  dir_.make_file("b/link", "hidden by a symlink");
  EXPECT_EQ(all(take()), Paths{"/file"});
}

TEST_F(CensusTest, OnlyRegularFilesAreCounted) {
  dir_.make_file("b/f", "x");
  ASSERT_EQ(::symlink("f", at("b", "link").c_str()), 0);
  ASSERT_EQ(::symlink("/", at("b", "root").c_str()), 0);
  ASSERT_EQ(::mkfifo(at("b", "fifo").c_str(), 0644), 0);
  EXPECT_EQ(all(take()), Paths{"/f"});
}

TEST_F(CensusTest, ThePrivateDirectoryIsSkipped) {
  test::write_file(at("a", ".sluice/tmp/t1"), "half a copy");
  dir_.make_file("a/d/.sluice/f", "a name like any");
  EXPECT_EQ(all(take()), Paths{"/d/.sluice/f"});
}

TEST_F(CensusTest, AFileHasItsOwnPin) {
  dir_.make_file("a/f", "x");
  dir_.make_file("a/g", "x");
  pin("a", "f", "c");
  const Census census = take();
  EXPECT_EQ(facts(census, "/f").pin, 2);
  EXPECT_EQ(facts(census, "/g").pin, kNoTier);
}

TEST_F(CensusTest, AFileInheritsThePinOfADirectoryAbove) {
  dir_.make_file("b/d/e/f", "x");
  dir_.make_file("b/other", "x");
  pin("b", "d", "c");
  const Census census = take();
  EXPECT_EQ(facts(census, "/d/e/f").pin, 2);
  EXPECT_EQ(facts(census, "/other").pin, kNoTier);
}

TEST_F(CensusTest, TheNearestPinTakesPrecedence) {
  dir_.make_file("a/d/e/f", "x");
  dir_.make_file("a/d/e/own", "x");
  dir_.make_file("a/d/g", "x");
  pin("a", "", "a");
  pin("a", "d", "b");
  pin("a", "d/e", "c");
  pin("a", "d/e/own", "b");
  const Census census = take();
  EXPECT_EQ(facts(census, "/d/g").pin, 1);
  EXPECT_EQ(facts(census, "/d/e/f").pin, 2);
  EXPECT_EQ(facts(census, "/d/e/own").pin, 1);
}

TEST_F(CensusTest, APinToAnUnknownTierIsIgnored) {
  dir_.make_file("a/d/f", "x");
  pin("a", "d", "b");
  pin("a", "d/f", "gone");
  EXPECT_EQ(facts(take(), "/d/f").pin, 1);
}

TEST_F(CensusTest, AHardLinkedFileIsCountedOnceWithAllItsNames) {
  dir_.make_file("b/f", "x");
  dir_.make_dir("b/d");
  ASSERT_EQ(::link(at("b", "f").c_str(), at("b", "d/g").c_str()), 0);
  const Census census = take();
  ASSERT_EQ(census.files().size(), 1u);
  Paths paths = census.paths(0);
  std::ranges::sort(paths);
  EXPECT_EQ(paths, (Paths{"/d/g", "/f"}));
  EXPECT_TRUE(census.has_all_names(0));
}

TEST_F(CensusTest, ThePinsOfAllItsNamesCount) {
  for (const char* name : {"b/d/f", "b/e/g", "b/own", "b/plain/h"}) dir_.make_file(name, "x");
  ASSERT_EQ(::link(at("b", "d/f").c_str(), at("b", "plain/f").c_str()), 0);
  ASSERT_EQ(::link(at("b", "e/g").c_str(), at("b", "d/g").c_str()), 0);
  ASSERT_EQ(::link(at("b", "own").c_str(), at("b", "d/own").c_str()), 0);
  pin("b", "d", "a");
  pin("b", "e", "c");
  pin("b", "own", "c");
  const Census census = take();
  const auto pin_of = [&](const std::string& name) {
    const auto found = std::ranges::find(census.files(), id("b", name), &FileFacts::id);
    return found == census.files().end() ? kNoTier : found->pin;
  };
  EXPECT_EQ(pin_of("d/f"), 0);
  EXPECT_EQ(pin_of("e/g"), 0) << "of several, the fastest";
  EXPECT_EQ(pin_of("own"), 2) << "its own comes first";
  EXPECT_EQ(pin_of("plain/h"), kNoTier);
}

TEST_F(CensusTest, ANameOutsideTheTierIsReportedMissing) {
  dir_.make_file("b/f", "x");
  ASSERT_EQ(::link(at("b", "f").c_str(), (dir_ / "outside").c_str()), 0);
  const Census census = take();
  ASSERT_EQ(census.files().size(), 1u);
  EXPECT_FALSE(census.has_all_names(0));
}

TEST_F(CensusTest, ANameHiddenByAFasterTierIsReportedMissing) {
  dir_.make_file("b/f", "x");
  ASSERT_EQ(::link(at("b", "f").c_str(), at("b", "g").c_str()), 0);
  dir_.make_file("a/g", "hides it");
  const Census census = take();
  EXPECT_FALSE(census.has_all_names(index_of(census, "/f")));
  EXPECT_TRUE(census.has_all_names(index_of(census, "/g")));
}

TEST_F(CensusTest, JoinsHeatDecayedToNow) {
  dir_.make_file("b/f", "x");
  dir_.make_file("b/g", "x");
  heat(id("b", "f"), {.score = 8, .last_access = now_ - 2 * kHour, .opens = 5});
  const Census census = take();
  EXPECT_FLOAT_EQ(facts(census, "/f").score, 2);
  EXPECT_EQ(facts(census, "/f").last_use, now_ - 2 * kHour);
  EXPECT_EQ(facts(census, "/f").opens, 5u);
  EXPECT_EQ(facts(census, "/g").score, 0);
}

TEST_F(CensusTest, FindsHeatOfDeletedFiles) {
  dir_.make_file("b/f", "x");
  heat(id("b", "f"), {.score = 1, .last_access = now_ - 3 * kDay, .opens = 1});
  for (const std::uint64_t gone : {2ul, ~0ul})
    heat(InodeId{gone}, {.score = 1, .last_access = now_ - 3 * kDay, .opens = 1});
  EXPECT_EQ(take().stale_heat(), (std::vector{InodeId{2}, InodeId{~0ul}}));
}

TEST_F(CensusTest, RecentHeatIsNotStale) {
  heat(InodeId{2}, {.score = 1, .last_access = now_ - kHour, .opens = 1});
  EXPECT_TRUE(take().stale_heat().empty());
}

TEST_F(CensusTest, HeatIsNotStaleWhileATierIsAway) {
  heat(InodeId{2}, {.score = 1, .last_access = now_ - 3 * kDay, .opens = 1});
  take_away("c");
  EXPECT_TRUE(take().stale_heat().empty());
}

TEST_F(CensusTest, HeatIsNotStaleIfADirectoryCannotBeRead) {
  dir_.make_file("a/d/f", "x");
  heat(id("a", "d/f"), {.score = 1, .last_access = now_ - 3 * kDay, .opens = 1});
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};  // for new ones
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto census = try_take();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(census);
  EXPECT_TRUE(census->files().empty());
  EXPECT_TRUE(census->stale_heat().empty());
}

TEST_F(CensusTest, AFileUsedAfterItHadToLeaveIsAGhost) {
  dir_.make_file("b/used", "x");
  dir_.make_file("b/unused", "x");
  const auto slot = static_cast<std::uint8_t>((*pool_)[0].member().slot);
  for (const char* name : {"used", "unused"})
    ASSERT_TRUE(store_.add_ghosts({{id("b", name), {now_ - kHour, slot}}}));
  heat(id("b", "used"), {.score = 1, .last_access = now_ - 10, .opens = 2});
  heat(id("b", "unused"), {.score = 1, .last_access = now_ - 2 * kHour, .opens = 2});
  const Census census = take();
  EXPECT_EQ(facts(census, "/used").ghost_of, 0);
  EXPECT_EQ(facts(census, "/unused").ghost_of, kNoTier);
  EXPECT_TRUE(census.stale_ghosts().empty());
}

TEST_F(CensusTest, AFileThatIsBackIsNotAGhost) {
  dir_.make_file("a/f", "x");
  const auto slot = static_cast<std::uint8_t>((*pool_)[0].member().slot);
  ASSERT_TRUE(store_.add_ghosts({{id("a", "f"), {now_ - kHour, slot}}}));
  heat(id("a", "f"), {.score = 1, .last_access = now_, .opens = 2});
  EXPECT_EQ(facts(take(), "/f").ghost_of, kNoTier);
}

TEST_F(CensusTest, OldGhostsAndGhostsOfDeletedFilesAreStale) {
  dir_.make_file("b/old", "x");
  const auto slot = static_cast<std::uint8_t>((*pool_)[0].member().slot);
  ASSERT_TRUE(store_.add_ghosts({{id("b", "old"), {now_ - 2 * kDay, slot}}}));
  ASSERT_TRUE(store_.add_ghosts({{InodeId{2}, {now_, slot}}}));
  std::vector<InodeId> expected{InodeId{2}, id("b", "old")};
  EXPECT_EQ(take().stale_ghosts(), expected);
}

TEST_F(CensusTest, OldTimesOfDeletedFilesAreStale) {
  dir_.make_file("b/there", "x");
  const auto times = [&](InodeId id, bool is_directory, std::int64_t ctime) {
    const KeptTimes kept{.is_directory = is_directory,
                         .copies = {{1, ctime * 1'000'000'000, 0, 0}}};
    ASSERT_TRUE(store_.keep_times({{id, kept}}));
  };
  times(id("b", "there"), false, now_ - 2 * kDay);
  times(InodeId{2}, false, now_ - 2 * kDay);
  times(InodeId{3}, false, now_);  // recent, so the walk may have missed the file
  times(InodeId{4}, true, now_ - 2 * kDay);
  EXPECT_EQ(take().stale_times(), (std::vector<InodeId>{InodeId{2}}));
}

TEST_F(CensusTest, AFileThatCameBackByItsTwinArrivedThen) {
  dir_.make_file("b/f", "x");
  const std::int64_t made = facts(take(), "/f").arrived;
  const auto keep = [&](const char* tier, std::int64_t moved) {
    const auto slot = static_cast<std::uint8_t>(pool_->by_name(tier)->member().slot);
    const KeptTimes kept{.is_directory = false, .copies = {{slot, moved * 1'000'000'000, 0, 0}}};
    ASSERT_TRUE(store_.keep_times({{id("b", "f"), kept}}));
  };
  keep("b", made + 100);
  EXPECT_EQ(facts(take(), "/f").arrived, made + 100);
  keep("b", made - 100);
  EXPECT_EQ(facts(take(), "/f").arrived, made);
  keep("c", made + 100);
  EXPECT_EQ(facts(take(), "/f").arrived, made) << "of another tier, where it was before";
}

TEST_F(CensusTest, GhostsAreNotStaleWhileATierIsAway) {
  dir_.make_file("c/f", "x");
  const auto slot = static_cast<std::uint8_t>((*pool_)[0].member().slot);
  ASSERT_TRUE(store_.add_ghosts({{id("c", "f"), {now_, slot}}}));
  take_away("c");
  EXPECT_TRUE(take().stale_ghosts().empty()) << "the file is back with its tier, its ghost is not";
}

TEST_F(CensusTest, MatchesRulesByNameSizeAndAge) {
  policy_.rules = {{"*.bin", {}, {}, {}, {}, 2},
                   {"", 1000, {}, {}, {}, 1},
                   {"/logs/**", {}, {}, hours(1), {}, 2}};
  dir_.make_file("a/d/x.bin", "x");
  dir_.make_file("a/large", std::string(2000, 'x'));
  dir_.make_file("a/small", "x");
  dir_.make_file("a/logs/new", "x");
  dir_.make_file("a/logs/old", "x");
  const std::array<timespec, 2> old{timespec{1000, 0}, timespec{1000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, at("a", "logs/old").c_str(), old.data(), 0), 0);
  const Census census = take();
  EXPECT_EQ(facts(census, "/d/x.bin").rule, 0);
  EXPECT_EQ(facts(census, "/large").rule, 1);
  EXPECT_EQ(facts(census, "/small").rule, kNoRule);
  EXPECT_EQ(facts(census, "/logs/new").rule, kNoRule);
  EXPECT_EQ(facts(census, "/logs/old").rule, 2);
}

TEST_F(CensusTest, AgeIsMeasuredFromTheLastUse) {
  policy_.rules = {{"", {}, {}, hours(1), {}, 2}};
  dir_.make_file("a/f", "x");
  const std::array<timespec, 2> old{timespec{1000, 0}, timespec{1000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, at("a", "f").c_str(), old.data(), 0), 0);
  heat(id("a", "f"), {.score = 1, .last_access = now_ - 60, .opens = 1});
  EXPECT_EQ(facts(take(), "/f").rule, kNoRule);
}

TEST_F(CensusTest, StopsWhenProgressReturnsFalse) {
  dir_.make_dir("a/d");
  for (int i = 0; i < 1000; ++i) test::write_file(at("a", "d/f" + std::to_string(i)), "");
  std::uint64_t told = 0;
  EXPECT_TRUE(failed_with(try_take([&](std::uint64_t files) {
                            told = files;
                            return false;
                          }),
                          ECANCELED));
  EXPECT_EQ(told, 1000u);
}

TEST_F(CensusTest, ReportsAStoreThatFails) {
  dir_.make_file("a/f", "x");
  for (const std::uint64_t nth : {1u, 2u}) {
    store_.fail_call(nth);
    EXPECT_TRUE(failed_with(try_take(), EIO)) << nth;
  }
}

TEST_F(CensusTest, ATierThatIsAwayIsSkipped) {
  dir_.make_file("a/f", "x");
  dir_.make_file("c/g", "x");
  take_away("c");
  EXPECT_EQ(all(take()), Paths{"/f"});
}

TEST_F(CensusTest, UnreadableDirectoriesAreSkipped) {
  dir_.make_file("a/d/f", "x");
  dir_.make_file("b/closed/g", "x");
  dir_.make_file("b/h", "x");
  ASSERT_EQ(::chmod(at("b", "closed").c_str(), 0700), 0);
  const std::string seen = test::as_user(test::kNobody, [&] {
    std::string out;
    for (const std::string& path : all(take())) out += path + " ";
    return out;
  });
  EXPECT_EQ(seen, "/d/f /h ");
}

TEST_F(CensusTest, FindsAllNamesOfOneFile) {
  dir_.make_file("b/f", "x");
  dir_.make_dir("b/d/e");
  dir_.make_file("b/d/other", "x");
  ASSERT_EQ(::link(at("b", "f").c_str(), at("b", "d/e/g").c_str()), 0);
  ASSERT_EQ(::link(at("b", "f").c_str(), at("b", ".sluice/tmp/hidden").c_str()), 0);
  auto names = find_names((*pool_)[1], test::lstat_of(at("b", "f")).st_ino, 3);
  ASSERT_TRUE(names);
  std::ranges::sort(*names);
  EXPECT_EQ(*names, (Paths{"/d/e/g", "/f"}));
}

}  // namespace
}  // namespace sluice
