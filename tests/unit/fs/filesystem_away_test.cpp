// SPDX-License-Identifier: BSD-2-Clause
// Changes made while a tier is offline stay after its return, and operations apply to the file that
// the kernel knows under a name.
#include <linux/fs.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/unit/fs/test_filesystem.hpp"

namespace sluice {
namespace {

constexpr Caller kFirstUser{1001, 1001, 022}, kSecondUser{1002, 1002, 022};

class AwayTest : public FilesystemTest {
 protected:
  void make(InodeId parent, const char* name, const std::string& content, const Caller& caller) {
    const auto made = fs_->files().create(parent, name, 0644, O_RDWR, caller);
    ASSERT_TRUE(made) << made.error().text();
    ASSERT_TRUE(
        fs_->files().write(made->first.id, content.data(), content.size(), 0, std::nullopt));
    fs_->files().release(made->first.id, O_RDWR);
  }
  // The files that were set aside on a tier, by the end of their paths.
  NameList aside(const std::string& tier) {
    NameList out;
    const std::string top = at(tier, ".sluice/aside");
    if (!test::exists(top)) return out;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(top)) {
      if (entry.is_directory()) continue;
      const std::string below = entry.path().string().substr(top.size() + 1);
      out.push_back(below.substr(below.find('/') + 1));
    }
    std::ranges::sort(out);
    return out;
  }
  mode_t mode_of(const std::string& path) { return entry_of(path).st.st_mode & 07777; }
};

TEST_F(AwayTest, AFileReplacedWhileTheFastTierIsOfflineStaysAfterItsReturn) {
  dir_.make_file("a/d/f", "version 1");
  dir_.make_dir("b/d");
  const InodeId d = id_of("d");
  take_away("a");
  make(d, "f", "version 2", kRoot);
  make(d, "g.tmp", "version 2", kRoot);
  ASSERT_TRUE(rename(d, "g.tmp", d, "g", 0));
  bring_back("a");
  EXPECT_GT(kernel_.names_dropped, 0) << "the kernel may believe names from before";
  EXPECT_EQ(read_path("d/f"), "version 2");
  EXPECT_EQ(aside("a"), NameList{"d/f"});
  EXPECT_EQ(intents_in(store_), 0u);
  mount(make_tiers("abc"));
  EXPECT_EQ(read_path("d/f"), "version 2");
}

TEST_F(AwayTest, ReplacementsSurviveARemountWithoutTheTier) {
  dir_.make_file("a/d/f", "version 1");
  dir_.make_dir("b/d");
  const auto settings = make_tiers("abc");
  fs_.reset();
  pool_.reset();
  ASSERT_EQ(::rename((dir_ / "a").c_str(), (dir_ / "away-a").c_str()), 0);
  mount(settings, Pool::Missing::Tolerate);
  make(id_of("d"), "f", "version 2", kRoot);
  fs_.reset();
  pool_.reset();
  ASSERT_EQ(::rename((dir_ / "away-a").c_str(), (dir_ / "a").c_str()), 0);
  mount(settings);
  ASSERT_TRUE(replay_intents(store_, *pool_));  // as the daemon does before it mounts
  EXPECT_EQ(read_path("d/f"), "version 2");
  EXPECT_EQ(aside("a"), NameList{"d/f"});
}

TEST_F(AwayTest, FilesThatWereNotReplacedAreUnchanged) {
  dir_.make_file("a/d/f", "version 1");
  dir_.make_dir("b/d");
  const InodeId d = id_of("d");
  take_away("a");
  make(d, "f", "short-lived", kRoot);
  ASSERT_TRUE(unlink(d, "f"));
  bring_back("a");
  EXPECT_EQ(read_path("d/f"), "version 1");
  EXPECT_EQ(aside("a"), NameList{});
}

TEST_F(AwayTest, InAStickyDirectoryAFileOfAnotherUserKeepsItsName) {
  for (const char* tier : {"a", "b"}) {
    dir_.make_dir(std::string(tier) + "/shared");
    ASSERT_EQ(::chmod(at(tier, "shared").c_str(), 01777), 0);
  }
  dir_.make_file("a/shared/thesis", "the first user's");
  dir_.make_file("a/shared/notes", "the second user's, old");
  ASSERT_EQ(::chown(at("a", "shared/thesis").c_str(), kFirstUser.uid, kFirstUser.gid), 0);
  ASSERT_EQ(::chown(at("a", "shared/notes").c_str(), kSecondUser.uid, kSecondUser.gid), 0);
  const InodeId shared = id_of("shared");
  take_away("a");
  make(shared, "thesis", "the second user's", kSecondUser);
  make(shared, "notes", "the second user's, new", kSecondUser);
  bring_back("a");
  EXPECT_EQ(read_path("shared/thesis"), "the first user's");
  EXPECT_EQ(aside("b"), NameList{"shared/thesis"});
  EXPECT_EQ(read_path("shared/notes"), "the second user's, new");
  EXPECT_EQ(aside("a"), NameList{"shared/notes"});
}

TEST_F(AwayTest, DirectoriesOfOneOwnerAreMergedWithTheStricterMode) {
  dir_.make_file("a/d/sub/f", "version 1");
  dir_.make_file("a/d/sub/other", "other");
  dir_.make_dir("b/d");
  ASSERT_EQ(::chmod(at("a", "d/sub").c_str(), 0750), 0);
  const InodeId d = id_of("d");
  take_away("a");
  const auto sub = fs_->names().mkdir(d, "sub", 0705, Caller{0, 0, 0});
  ASSERT_TRUE(sub);
  make(sub->id, "f", "version 2", kRoot);
  bring_back("a");
  EXPECT_EQ(id_of("d/sub"), sub->id);
  EXPECT_EQ(read_path("d/sub/f"), "version 2");
  EXPECT_EQ(read_path("d/sub/other"), "other");
  EXPECT_EQ(mode_of("d/sub"), 0700u);
  EXPECT_EQ(names(sub->id), (NameList{".", "..", "f", "other"}));
}

TEST_F(AwayTest, TheReturningDirectoryOfAnotherOwnerReplacesTheNewOne) {
  dir_.make_file("a/d/home/secret", "secret");
  dir_.make_dir("b/d");
  ASSERT_EQ(::chmod(at("a", "d/home").c_str(), 0700), 0);
  ASSERT_EQ(::chown(at("a", "d/home").c_str(), kFirstUser.uid, kFirstUser.gid), 0);
  const InodeId d = id_of("d");
  take_away("a");
  const auto home = fs_->names().mkdir(d, "home", 0777, kSecondUser);
  ASSERT_TRUE(home);
  make(home->id, "his", "his", kSecondUser);
  bring_back("a");
  const Entry now = entry_of("d/home");
  EXPECT_EQ(now.st.st_uid, kFirstUser.uid);
  EXPECT_EQ(now.st.st_mode & 07777, 0700u);
  EXPECT_EQ(aside("b"), NameList{"d/home/his"});
  // A process that still uses the other directory does not see her files.
  EXPECT_FALSE(has(home->id, "secret"));
}

TEST_F(AwayTest, DirectoryAttributesChangedMeanwhileStay) {
  dir_.make_file("a/hr/f", "x");
  dir_.make_dir("b/hr");
  const InodeId hr = id_of("hr");
  take_away("a");
  AttributeChange change;
  change.mode = 0700;
  change.uid = 12;
  ASSERT_TRUE(fs_->attributes().set(hr, change));
  ASSERT_TRUE(fs_->xattrs().set(hr, "user.k", "v", 1, 0, kRoot));
  bring_back("a");
  EXPECT_EQ(mode_of("hr"), 0700u);
  EXPECT_EQ(entry_of("hr").st.st_uid, 12u);
  EXPECT_EQ(xattr("hr", "user.k"), "v");
  EXPECT_EQ(test::lstat_of(at("a", "hr")).st_mode & 07777, 0700u);
  EXPECT_EQ(intents_in(store_), 0u);
}

TEST_F(AwayTest, ManyChangesNeedOneJournalRecord) {
  dir_.make_dir("a/d");
  dir_.make_dir("b/d");
  const InodeId d = id_of("d");
  take_away("a");
  for (int i = 0; i < 10; ++i) {
    make(d, "f", "x", kRoot);
    ASSERT_TRUE(unlink(d, "f"));
    AttributeChange change;
    change.mode = 0700 + i;
    ASSERT_TRUE(fs_->attributes().set(d, change));
  }
  EXPECT_EQ(intents_in(store_), 2u);
}

TEST_F(AwayTest, ATierStaysOfflineUntilItsJournalIsApplied) {
  dir_.make_file("a/d/f", "version 1");
  dir_.make_dir("b/d");
  const InodeId d = id_of("d");
  take_away("a");
  make(d, "f", "version 2", kRoot);
  // Makes setting files aside fail.
  test::write_file(dir_ / "away-a/.sluice/aside", "");
  bring_back("a");
  EXPECT_EQ(read_path("d/f"), "version 2");
  EXPECT_FALSE((*pool_)[0].online());
  ASSERT_EQ(::unlink(at("a", ".sluice/aside").c_str()), 0);
  fs_->tick();
  EXPECT_TRUE((*pool_)[0].online());
  EXPECT_EQ(read_path("d/f"), "version 2");
}

class KernelNameTest : public FilesystemTest {};

TEST_F(KernelNameTest, UnlinkRemovesTheFileThatTheKernelKnows) {
  dir_.make_file("b/f", "mine");
  const InodeId mine = id_of("f");
  dir_.make_file("a/f", "another's");
  ASSERT_TRUE(fs_->names().unlink(kRootId, "f"));
  EXPECT_EQ(test::read_file(at("a", "f")), "another's");
  EXPECT_FALSE(test::exists(at("b", "f")));
  EXPECT_EQ(fs_->attributes().get(mine)->st.st_nlink, 0u);
}

TEST_F(KernelNameTest, RenameTakesTheFileThatTheKernelKnows) {
  dir_.make_file("b/f", "mine");
  id_of("f");
  dir_.make_file("a/f", "another's");
  ASSERT_TRUE(fs_->names().rename(kRootId, "f", kRootId, "g", 0));
  EXPECT_EQ(test::read_file(at("a", "f")), "another's");
  EXPECT_EQ(test::read_file(at("b", "g")), "mine");
}

TEST_F(KernelNameTest, AFileUnknownToTheKernelIsNeitherRemovedNorReplaced) {
  dir_.make_file("a/f", "1");
  dir_.make_file("a/g", "2");
  dir_.make_dir("a/d");
  EXPECT_TRUE(failed_with(fs_->names().unlink(kRootId, "f"), ESTALE));
  EXPECT_TRUE(failed_with(fs_->names().rmdir(kRootId, "d"), ESTALE));
  id_of("f");
  EXPECT_TRUE(failed_with(fs_->names().rename(kRootId, "f", kRootId, "g", 0), ESTALE));
  EXPECT_TRUE(failed_with(fs_->names().rename(kRootId, "g", kRootId, "f", 0), ESTALE));
  EXPECT_EQ(test::read_file(at("a", "f")) + test::read_file(at("a", "g")), "12");
}

TEST_F(KernelNameTest, AFileLookedUpBeforeItsUnlinkCanStillBeOpened) {
  for (const bool replaced : {false, true}) {
    dir_.make_file("a/f", "old");
    const InodeId id = id_of("f");
    if (replaced) {
      dir_.make_file("a/new", "new");
      ASSERT_TRUE(rename(kRootId, "new", kRootId, "f", 0));
    } else {
      ASSERT_TRUE(fs_->names().unlink(kRootId, "f"));
    }
    for (const int flags : {O_RDONLY, O_RDWR}) {
      ASSERT_TRUE(fs_->files().open(id, flags, kOpener, std::nullopt)) << replaced << flags;
      EXPECT_EQ(read_all(id), "old");
      fs_->files().release(id, flags);
    }
    EXPECT_EQ(fs_->attributes().get(id)->st.st_nlink, 0u);
    if (replaced) {
      ASSERT_TRUE(unlink(kRootId, "f"));
    }
  }
}

TEST_F(KernelNameTest, ADeletedFileIsClosedWithTheKernelsLastReference) {
  dir_.make_file("a/f", "old");
  const InodeId id = id_of("f");
  ASSERT_TRUE(
      fs_->files().open(id, O_RDONLY, kOpener, std::nullopt));  // the heat counts this open later
  ASSERT_TRUE(fs_->names().unlink(kRootId, "f"));
  fs_->files().release(id, O_RDONLY);
  fs_->names().forget(id, 1);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string file = std::filesystem::read_symlink(entry, gone).string();
    EXPECT_FALSE(file.starts_with(at("a", "f"))) << file;
  }
}

class IdentityTest : public FilesystemTest {
 protected:
  void exchange(const std::string& tier, const std::string& x, const std::string& y) {
    ASSERT_EQ(
        ::renameat2(AT_FDCWD, at(tier, x).c_str(), AT_FDCWD, at(tier, y).c_str(), RENAME_EXCHANGE),
        0);
  }
};

// The state in the middle of an exchange, which runs tier by tier.
TEST_F(IdentityTest, CopiesOfTwoDirectoriesAreNeverMerged) {
  for (const char* name : {"x", "y"}) {
    const std::string n = name;
    dir_.make_file("a/" + n + "/in-" + n + "-a", "");
    dir_.make_file("b/" + n + "/in-" + n + "-b", "");
  }
  const InodeId x = id_of("x"), y = id_of("y");
  EXPECT_EQ(names(x), (NameList{".", "..", "in-x-a", "in-x-b"}));
  exchange("a", "x", "y");
  EXPECT_EQ(id_of("x"), y);
  EXPECT_EQ(id_of("y"), x);
  EXPECT_EQ(names(x), (NameList{".", "..", "in-x-a", "in-x-b"}));
  exchange("b", "x", "y");
  EXPECT_EQ(id_of("x"), y);
  EXPECT_EQ(names(y), (NameList{".", "..", "in-y-a", "in-y-b"}));
  EXPECT_EQ(names(x), (NameList{".", "..", "in-x-a", "in-x-b"}));
}

TEST_F(IdentityTest, DirectoriesMadeSeparatelyAreMergedForGood) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("b/d/g", "2");
  dir_.make_file("c/d/h", "3");
  const InodeId d = id_of("d");
  EXPECT_EQ(names(d), (NameList{".", "..", "f", "g", "h"}));
  // They keep the identity even without the fastest copy, from which it came.
  ASSERT_EQ(::unlink(at("a", "d/f").c_str()), 0);
  ASSERT_EQ(::rmdir(at("a", "d").c_str()), 0);
  mount(make_tiers("abc"));
  EXPECT_EQ(id_of("d"), d);
}

TEST_F(IdentityTest, ACopyMadeDirectlyOnATierIsUsed) {
  dir_.make_file("a/x/f", "1");
  const InodeId x = id_of("x");
  dir_.make_dir("b/x");
  dir_.make_file("b/f", "2");
  ASSERT_TRUE(rename(id_of(""), "f", x, "g", 0));
  EXPECT_EQ(test::read_file(at("b", "x/g")), "2");
  EXPECT_EQ(names(x), (NameList{".", "..", "f", "g"}));
  EXPECT_EQ(xattr("x", "user.sluice.tier"), "a,b");
  ASSERT_TRUE(unlink(x, "f"));
  ASSERT_TRUE(unlink(x, "g"));
  ASSERT_TRUE(rmdir(kRootId, "x"));
  EXPECT_FALSE(test::exists(at("a", "x")) || test::exists(at("b", "x")));
}

}  // namespace
}  // namespace sluice
