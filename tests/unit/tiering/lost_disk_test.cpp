// SPDX-License-Identifier: BSD-2-Clause
// What is left of a disk after another one took its place: intents that needed it, and the list of
// its files.
#include "tests/unit/tiering/pools.hpp"
#include "tiering/heat/census.hpp"
#include "tiering/heat/lost_files.hpp"
#include "tiering/move/away_journal.hpp"
#include "tiering/move/relocate.hpp"

namespace sluice {
namespace {

using test::MemoryStore;
using test::open_directory;
using test::open_file;

class LostDiskTest : public test::PoolTest {
 protected:
  void prepare() override {
    for (const char* path : {"a/d", "b/d", "c/d"}) dir_.make_dir(path);
    pool_ = open(make_tiers("abc"));
  }
  Tier& tier_of(const std::string& name) const { return *pool_->by_name(name); }

  // The disk of the tier dies, and another one takes its place.
  void lose(const std::string& name) {
    ASSERT_EQ(::rename((dir_ / name).c_str(), (dir_ / "dead").c_str()), 0);
    ASSERT_TRUE(tier_of(name).check_presence());
    ASSERT_FALSE(tier_of(name).present());
    auto replacement = pool_->prepare_replacement(tier(name, dir_.make_dir("new")));
    ASSERT_TRUE(replacement);
    pool_->replace(*std::move(replacement));
    pool_->announce();
    ASSERT_TRUE(tier_of(name).check_presence());
    tier_of(name).admit();
  }
  // Announces the switch of a move of d/f, whose copy is complete but has no name yet.
  void begin_move(const std::string& from, const std::string& to) {
    dir_.make_file(from + "/d/f", "content");
    const Identity identity = identity_of(tier_of(from), at(from, "d/f"));
    const auto copy =
        make_hidden_copy(open_file(at(from, "d/f"), O_RDONLY).get(), identity, tier_of(to));
    ASSERT_TRUE(copy);
    ASSERT_TRUE(sync_copy(*copy));
    const auto steps = relocation_steps(
        *copy, tier_of(from), tier_of(to),
        {{open_directory(at(from, "d")).get(), open_directory(at(to, "d")).get(), "f"}});
    ASSERT_TRUE(steps);
    ASSERT_TRUE(announce(store_, *steps));
  }
  void settle() {
    ASSERT_TRUE(settle_lost(store_, *pool_));
    EXPECT_EQ(intents_in(store_), 0u);
  }

  MemoryStore store_;
  std::unique_ptr<Pool> pool_;
};

TEST_F(LostDiskTest, TheFinishedCopyOfALostFileBecomesTheFile) {
  begin_move("b", "c");
  lose("b");
  settle();
  EXPECT_EQ(test::read_file(at("c", "d/f")), "content");
}

TEST_F(LostDiskTest, TheFinishedCopyIsKeptByAMountWithoutTheDisk) {
  begin_move("b", "c");
  const auto needed = names_in_intents(store_);
  ASSERT_TRUE(needed);
  pool_->clear_temporaries(*needed);
  lose("b");
  settle();
  EXPECT_EQ(test::read_file(at("c", "d/f")), "content");
}

TEST_F(LostDiskTest, TheFinishedCopyDoesNotHideANewerFileOfItsName) {
  begin_move("b", "c");
  lose("b");
  dir_.make_file("a/d/f", "newer");
  settle();
  EXPECT_EQ(test::read_file(at("a", "d/f")), "newer");
  const auto names = test::names_in(at("c", "d"));
  ASSERT_EQ(names.size(), 1u);
  EXPECT_TRUE(names[0].starts_with("f.recovered-")) << names[0];
  EXPECT_EQ(test::read_file(at("c", "d/" + names[0])), "content");
}

TEST_F(LostDiskTest, AFileThatWasOnItsWayToTheLostDiskStays) {
  begin_move("a", "b");
  lose("b");
  settle();
  EXPECT_EQ(test::read_file(at("a", "d/f")), "content");
}

TEST_F(LostDiskTest, ARenameIsFinishedOnTheOtherTiers) {
  ASSERT_TRUE(announce(store_, {step(Step::Kind::Rename, tier_of("a"), "d", "e"),
                                step(Step::Kind::Rename, tier_of("b"), "d", "e"),
                                step(Step::Kind::Rename, tier_of("c"), "d", "e")}));
  lose("b");
  settle();
  EXPECT_TRUE(test::exists(at("a", "e")));
  EXPECT_TRUE(test::exists(at("c", "e")));
}

TEST_F(LostDiskTest, ARenameWaitsForATierThatIsAwayWhenAnotherIsLost) {
  ASSERT_TRUE(announce(store_, {step(Step::Kind::Rename, tier_of("a"), "d", "e"),
                                step(Step::Kind::Rename, tier_of("b"), "d", "e"),
                                step(Step::Kind::Rename, tier_of("c"), "d", "e")}));
  ASSERT_EQ(::rename((dir_ / "c").c_str(), (dir_ / "away").c_str()), 0);
  ASSERT_TRUE(tier_of("c").check_presence());
  lose("b");
  ASSERT_TRUE(settle_lost(store_, *pool_));
  EXPECT_EQ(intents_in(store_), 1u);
  EXPECT_TRUE(test::exists(at("a", "d"))) << "a directory must not have two names";
  ASSERT_EQ(::rename((dir_ / "away").c_str(), (dir_ / "c").c_str()), 0);
  ASSERT_TRUE(tier_of("c").check_presence());
  settle();
  EXPECT_TRUE(test::exists(at("a", "e")));
  EXPECT_TRUE(test::exists(at("c", "e")));
}

TEST_F(LostDiskTest, NothingIsRemovedForTheSakeOfALostFile) {
  dir_.make_file("b/d/new", "new");
  dir_.make_file("c/d/f", "old");
  ASSERT_TRUE(announce(store_, {step(Step::Kind::Rename, tier_of("b"), "d/new", "d/f"),
                                step(Step::Kind::Unlink, tier_of("c"), "d/f")}));
  lose("b");
  settle();
  EXPECT_EQ(test::read_file(at("c", "d/f")), "old");
}

TEST_F(LostDiskTest, ChangesThatWaitedForTheDiskAreDropped) {
  AwayJournal journal(store_);
  ASSERT_TRUE(journal.name_taken({{tier_of("b").member().slot, "/d"}}, "f"));
  lose("b");
  settle();
}

TEST_F(LostDiskTest, IntentsOfOtherTiersAreKept) {
  AwayJournal journal(store_);
  ASSERT_TRUE(journal.name_taken({{tier_of("c").member().slot, "/d"}}, "f"));
  lose("b");
  ASSERT_TRUE(settle_lost(store_, *pool_));
  EXPECT_EQ(intents_in(store_), 1u);
}

TEST_F(LostDiskTest, TheJournalRemembersABoundedNumberOfNames) {
  AwayJournal journal(store_);
  const unsigned slot = tier_of("b").member().slot;
  std::size_t most = 0;
  for (int i = 0; i < 70'000; ++i) {
    ASSERT_TRUE(journal.name_taken({{slot, "/d"}}, std::to_string(i)));
    most = std::max(most, journal.remembered());
  }
  EXPECT_LE(most, 65'536u);
}

class LostFilesTest : public LostDiskTest {
 protected:
  void take_census(std::int64_t time) {
    const Policy policy;
    const auto census = Census::take({*pool_, store_, policy, std::chrono::hours(1), time, {}});
    ASSERT_TRUE(census);
    lists_.take(*census, time);
  }
  void moved(std::int64_t time, const char* path, const char* from, const char* to,
             InodeId id = {}) {
    Receipt receipt;
    receipt.id = id;
    receipt.time = time;
    receipt.path = path;
    receipt.from = from;
    receipt.to = to;
    ASSERT_TRUE(store_.add_receipts({receipt}));
  }
  std::string listed(const std::string& name) {
    const auto lost = lost_files(*pool_, store_, lists_, name);
    if (!lost) return lost.error().text();
    std::string out;
    for (const FileLists::File& file : lost->files) out += file.path + "\n";
    return out;
  }

  FileLists lists_{dir_ / "lists"};
};

TEST_F(LostFilesTest, TheLastCompleteCensusIsKeptForADiskThatIsGone) {
  dir_.make_file("b/d/x", "1");
  dir_.make_file("b/d/with\nnewline", "1");
  dir_.make_file("b/top", "1");
  dir_.make_file("a/d/other", "1");
  take_census(100);
  lose("b");
  take_census(200);
  EXPECT_EQ(listed("b"), "/d/with\nnewline\n/d/x\n/top\n");
  EXPECT_EQ(lost_files(*pool_, store_, lists_, "b")->census_time, 100);
  EXPECT_EQ(listed("b#2"), listed("b"));
  EXPECT_NE(listed("a").find("nothing is lost"), std::string::npos);
}

TEST_F(LostFilesTest, MovesSinceTheCensusCount) {
  dir_.make_file("b/left", "1");
  dir_.make_file("b/stays", "1");
  take_census(100);
  moved(150, "/left", "b", "c");
  moved(160, "/came", "a", "b");
  moved(50, "/before", "a", "b");
  lose("b");
  lists_.add(2, {}, 200);
  moved(300, "/later", "a", "b");
  EXPECT_EQ(listed("b"), "/came\n/stays\n");
}

TEST_F(LostFilesTest, AMoveByATwinKeepsTheSizeOfTheFile) {
  dir_.make_file("b/f", std::string(5000, 'x'));
  take_census(100);
  const auto list = lists_.read(tier_of("b").member().slot);
  ASSERT_TRUE(list && list->files.size() == 1);
  const FileLists::File file = list->files[0];
  ASSERT_GT(file.bytes, 0u);
  moved(150, "/f", "b", "a", file.id);
  moved(160, "/f", "a", "b", file.id);  // by its twin: nothing was copied
  lose("b");
  ASSERT_EQ(listed("b"), "/f\n");
  EXPECT_EQ(lost_files(*pool_, store_, lists_, "b")->files[0].bytes, file.bytes);
}

TEST_F(LostFilesTest, FilesInMemoryAreAddedAndFilesWithHeatOnlyAreCounted) {
  dir_.make_file("b/listed", "1");
  take_census(100);
  lists_.add(2, {{InodeId{7}, 5, "/late"}, {InodeId{8}, 5, "/listed"}}, 200);
  Heat heat;
  heat.score = 1;
  ASSERT_TRUE(store_.add_heat({{InodeId{std::uint64_t{2} << 59 | 99}, heat}}));
  lose("b");
  EXPECT_EQ(listed("b"), "/late\n/listed\n");
  EXPECT_EQ(lost_files(*pool_, store_, lists_, "b")->nameless, 1u);
}

TEST_F(LostFilesTest, AFileThatExistsElsewhereIsNotLost) {
  dir_.make_file("b/d/x", "1");
  take_census(100);
  lose("b");
  dir_.make_file("c/d/x", "restored");
  EXPECT_EQ(listed("b"), "");
  EXPECT_EQ(lost_files(*pool_, store_, lists_, "b")->elsewhere, 1u);
}

}  // namespace
}  // namespace sluice
