// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/checker.hpp"

#include <sys/xattr.h>

#include <algorithm>

#include "tests/support/chain.hpp"
#include "tests/support/command.hpp"
#include "tests/support/loop_fs.hpp"
#include "tests/unit/tiering/pools.hpp"

namespace sluice {
namespace {

using Found = Finding::Kind;
using test::MemoryStore;
using test::open_file;

class CheckerTest : public test::PoolTest {
 protected:
  void prepare() override {
    settings_ = make_tiers("abc");
    pool_ = open(settings_);
  }
  CheckReport check(Repair repair) {
    return check_pool(*pool_, &store_, repair, [](std::uint64_t) {});
  }
  // "kind path" of every finding, followed by " +" if it was repaired.
  static std::vector<std::string> lines(const CheckReport& report) {
    std::vector<std::string> out;
    for (const Finding& f : report.findings) {
      out.push_back(std::string(name_of(f.kind)) + " " + f.path + (f.repaired ? " +" : ""));
    }
    std::ranges::sort(out);
    return out;
  }
  // A check without repair changes nothing. A check with repair repairs if `repaired`, and the
  // check after it then finds nothing.
  void expect(const std::vector<std::string>& found, bool repaired) {
    const std::string before = shown("abc");
    const CheckReport report = check(Repair::No);
    EXPECT_EQ(lines(report), found);
    EXPECT_FALSE(report.clean());
    EXPECT_EQ(shown("abc"), before) << "a check alone must change nothing";
    std::vector<std::string> after = found;
    if (repaired) {
      for (std::string& line : after) line += " +";
    }
    const CheckReport repair = check(Repair::Yes);
    EXPECT_EQ(lines(repair), after);
    EXPECT_EQ(repair.clean(), repaired);
    EXPECT_EQ(lines(check(Repair::No)), repaired ? Lines{} : found);
    if (repaired) return;
    EXPECT_EQ(shown("abc"), before) << "what is never repaired must stay";
  }
  using Lines = std::vector<std::string>;
  Tier& a() const { return (*pool_)[0]; }
  Tier& b() const { return (*pool_)[1]; }
  Tier& c() const { return (*pool_)[2]; }
  // Gives the directory `path` on `tier` the identity of `other` on `from`.
  static void carry(Tier& tier, const std::string& path, const Tier& from,
                    const std::string& other) {
    const UniqueFd fd = test::open_directory(tier.path() + "/" + path);
    ASSERT_TRUE(tier.carry_identity(fd.get(), identity_of(from, from.path() + "/" + other)));
  }

  std::vector<TierSettings> settings_;
  std::unique_ptr<Pool> pool_;
  MemoryStore store_;
};

TEST_F(CheckerTest, FindsNothingInAHealthyPool) {
  dir_.make_file("a/d/e/f", "1");
  dir_.make_file("b/d/g", "2");
  dir_.make_file("c/h", "3");
  ASSERT_EQ(::symlink("h", at("c", "link").c_str()), 0);
  ASSERT_EQ(::mkfifo(at("b", "fifo").c_str(), 0600), 0);
  const CheckReport report = check(Repair::Yes);
  EXPECT_EQ(lines(report), Lines{});
  EXPECT_TRUE(report.clean());
  EXPECT_EQ(report.files, 5u);
  EXPECT_EQ(report.directories, 3u);  // root, d, d/e
}

// Deeper than the stack and PATH_MAX allow.
TEST_F(CheckerTest, ReachesTheBottomOfADeepTree) {
  const UniqueFd bottom = test::make_chain(at("a", ""), test::kDeep);
  ASSERT_EQ(::symlinkat("target", bottom.get(), "link"), 0);
  // These are examined on the way up, after the descriptors of their levels were closed.
  test::make_chain(at("b", ""), 10);
  for (const char* tier : {"a", "b"}) dir_.make_file(std::string(tier) + "/d/d/d/twice", tier);
  CheckReport report;
  test::on_small_stack([&] { report = check(Repair::No); });
  test::remove_chain(at("a", ""));
  EXPECT_EQ(lines(report), Lines{"two-files /d/d/d/twice"});
  EXPECT_EQ(report.directories, 1u + test::kDeep);
  EXPECT_EQ(report.files, 2u);
}

TEST_F(CheckerTest, IgnoresThePrivateDirectory) {
  dir_.make_file("a/.sluice/note", "1");
  dir_.make_file("b/.sluice/note", "2");
  dir_.make_file("a/d/.sluice", "a user's own, not in the root");
  const CheckReport report = check(Repair::No);
  EXPECT_EQ(lines(report), Lines{});
  EXPECT_EQ(report.files, 1u);
}

TEST_F(CheckerTest, RemovesTheSlowerOfTwoEqualFiles) {
  dir_.make_file("a/d/f", "same");
  dir_.make_file("b/d/f", "same");
  expect({"same-file-twice /d/f"}, true);
  EXPECT_EQ(test::read_file(at("a", "d/f")), "same");
  EXPECT_FALSE(test::exists(at("b", "d/f")));
}

TEST_F(CheckerTest, KeepsTheFastestOfThreeEqualFiles) {
  for (const char* tier : {"a", "b", "c"}) {
    test::write_file(at(tier, "f"), test::pattern(700'000, 1));
  }
  EXPECT_EQ(lines(check(Repair::Yes)), (Lines{"same-file-twice /f +", "same-file-twice /f +"}));
  EXPECT_TRUE(test::exists(at("a", "f")));
  EXPECT_FALSE(test::exists(at("b", "f")) || test::exists(at("c", "f")));
}

TEST_F(CheckerTest, TwoDifferentFilesAreNotRepaired) {
  dir_.make_file("a/f", "one");
  dir_.make_file("b/f", "two");
  expect({"two-files /f"}, false);
}

TEST_F(CheckerTest, FilesThatDifferInTheirLastByteAreDifferent) {
  std::string content = test::pattern(600'000, 2);
  dir_.make_file("a/f", content);
  content.back() = static_cast<char>(content.back() ^ 1);
  dir_.make_file("c/f", content);
  expect({"two-files /f"}, false);
}

TEST_F(CheckerTest, FilesOfDifferentSizeOrTypeAreDifferent) {
  dir_.make_file("a/f", "one");
  dir_.make_file("b/f", "one and more");
  dir_.make_file("a/g", "one");
  ASSERT_EQ(::symlink("one", at("b", "g").c_str()), 0);
  ASSERT_EQ(::mkfifo(at("a", "fifo").c_str(), 0600), 0);
  ASSERT_EQ(::mkfifo(at("b", "fifo").c_str(), 0600), 0);
  const CheckReport report = check(Repair::Yes);
  EXPECT_EQ(lines(report), (Lines{"two-files /f", "two-files /fifo", "two-files /g"}));
  EXPECT_FALSE(report.clean());
  EXPECT_TRUE(test::exists(at("b", "f")) && test::exists(at("b", "g")));
}

TEST_F(CheckerTest, ATypeClashIsNotRepaired) {
  dir_.make_file("a/x/inside", "1");
  dir_.make_file("b/x", "a file");
  dir_.make_file("a/y", "a file");
  dir_.make_file("b/y/inside", "2");
  expect({"type-clash /x", "type-clash /y"}, false);
}

TEST_F(CheckerTest, CopiesOfADirectoryGetTheAttributesOfTheFastest) {
  for (const char* tier : {"a", "b", "c"}) dir_.make_dir(std::string(tier) + "/d");
  ASSERT_EQ(::chmod(at("a", "d").c_str(), 0750), 0);
  ASSERT_EQ(::chown(at("a", "d").c_str(), 12, 34), 0);
  ASSERT_EQ(::setxattr(at("c", "d").c_str(), "user.k", "v", 1, 0), 0);
  ASSERT_EQ(::chmod(at("c", "d").c_str(), 0750), 0);
  ASSERT_EQ(::chown(at("c", "d").c_str(), 12, 34), 0);
  expect({"directory-attributes /d", "directory-attributes /d"}, true);
  for (const char* tier : {"b", "c"}) {
    EXPECT_EQ(test::lstat_of(at(tier, "d")).st_mode & 07777, 0750u) << tier;
    EXPECT_EQ(test::lstat_of(at(tier, "d")).st_uid, 12u) << tier;
  }
  EXPECT_EQ(test::xattr_of(at("c", "d"), "user.k"), std::nullopt);
}

TEST_F(CheckerTest, TheIdentityOfADirectoryCopyIsNotAnAttribute) {
  dir_.make_dir("a/d");
  dir_.make_dir("b/d");
  ASSERT_TRUE(
      b().carry_identity(test::open_directory(at("b", "d")).get(), identity_of(a(), at("a", "d"))));
  EXPECT_EQ(lines(check(Repair::No)), Lines{});
}

TEST_F(CheckerTest, TwoFilesWithOneIdentityGetSeparateIdentities) {
  if (!test::require("unit", test::on_ext4(dir_.path()), "not on ext4")) return;
  dir_.make_file("a/original", "x");
  const Identity born = identity_of(a(), at("a", "original"));
  ASSERT_EQ(::unlink(at("a", "original").c_str()), 0);
  dir_.make_file("b/f", "1");
  dir_.make_file("b/g", "2");
  for (const char* name : {"f", "g"}) {
    ASSERT_TRUE(b().carry_identity(open_file(at("b", name)).get(), born));
  }
  expect({"shared-identity /g"}, true);
  EXPECT_EQ(identity_of(b(), at("b", "f")), born);
  EXPECT_NE(identity_of(b(), at("b", "g")), born);
}

TEST_F(CheckerTest, OneDirectoryUnderTwoNamesIsNotRepaired) {
  dir_.make_file("a/one/f", "1");
  dir_.make_file("b/two/g", "2");
  carry(b(), "two", a(), "one");
  expect({"shared-identity /two"}, false);
  const CheckReport report = check(Repair::No);
  const std::string& detail = report.findings.at(0).detail;
  EXPECT_NE(detail.find("/one on tier a"), std::string::npos) << detail;
  EXPECT_NE(detail.find("setfattr -x trusted.sluice.id " + at("b", "two")), std::string::npos)
      << detail;
}

TEST_F(CheckerTest, FindsDirectoriesThatWereSwappedOnOneTier) {
  for (const char* tier : {"a", "b", "c"}) {
    dir_.make_file(std::string(tier) + "/one/" + tier + "1", "1");
    dir_.make_file(std::string(tier) + "/two/" + tier + "2", "2");
  }
  carry(b(), "one", a(), "two");
  carry(b(), "two", a(), "one");
  carry(c(), "one", a(), "one");
  carry(c(), "two", a(), "two");
  expect({"shared-identity /one", "shared-identity /two"}, false);
}

TEST_F(CheckerTest, CopiesOfAMissingDirectoryMustHaveTheSameName) {
  dir_.make_dir("a/born");
  dir_.make_file("b/one/f", "1");
  dir_.make_file("c/two/g", "2");
  carry(b(), "one", a(), "born");
  carry(c(), "two", a(), "born");
  ASSERT_EQ(::rmdir(at("a", "born").c_str()), 0);
  expect({"shared-identity /two"}, false);
}

TEST_F(CheckerTest, AnEmptyDirectoryWithTheIdentityOfAnotherGetsItsOwn) {
  dir_.make_file("a/one/f", "1");
  dir_.make_dir("b/two");
  carry(b(), "two", a(), "one");
  expect({"shared-identity /two"}, true);
  EXPECT_NE(identity_of(b(), at("b", "two")), identity_of(a(), at("a", "one")));
}

TEST_F(CheckerTest, SeparatelyCreatedDirectoriesOfOneNameAreFine) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("b/d/g", "2");
  EXPECT_EQ(lines(check(Repair::No)), Lines{});
}

TEST_F(CheckerTest, AFileThatMovedBackMustNotShareItsIdentity) {
  if (!test::require("unit", test::on_ext4(dir_.path()), "not on ext4")) return;
  dir_.make_file("a/original", "x");
  const Identity born = identity_of(a(), at("a", "original"));
  ASSERT_EQ(::unlink(at("a", "original").c_str()), 0);
  dir_.make_file("a/f", "1");
  dir_.make_file("b/g", "2");
  ASSERT_TRUE(a().carry_identity(open_file(at("a", "f")).get(), born));
  ASSERT_TRUE(b().carry_identity(open_file(at("b", "g")).get(), born));
  expect({"shared-identity /g"}, true);
}

TEST_F(CheckerTest, AclAliasesAreRemovedOutsideXfs) {
  dir_.make_file("a/d/f", "1");
  for (const std::string path : {"a", "a/d", "a/d/f"}) {
    ASSERT_EQ(::setxattr((dir_ / path).c_str(), "trusted.SGI_ACL_FILE", "x", 1, 0), 0);
  }
  ASSERT_EQ(::setxattr(at("a", "d").c_str(), "trusted.SGI_ACL_DEFAULT", "x", 1, 0), 0);
  expect({"acl-alias /", "acl-alias /d", "acl-alias /d", "acl-alias /d/f"}, true);
  EXPECT_EQ(test::xattr_of(at("a", "d/f"), "trusted.SGI_ACL_FILE"), std::nullopt);
}

TEST_F(CheckerTest, AclAliasesAreKeptOnXfs) {
  if (!test::require_loop("unit", "xfs")) return;
  const test::LoopFs disk(dir_ / "x", "xfs", 0);
  pool_.reset();
  pool_ = open({tier("x", disk.path())});
  test::write_file(disk.path() + "/f", "1");
  ASSERT_TRUE(test::run_command({"setfacl", "-m", "u:77:r", disk.path() + "/f"}).ok());
  ASSERT_TRUE(test::xattr_of(disk.path() + "/f", "trusted.SGI_ACL_FILE"));
  EXPECT_EQ(lines(check(Repair::Yes)), Lines{});
  EXPECT_TRUE(test::xattr_of(disk.path() + "/f", "trusted.SGI_ACL_FILE"));
  pool_.reset();
}

TEST_F(CheckerTest, HardLinksMayShareAnIdentity) {
  dir_.make_file("a/original", "x");
  const Identity born = identity_of(a(), at("a", "original"));
  ASSERT_EQ(::unlink(at("a", "original").c_str()), 0);
  dir_.make_file("b/f", "1");
  ASSERT_TRUE(b().carry_identity(open_file(at("b", "f")).get(), born));
  ASSERT_EQ(::link(at("b", "f").c_str(), at("b", "g").c_str()), 0);
  EXPECT_EQ(lines(check(Repair::No)), Lines{});
}

TEST_F(CheckerTest, LeftOversAreRemoved) {
  dir_.make_file("b/.sluice/tmp/t7", "half a copy");
  dir_.make_dir("b/.sluice/tmp/t8");
  dir_.make_file("b/f", "1");
  expect({"left-over /.sluice/tmp"}, true);
  EXPECT_TRUE(test::names_in(at("b", ".sluice/tmp")).empty());
  EXPECT_TRUE(test::exists(at("b", "f")));
}

TEST_F(CheckerTest, UnfinishedOperationsAreFinished) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("b/d/g", "2");
  ASSERT_TRUE(announce(
      store_, {step(Step::Kind::Rename, a(), "d", "e"), step(Step::Kind::Rename, b(), "d", "e")}));
  expect({"unfinished /"}, true);
  EXPECT_EQ(shown(), "a/e/ 755\na/e/f 644 \"1\"\nb/e/ 755\nb/e/g 644 \"2\"\n");
}

TEST_F(CheckerTest, ACopyNeededByAnUnfinishedOperationIsNotALeftOver) {
  dir_.make_file("b/.sluice/tmp/t1", "moved");
  ASSERT_TRUE(announce(store_, {step(Step::Kind::Rename, b(), ".sluice/tmp/t1", "f")}));
  const CheckReport report = check(Repair::Yes);
  EXPECT_TRUE(report.clean());
  ASSERT_TRUE(test::exists(at("b", "f")));
  EXPECT_EQ(test::read_file(at("b", "f")), "moved");
}

TEST_F(CheckerTest, UnfinishedOperationsOfATierThatIsOfflineStay) {
  dir_.make_file("c/f", "1");
  ASSERT_TRUE(announce(store_, {step(Step::Kind::Rename, c(), "f", "g")}));
  ASSERT_EQ(::rename((dir_ / "c").c_str(), (dir_ / "away").c_str()), 0);
  ASSERT_TRUE(c().check_presence());
  const CheckReport report = check(Repair::Yes);
  EXPECT_EQ(lines(report), (Lines{"unfinished /", "unreadable /"}));
  EXPECT_FALSE(report.clean());
  EXPECT_EQ(intents_in(store_), 1u);
}

TEST_F(CheckerTest, ATierThatIsOfflineIsUnreadableAndTheOthersAreChecked) {
  dir_.make_file("a/f", "one");
  dir_.make_file("b/f", "two");
  dir_.make_file("c/f", "three");
  ASSERT_EQ(::rename((dir_ / "c").c_str(), (dir_ / "away").c_str()), 0);
  ASSERT_TRUE(c().check_presence());
  const CheckReport report = check(Repair::Yes);
  EXPECT_EQ(lines(report), (Lines{"two-files /f", "unreadable /"}));
  EXPECT_FALSE(report.clean());
}

TEST_F(CheckerTest, AStoreThatFailsIsUnreadable) {
  store_.fail_call(1);
  EXPECT_EQ(lines(check(Repair::No)), Lines{"unreadable /"});
}

TEST_F(CheckerTest, WithoutAStoreIntentsAreNotChecked) {
  dir_.make_file("a/f", "1");
  ASSERT_TRUE(announce(store_, {step(Step::Kind::Rename, a(), "f", "g")}));
  const CheckReport report = check_pool(*pool_, nullptr, Repair::Yes, [](std::uint64_t) {});
  EXPECT_EQ(lines(report), Lines{});
  EXPECT_TRUE(test::exists(at("a", "f")));
}

TEST_F(CheckerTest, ReportsProgress) {
  dir_.make_dir("a/d");
  for (int i = 0; i < 2001; ++i) test::write_file(at("a", "d/f" + std::to_string(i)), "");
  std::vector<std::uint64_t> told;
  const CheckReport report =
      check_pool(*pool_, &store_, Repair::No, [&](std::uint64_t files) { told.push_back(files); });
  EXPECT_EQ(told, (std::vector<std::uint64_t>{1000, 2000}));
  EXPECT_EQ(report.files, 2001u);
}

TEST_F(CheckerTest, EveryKindHasAUniqueName) {
  Lines names;
  for (int kind = 0; kind <= static_cast<int>(Found::Unreadable); ++kind) {
    names.emplace_back(name_of(static_cast<Found>(kind)));
  }
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
  EXPECT_EQ(std::ranges::count(names, "unknown"), 0);
}

}  // namespace
}  // namespace sluice
