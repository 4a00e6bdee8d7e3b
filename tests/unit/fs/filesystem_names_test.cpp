// SPDX-License-Identifier: BSD-2-Clause
// Names, listings and attributes, asked for directly.
#include <dirent.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <set>

#include "tests/support/loop_fs.hpp"
#include "tests/unit/fs/test_filesystem.hpp"

namespace {
thread_local int g_data_syncs = 0;
thread_local std::function<void()> g_after_listing;  // of xattrs, once
}  // namespace

// In place of libc's, to count and to be there at the worst moment.
extern "C" ssize_t listxattr(const char* path, char* list, std::size_t size) noexcept {
  const ssize_t found = ::syscall(SYS_listxattr, path, list, size);
  if (g_after_listing) std::exchange(g_after_listing, nullptr)();
  return found;
}

extern "C" int fdatasync(int fd) {
  ++g_data_syncs;
  return static_cast<int>(::syscall(SYS_fdatasync, fd));
}

namespace sluice {
namespace {

class NamesTest : public FilesystemTest {};

TEST_F(NamesTest, AreFoundOnEveryTier) {
  dir_.make_file("a/f", "1");
  dir_.make_file("b/g", "22");
  dir_.make_file("c/d/h", "333");
  for (const auto& [path, size] : {std::pair("f", 1), std::pair("g", 2), std::pair("d/h", 3)}) {
    const Entry entry = entry_of(path);
    EXPECT_EQ(entry.st.st_size, size) << path;
    EXPECT_EQ(entry.st.st_ino, to_number(entry.id)) << path;
    EXPECT_EQ(fs_->getattr(entry.id)->st.st_ino, to_number(entry.id)) << path;
  }
  EXPECT_EQ(read_path("d/h"), "333");
}

TEST_F(NamesTest, ThatDoNotExistMayBeRemembered) {
  const auto entry = fs_->lookup(kRootId, "missing");
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->id, InodeId{});
  EXPECT_GT(entry->entry_seconds, 0);
}

TEST_F(NamesTest, ThatMayBeOnATierThatIsAwayAreNotRememberedAsMissing) {
  dir_.make_file("b/f", "1");
  take_away("b");
  const auto entry = fs_->lookup(kRootId, "f");
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->id, InodeId{});
  EXPECT_EQ(entry->entry_seconds, 0);
  bring_back("b");
  EXPECT_EQ(read_path("f"), "1");
}

TEST_F(NamesTest, OurOwnDirectoryIsHidden) {
  EXPECT_FALSE(has(kRootId, ".sluice"));
  EXPECT_TRUE(failed_with(fs_->mkdir(kRootId, ".sluice", 0755, kRoot), EPERM));
  EXPECT_TRUE(failed_with(fs_->create(kRootId, ".sluice", 0644, O_RDWR, kRoot), EPERM));
  EXPECT_TRUE(failed_with(fs_->mknod(kRootId, ".sluice", S_IFIFO, 0, kRoot), EPERM));
  EXPECT_TRUE(failed_with(fs_->symlink("x", kRootId, ".sluice", kRoot), EPERM));
  EXPECT_TRUE(failed_with(fs_->unlink(kRootId, ".sluice"), ENOENT));
  EXPECT_TRUE(failed_with(fs_->rmdir(kRootId, ".sluice"), ENOENT));
  ASSERT_TRUE(fs_->mkdir(kRootId, "d", 0755, kRoot));
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "d", kRootId, ".sluice", 0), EPERM));
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, ".sluice", kRootId, "x", 0), EPERM));
  EXPECT_TRUE(fs_->mkdir(id_of("d"), ".sluice", 0755, kRoot)) << "elsewhere it is a name like any";
  EXPECT_TRUE(has(id_of("d"), ".sluice"));
  EXPECT_TRUE(test::exists(at("a", ".sluice/tier.json")));
}

TEST_F(NamesTest, OfAFileOnTwoTiersTheFastestCounts) {
  dir_.make_file("b/f", "middle");
  dir_.make_file("c/f", "slow");
  EXPECT_EQ(read_path("f"), "middle");
  EXPECT_EQ(xattr("f", "user.sluice.tier"), "b");
}

TEST_F(NamesTest, OfADirectoryOnTwoTiersAreOne) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("c/d/g", "2");
  EXPECT_EQ(id_of("d"), id_of("d"));
  EXPECT_EQ(read_path("d/f"), "1");
  EXPECT_EQ(read_path("d/g"), "2");
  EXPECT_EQ(xattr("d", "user.sluice.tier"), "a,c");
  EXPECT_EQ(entry_of("d").st.st_nlink, 1u);
}

TEST_F(NamesTest, ANewFileIsMadeOnTheFastestTierAsItsCaller) {
  const auto made = fs_->create(kRootId, "f", 0666, O_RDWR, Caller{1234, 5678, 027});
  ASSERT_TRUE(made);
  const struct stat st = test::lstat_of(at("a", "f"));
  EXPECT_EQ(st.st_uid, 1234u);
  EXPECT_EQ(st.st_gid, 5678u);
  EXPECT_EQ(st.st_mode & 07777, 0640u);
  EXPECT_EQ(made->first.id, id_of("f"));
  EXPECT_EQ(fs_->open_files(), 1u);
  fs_->release(made->first.id, O_RDWR);
  EXPECT_EQ(fs_->open_files(), 0u);
}

TEST_F(NamesTest, CreatingWhatExistsFailsOrOpensIt) {
  dir_.make_file("a/f", "old");
  EXPECT_TRUE(failed_with(fs_->create(kRootId, "f", 0644, O_RDWR | O_EXCL, kRoot), EEXIST));
  const auto opened = fs_->create(kRootId, "f", 0644, O_RDWR, kRoot);
  ASSERT_TRUE(opened);
  EXPECT_EQ(read_all(opened->first.id), "old");
}

TEST_F(NamesTest, EveryTypeOfFileCanBeMade) {
  ASSERT_TRUE(fs_->mkdir(kRootId, "dir", 0777, Caller{1, 2, 022}));
  ASSERT_TRUE(fs_->symlink("some/target", kRootId, "link", Caller{3, 4, 0}));
  ASSERT_TRUE(fs_->mknod(kRootId, "fifo", S_IFIFO | 0622, 0, Caller{5, 6, 0}));
  EXPECT_EQ(test::lstat_of(at("a", "dir")).st_mode, S_IFDIR | 0755u);
  EXPECT_EQ(test::lstat_of(at("a", "dir")).st_uid, 1u);
  EXPECT_EQ(test::lstat_of(at("a", "link")).st_gid, 4u);
  EXPECT_EQ(test::lstat_of(at("a", "fifo")).st_mode, S_IFIFO | 0622u);
  EXPECT_EQ(*fs_->readlink(id_of("link")), "some/target");
  EXPECT_TRUE(failed_with(fs_->mkdir(kRootId, "dir", 0755, kRoot), EEXIST));
}

TEST_F(NamesTest, ALinkIsMadeOnTheTierOfItsFile) {
  dir_.make_file("b/f", "1");
  dir_.make_dir("a/d");
  const auto linked = fs_->link(id_of("f"), id_of("d"), "g");
  ASSERT_TRUE(linked);
  EXPECT_EQ(linked->id, id_of("f"));
  EXPECT_EQ(linked->st.st_nlink, 2u);
  EXPECT_EQ(test::lstat_of(at("b", "d/g")).st_ino, test::lstat_of(at("b", "f")).st_ino);
}

TEST_F(NamesTest, ANewFileBringsItsDirectoriesToItsTier) {
  dir_.make_dir("c/d/e");
  ASSERT_EQ(::chown(at("c", "d").c_str(), 12, 34), 0);
  ASSERT_EQ(::chmod(at("c", "d").c_str(), 02771), 0);
  ASSERT_EQ(::setxattr(at("c", "d").c_str(), "user.k", "v", 1, 0), 0);
  const InodeId d = id_of("d"), e = id_of("d/e");
  ASSERT_TRUE(fs_->create(e, "f", 0644, O_RDWR, kRoot));
  EXPECT_TRUE(test::exists(at("a", "d/e/f")));
  EXPECT_EQ(test::lstat_of(at("a", "d")).st_mode, test::lstat_of(at("c", "d")).st_mode);
  EXPECT_EQ(test::lstat_of(at("a", "d")).st_uid, 12u);
  EXPECT_EQ(test::xattr_of(at("a", "d"), "user.k"), "v");
  EXPECT_EQ(id_of("d"), d);
  EXPECT_EQ(id_of("d/e"), e);
  EXPECT_TRUE(test::names_in(at("a", ".sluice/tmp")).empty());
  // The same after a remount, when only the disks remember.
  mount(make_tiers("abc"));
  EXPECT_EQ(id_of("d"), d);
  EXPECT_EQ(id_of("d/e"), e);
}

TEST_F(NamesTest, UnlinkRemovesTheFile) {
  dir_.make_file("b/f", "1");
  ASSERT_TRUE(fs_->unlink(kRootId, "f"));
  EXPECT_FALSE(test::exists(at("b", "f")));
  EXPECT_FALSE(has(kRootId, "f"));
  EXPECT_TRUE(failed_with(fs_->unlink(kRootId, "f"), ENOENT));
}

TEST_F(NamesTest, RmdirRemovesEveryCopy) {
  for (const char* tier : {"a", "b", "c"}) dir_.make_dir(std::string(tier) + "/d");
  id_of("d");
  ASSERT_TRUE(fs_->rmdir(kRootId, "d"));
  for (const char* tier : {"a", "b", "c"}) EXPECT_FALSE(test::exists(at(tier, "d"))) << tier;
}

TEST_F(NamesTest, RmdirLeavesADirectoryWithSomethingOnAnyTier) {
  dir_.make_dir("a/d");
  dir_.make_dir("b/d");
  dir_.make_file("c/d/f", "1");
  EXPECT_TRUE(failed_with(fs_->rmdir(kRootId, "d"), ENOTEMPTY));
  for (const char* tier : {"a", "b", "c"}) EXPECT_TRUE(test::exists(at(tier, "d"))) << tier;
  EXPECT_TRUE(failed_with(fs_->rmdir(id_of("d"), "f"), ENOTDIR));
  EXPECT_TRUE(failed_with(fs_->rmdir(kRootId, "missing"), ENOENT));
}

TEST_F(NamesTest, RmdirWaitsForATierThatIsAway) {
  dir_.make_dir("a/d");
  dir_.make_file("b/d/f", "1");
  id_of("d");
  take_away("b");
  EXPECT_TRUE(failed_with(fs_->rmdir(kRootId, "d"), EIO));
  EXPECT_TRUE(test::exists(at("a", "d")));
}

TEST_F(NamesTest, RemovedDirectoriesCanStillBeAskedFor) {
  dir_.make_dir("a/d");
  const InodeId d = id_of("d");
  ASSERT_TRUE(fs_->rmdir(kRootId, "d"));
  EXPECT_TRUE(fs_->getattr(d)) << "somebody's working directory";
  EXPECT_TRUE(failed_with(fs_->create(d, "f", 0644, O_RDWR, kRoot), ENOENT));
}

TEST_F(NamesTest, ForgottenInodesAreGoneFromMemory) {
  dir_.make_file("a/f", "1");
  const std::size_t before = fs_->known_inodes();
  const InodeId id = id_of("f");
  id_of("f");
  EXPECT_EQ(fs_->known_inodes(), before + 1);
  fs_->forget(id, 1);
  EXPECT_EQ(fs_->known_inodes(), before + 1);
  fs_->forget(id, 1);
  EXPECT_EQ(fs_->known_inodes(), before);
}

TEST_F(NamesTest, AForgottenIdStillNamesItsFile) {
  if (!test::require("unit", test::on_ext4(dir_.path()), "not on ext4")) return;
  dir_.make_file("b/d/f", "1");
  const InodeId d = id_of("d"), f = id_of("d/f");
  mount(make_tiers("abc"));
  EXPECT_EQ(fs_->getattr(f)->st.st_size, 1);
  EXPECT_TRUE(S_ISDIR(fs_->getattr(d)->st.st_mode));
  EXPECT_EQ(fs_->lookup(d, ".")->id, d);
  ASSERT_EQ(::unlink(at("b", "d/f").c_str()), 0);
  mount(make_tiers("abc"));
  EXPECT_TRUE(failed_with(fs_->getattr(f), ESTALE));
  EXPECT_TRUE(failed_with(fs_->getattr(InodeId{12345}), ESTALE));
}

TEST_F(NamesTest, AnIdDoesNotReachFilesOutsideTheTier) {
  if (!test::require("unit", test::on_ext4(dir_.path()), "not on ext4")) return;
  const std::string outside = dir_.make_file("outside", "secret");
  const std::string ours = at("a", ".sluice/tier.json");
  for (const std::string& path : {outside, ours}) {
    int mount_id = 0;
    const auto handle = handle_at(AT_FDCWD, path.c_str(), &mount_id);
    ASSERT_TRUE(handle);
    const Identity forged = natural_identity(HandleKind::Ext4, (*pool_)[0].member().slot, *handle);
    EXPECT_TRUE(failed_with(fs_->getattr(forged.id), ESTALE)) << path;
  }
}

TEST_F(NamesTest, ADirectoryLearnsOfItsCopyOnATierThatComesBack) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("b/d/g", "2");
  ASSERT_EQ(::rename((dir_ / "b").c_str(), (dir_ / "away-b").c_str()), 0);
  mount({tier("a", dir_ / "a"), tier("b", dir_ / "b"), tier("c", dir_ / "c")},
        Pool::Missing::Tolerate);
  const Entry d = entry_of("d");
  bring_back("b");
  // The kernel asks for "d" again only if it was told not to remember it.
  if (d.entry_seconds == 0) entry_of("d");
  EXPECT_TRUE(has(d.id, "g"));
  EXPECT_EQ(names(d.id), (Names{".", "..", "f", "g"}));
}

class RenameTest : public FilesystemTest {};

TEST_F(RenameTest, OnOneTierKeepsTheFileThere) {
  dir_.make_file("b/f", "1");
  const InodeId id = id_of("f");
  ASSERT_TRUE(fs_->rename(kRootId, "f", kRootId, "g", 0));
  EXPECT_EQ(test::read_file(at("b", "g")), "1");
  EXPECT_EQ(id_of("g"), id);
  EXPECT_FALSE(has(kRootId, "f"));
  EXPECT_EQ(xattr("g", "user.sluice.location"), at("b", "g"));
}

TEST_F(RenameTest, IntoADirectoryOfAnotherTierBringsThatAlong) {
  dir_.make_file("b/f", "1");
  dir_.make_dir("a/d");
  const InodeId d = id_of("d");
  ASSERT_TRUE(fs_->rename(kRootId, "f", d, "g", 0));
  EXPECT_EQ(test::read_file(at("b", "d/g")), "1");
  EXPECT_EQ(id_of("d"), d);
}

TEST_F(RenameTest, OfADirectoryRenamesEveryCopy) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("b/d/g", "2");
  dir_.make_dir("c/to");
  const InodeId d = id_of("d"), to = id_of("to");
  ASSERT_TRUE(fs_->rename(kRootId, "d", to, "e", 0));
  EXPECT_EQ(test::read_file(at("a", "to/e/f")), "1");
  EXPECT_EQ(test::read_file(at("b", "to/e/g")), "2");
  EXPECT_FALSE(test::exists(at("a", "d")) || test::exists(at("b", "d")));
  EXPECT_EQ(id_of("to/e"), d);
  EXPECT_EQ(intents_in(store_), 0u);
}

TEST_F(RenameTest, OverAFileOnAnotherTierReplacesIt) {
  for (const auto& [from, to] : {std::pair("a", "b"), std::pair("c", "b")}) {
    dir_.make_file(std::string(from) + "/src", "new");
    dir_.make_file(std::string(to) + "/dst", "old");
    const InodeId id = id_of("src");
    id_of("dst");
    g_data_syncs = 0;
    ASSERT_TRUE(fs_->rename(kRootId, "src", kRootId, "dst", 0));
    EXPECT_EQ(g_data_syncs, 2) << "once before others have to wait, and once for what came since: "
                                  "the old one is gone for good, the new one must be there";
    EXPECT_EQ(test::read_file(at(from, "dst")), "new");
    EXPECT_FALSE(test::exists(at(to, "dst")));
    EXPECT_EQ(id_of("dst"), id);
    EXPECT_EQ(read_path("dst"), "new");
    ASSERT_TRUE(fs_->unlink(kRootId, "dst"));
  }
}

TEST_F(RenameTest, ExchangesAcrossTiers) {
  dir_.make_file("a/x", "1");
  dir_.make_file("b/y", "2");
  const InodeId x = id_of("x"), y = id_of("y");
  ASSERT_TRUE(fs_->rename(kRootId, "x", kRootId, "y", RENAME_EXCHANGE));
  EXPECT_EQ(read_path("x"), "2");
  EXPECT_EQ(read_path("y"), "1");
  EXPECT_EQ(id_of("x"), y);
  EXPECT_EQ(id_of("y"), x);
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "x", kRootId, "nothing", RENAME_EXCHANGE), ENOENT));
}

TEST_F(RenameTest, RefusesWhatTheRulesForbid) {
  dir_.make_file("a/f", "1");
  dir_.make_file("b/g", "2");
  dir_.make_dir("a/empty");
  dir_.make_dir("a/full");
  dir_.make_file("c/full/x", "3");
  const std::string before = shown("abc");
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "f", kRootId, "g", RENAME_NOREPLACE), EEXIST));
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "missing", kRootId, "g", 0), ENOENT));
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "f", kRootId, "empty", 0), EISDIR));
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "empty", kRootId, "f", 0), ENOTDIR));
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "empty", kRootId, "full", 0), ENOTEMPTY));
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "f", kRootId, "h", RENAME_WHITEOUT), EINVAL));
  EXPECT_EQ(shown("abc"), before);
}

TEST_F(RenameTest, OverAnEmptyMergedDirectoryReplacesEveryCopy) {
  dir_.make_file("a/d/f", "1");
  dir_.make_dir("b/e");
  dir_.make_dir("c/e");
  const InodeId d = id_of("d");
  ASSERT_TRUE(fs_->rename(kRootId, "d", kRootId, "e", 0));
  EXPECT_EQ(read_path("e/f"), "1");
  EXPECT_EQ(id_of("e"), d);
  EXPECT_FALSE(test::exists(at("b", "e")) || test::exists(at("c", "e")));
}

TEST_F(RenameTest, OfADirectoryPartOfWhichIsAwayIsRefused) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("b/d/g", "2");
  id_of("d");
  take_away("b");
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "d", kRootId, "e", 0), EIO));
  bring_back("b");
  EXPECT_FALSE(test::exists(at("a", "e")) && test::exists(at("b", "d")))
      << "one directory has become two";
}

TEST_F(RenameTest, OverADirectoryPartOfWhichIsAwayIsRefused) {
  dir_.make_file("a/d/f", "1");
  dir_.make_dir("a/e");
  dir_.make_file("b/e/hidden", "2");
  id_of("e");
  take_away("b");
  EXPECT_TRUE(failed_with(fs_->rename(kRootId, "d", kRootId, "e", 0), EIO))
      << "it is not known to be empty";
}

TEST_F(RenameTest, IsAllOrNothingWhicheverCallOfTheStoreFails) {
  for (std::uint64_t nth = 1;; ++nth) {
    ASSERT_LT(nth, 20u);
    const std::string from = "d" + std::to_string(nth), to = "e" + std::to_string(nth);
    dir_.make_file("a/" + from + "/f", "1");
    dir_.make_file("b/" + from + "/g", "2");
    id_of(from);
    store_.fail_call(nth);
    const auto done = fs_->rename(kRootId, from.c_str(), kRootId, to.c_str(), 0);
    const bool failed = store_.has_failed();
    store_.fail_call(0);
    const std::string& now = done ? to : from;
    EXPECT_TRUE(has(kRootId, now.c_str())) << "call " << nth;
    if (has(kRootId, now.c_str())) {
      EXPECT_EQ(names(id_of(now)), (Names{".", "..", "f", "g"})) << "call " << nth;
    }
    if (!failed) break;
  }
}

class ListingTest : public FilesystemTest {};

TEST_F(ListingTest, OfOneTierShowsEveryName) {
  Names expected{".", ".."};
  for (int i = 0; i < 300; ++i) {
    expected.push_back("file" + std::to_string(i));
    dir_.make_file("b/d/" + expected.back(), "");
  }
  std::ranges::sort(expected);
  for (const std::size_t batch : {1000u, 7u, 1u}) EXPECT_EQ(names(id_of("d"), batch), expected);
}

TEST_F(ListingTest, OfSeveralTiersShowsEveryNameOnce) {
  Names expected{".", ".."};
  for (int i = 0; i < 100; ++i) {
    const std::string name = "file" + std::to_string(i);
    expected.push_back(name);
    if (i % 2 == 0 || i % 3 == 0) dir_.make_file("a/d/" + name, "");
    if (i % 3 != 1) dir_.make_file("b/d/" + name, "");
    if (i % 2 == 1) dir_.make_file("c/d/" + name, "");
    if (!test::exists(at("a", "d/" + name)) && !test::exists(at("b", "d/" + name)) &&
        !test::exists(at("c", "d/" + name))) {
      expected.pop_back();
    }
  }
  std::ranges::sort(expected);
  for (const std::size_t batch : {1000u, 7u, 1u}) EXPECT_EQ(names(id_of("d"), batch), expected);
}

TEST_F(ListingTest, OfTheRootHidesOurDirectory) {
  dir_.make_file("a/f", "");
  dir_.make_file("c/g", "");
  EXPECT_EQ(names(kRootId), (Names{".", "..", "f", "g"}));
  EXPECT_EQ(names(kRootId, 1), (Names{".", "..", "f", "g"}));
}

TEST_F(ListingTest, OfTheRootOfOneTierHidesOurDirectory) {
  dir_.make_file("solo/f", "");
  mount({tier("solo", dir_ / "solo")});
  EXPECT_EQ(names(kRootId, 1), (Names{".", "..", "f"}));
}

TEST_F(ListingTest, TellsTheNumbersThatStatTells) {
  dir_.make_file("a/d/f", "");
  dir_.make_file("b/d/g", "");
  dir_.make_dir("c/d/sub");
  const InodeId d = id_of("d");
  std::set<std::uint64_t> numbers;
  for (const auto& item : list(d)) {
    EXPECT_TRUE(numbers.insert(item.inode_number).second) << item.name;
    if (item.name == ".") {
      EXPECT_EQ(item.inode_number, to_number(d));
    } else if (item.name == "..") {
      EXPECT_EQ(item.inode_number, to_number(kRootId));
    } else {
      EXPECT_EQ(item.inode_number, to_number(id_of("d/" + item.name))) << item.name;
      EXPECT_EQ(item.type, item.name == "sub" ? DT_DIR : DT_REG) << item.name;
    }
  }
}

TEST_F(ListingTest, FromTheStartSeesWhatIsNew) {
  dir_.make_file("a/d/f", "");
  dir_.make_file("b/d/g", "");
  const auto stream = *fs_->open_directory(id_of("d"));
  const auto count = [&] {
    int items = 0;
    EXPECT_TRUE(stream->read(0, DirectoryStream::Numbers::NotWanted,
                             [&](const DirectoryStream::Item&) { return ++items, true; }));
    return items;
  };
  EXPECT_EQ(count(), 4);
  dir_.make_file("a/d/h", "");
  EXPECT_EQ(count(), 5);
  ASSERT_EQ(::unlink(at("b", "d/g").c_str()), 0);
  EXPECT_EQ(count(), 4);
}

TEST_F(ListingTest, OfADirectoryPartOfWhichIsAwayEndsInAnError) {
  dir_.make_file("a/d/f", "");
  dir_.make_file("b/d/g", "");
  const InodeId d = id_of("d");
  take_away("b");
  int code = 0;
  const auto items = list(d, 1000, &code);
  EXPECT_EQ(code, EIO);
  EXPECT_EQ(items.size(), 3u);
  bring_back("b");
  EXPECT_EQ(names(d), (Names{".", "..", "f", "g"}));
}

class AttributesTest : public FilesystemTest {};

TEST_F(AttributesTest, AnXattrThatIsSetWhileAnotherIsAskedForIsThere) {
  dir_.make_file("a/f", "1");
  const InodeId f = id_of("f");
  g_after_listing = [&] { ASSERT_TRUE(fs_->setxattr(f, "user.k", "v", 1, 0, kRoot)); };
  EXPECT_TRUE(failed_with(fs_->getxattr(f, "security.capability"), ENODATA));
  ASSERT_FALSE(g_after_listing) << "the moment never came";
  const auto value = fs_->getxattr(f, "user.k");
  ASSERT_TRUE(value);
  EXPECT_EQ(*value, "v");
}

TEST_F(AttributesTest, SluiceTellsWhereAFileIsAndHowOftenItWasOpened) {
  dir_.make_file("b/d/f", "1");
  EXPECT_EQ(xattr("d/f", "user.sluice.tier"), "b");
  EXPECT_EQ(xattr("d/f", "user.sluice.location"), at("b", "d/f"));
  EXPECT_EQ(xattr("d/f", "user.sluice.accesses"), "0");
  const InodeId id = id_of("d/f");
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(fs_->open(id, O_RDONLY, kOpener, std::nullopt));
    fs_->release(id, O_RDONLY);
  }
  EXPECT_EQ(xattr("d/f", "user.sluice.accesses"), "3");
  EXPECT_EQ(fs_->opens(), 3u);
  ASSERT_TRUE(fs_->flush_heat());
  EXPECT_EQ(store_.heat(id)->opens, 3u);
  EXPECT_EQ(xattr("d/f", "user.sluice.accesses"), "3");
  EXPECT_EQ(xattr("d", "user.sluice.accesses"), "error: ENODATA");
  EXPECT_EQ(xattr("d/f", "user.sluice.nonsense"), "error: ENODATA");
}

TEST_F(AttributesTest, WhatSluiceTellsIsNotListedAndCannotBeSet) {
  dir_.make_file("a/f", "1");
  const InodeId id = id_of("f");
  EXPECT_EQ(*fs_->listxattr(id, kRoot), "");
  EXPECT_TRUE(failed_with(fs_->setxattr(id, "user.sluice.location", "b", 1, 0, kRoot), EPERM));
}

TEST_F(AttributesTest, TheCarriedIdentityIsInvisible) {
  dir_.make_dir("c/d");
  const InodeId d = id_of("d");
  ASSERT_TRUE(fs_->create(d, "f", 0644, O_RDWR, kRoot));
  ASSERT_TRUE(test::xattr_of(at("a", "d"), kIdentityXattr)) << "nothing is there to hide";
  EXPECT_EQ(*fs_->listxattr(d, kRoot), "");
  EXPECT_TRUE(failed_with(fs_->getxattr(d, kIdentityXattr), ENODATA));
  EXPECT_TRUE(failed_with(fs_->setxattr(d, kIdentityXattr, "x", 1, 0, kRoot), EPERM));
  EXPECT_TRUE(failed_with(fs_->removexattr(d, kIdentityXattr), ENODATA));
  EXPECT_TRUE(test::xattr_of(at("a", "d"), kIdentityXattr));
}

TEST_F(AttributesTest, XattrsComeAndGo) {
  dir_.make_file("a/f", "1");
  const InodeId id = id_of("f");
  EXPECT_TRUE(failed_with(fs_->getxattr(id, "user.k"), ENODATA));
  ASSERT_TRUE(fs_->setxattr(id, "user.k", "value", 5, 0, kRoot));
  EXPECT_EQ(*fs_->getxattr(id, "user.k"), "value");
  EXPECT_EQ(*fs_->listxattr(id, kRoot), std::string("user.k\0", 7));
  EXPECT_TRUE(failed_with(fs_->setxattr(id, "user.k", "x", 1, XATTR_CREATE, kRoot), EEXIST));
  const std::string large = test::pattern(2000, 1);
  ASSERT_TRUE(fs_->setxattr(id, "user.large", large.data(), large.size(), 0, kRoot));
  EXPECT_EQ(*fs_->getxattr(id, "user.large"), large);
  ASSERT_TRUE(fs_->removexattr(id, "user.k"));
  EXPECT_TRUE(failed_with(fs_->getxattr(id, "user.k"), ENODATA));
}

TEST_F(AttributesTest, OfADirectoryAreSetOnEveryCopy) {
  dir_.make_dir("a/d");
  dir_.make_dir("c/d");
  const InodeId d = id_of("d");
  AttributeChange change;
  change.mode = 02750;
  change.uid = 12;
  change.gid = 34;
  ASSERT_TRUE(fs_->setattr(d, change));
  ASSERT_TRUE(fs_->setxattr(d, "user.k", "v", 1, 0, kRoot));
  for (const char* tier : {"a", "c"}) {
    EXPECT_EQ(test::lstat_of(at(tier, "d")).st_mode & 07777, 02750u) << tier;
    EXPECT_EQ(test::lstat_of(at(tier, "d")).st_uid, 12u) << tier;
    EXPECT_EQ(test::xattr_of(at(tier, "d"), "user.k"), "v") << tier;
  }
  ASSERT_TRUE(fs_->removexattr(d, "user.k"));
  EXPECT_EQ(test::xattr_of(at("c", "d"), "user.k"), std::nullopt);
  EXPECT_TRUE(failed_with(fs_->removexattr(d, "user.k"), ENODATA));
  EXPECT_EQ(intents_in(store_), 0u);
}

TEST_F(AttributesTest, OfAFileAreSet) {
  dir_.make_file("b/f", "123456");
  const InodeId id = id_of("f");
  AttributeChange change;
  change.mode = 0600;
  change.uid = 7;
  change.size = 3;
  change.mtime = timespec{1000, 5};
  const auto after = fs_->setattr(id, change);
  ASSERT_TRUE(after);
  EXPECT_EQ(after->st.st_size, 3);
  EXPECT_EQ(after->st.st_mode & 07777, 0600u);
  EXPECT_EQ(after->st.st_mtim.tv_sec, 1000);
  EXPECT_EQ(after->st.st_mtim.tv_nsec, 5);
  EXPECT_EQ(test::read_file(at("b", "f")), "123");
  EXPECT_EQ(test::lstat_of(at("b", "f")).st_uid, 7u);
}

TEST_F(AttributesTest, TiersOnOneFilesystemShareItsRoom) {
  struct statvfs native {};
  ASSERT_EQ(::statvfs(dir_.path().c_str(), &native), 0);
  const auto ours = fs_->statfs();
  ASSERT_TRUE(ours);
  EXPECT_EQ(ours->f_blocks * ours->f_frsize, native.f_blocks * native.f_frsize);
  EXPECT_LE(ours->f_bavail, ours->f_blocks);
}

}  // namespace
}  // namespace sluice
