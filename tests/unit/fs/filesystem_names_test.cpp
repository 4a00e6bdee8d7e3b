// SPDX-License-Identifier: BSD-2-Clause
// Names and listings, called directly.
#include <dirent.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "tests/unit/fs/test_filesystem.hpp"

namespace sluice {
namespace {

class NamesTest : public FilesystemTest {};

TEST_F(NamesTest, LookupFindsNamesOnEveryTier) {
  dir_.make_file("a/f", "1");
  dir_.make_file("b/g", "22");
  dir_.make_file("c/d/h", "333");
  for (const auto& [path, size] : {std::pair("f", 1), std::pair("g", 2), std::pair("d/h", 3)}) {
    const Entry entry = entry_of(path);
    EXPECT_EQ(entry.st.st_size, size) << path;
    EXPECT_EQ(entry.st.st_ino, to_number(entry.id)) << path;
    EXPECT_EQ(fs_->attributes().get(entry.id)->st.st_ino, to_number(entry.id)) << path;
  }
  EXPECT_EQ(read_path("d/h"), "333");
}

TEST_F(NamesTest, MissingNamesMayBeCached) {
  const auto entry = fs_->names().lookup(kRootId, "missing");
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->id, InodeId{});
  EXPECT_GT(entry->entry_seconds, 0);
}

TEST_F(NamesTest, MissingNamesAreNotCachedWhileATierIsOffline) {
  dir_.make_file("b/f", "1");
  take_away("b");
  const auto entry = fs_->names().lookup(kRootId, "f");
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->id, InodeId{});
  EXPECT_EQ(entry->entry_seconds, 0);
  bring_back("b");
  EXPECT_EQ(read_path("f"), "1");
}

TEST_F(NamesTest, ThePrivateDirectoryIsHidden) {
  EXPECT_FALSE(has(kRootId, ".sluice"));
  EXPECT_TRUE(failed_with(fs_->names().mkdir(kRootId, ".sluice", 0755, kRoot), EPERM));
  EXPECT_TRUE(failed_with(fs_->files().create(kRootId, ".sluice", 0644, O_RDWR, kRoot), EPERM));
  EXPECT_TRUE(failed_with(fs_->names().mknod(kRootId, ".sluice", S_IFIFO, 0, kRoot), EPERM));
  EXPECT_TRUE(failed_with(fs_->names().symlink("x", kRootId, ".sluice", kRoot), EPERM));
  EXPECT_TRUE(failed_with(unlink(kRootId, ".sluice"), ENOENT));
  EXPECT_TRUE(failed_with(rmdir(kRootId, ".sluice"), ENOENT));
  ASSERT_TRUE(fs_->names().mkdir(kRootId, "d", 0755, kRoot));
  EXPECT_TRUE(failed_with(rename(kRootId, "d", kRootId, ".sluice", 0), EPERM));
  EXPECT_TRUE(failed_with(rename(kRootId, ".sluice", kRootId, "x", 0), EPERM));
  EXPECT_TRUE(fs_->names().mkdir(id_of("d"), ".sluice", 0755, kRoot))
      << "below the root the name is not special";
  EXPECT_TRUE(has(id_of("d"), ".sluice"));
  EXPECT_TRUE(test::exists(at("a", ".sluice/tier.json")));
}

TEST_F(NamesTest, OfTwoFilesWithOneNameTheFastestTierCounts) {
  dir_.make_file("b/f", "middle");
  dir_.make_file("c/f", "slow");
  EXPECT_EQ(read_path("f"), "middle");
  EXPECT_EQ(xattr("f", "user.sluice.tier"), "b");
}

TEST_F(NamesTest, CopiesOfADirectoryAreOneDirectory) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("c/d/g", "2");
  EXPECT_EQ(id_of("d"), id_of("d"));
  EXPECT_EQ(read_path("d/f"), "1");
  EXPECT_EQ(read_path("d/g"), "2");
  EXPECT_EQ(xattr("d", "user.sluice.tier"), "a,c");
  EXPECT_EQ(entry_of("d").st.st_nlink, 1u);
}

TEST_F(NamesTest, ANewFileIsMadeOnTheFastestTierAndBelongsToItsCaller) {
  const auto made = fs_->files().create(kRootId, "f", 0666, O_RDWR, Caller{1234, 5678, 027});
  ASSERT_TRUE(made);
  const struct stat st = test::lstat_of(at("a", "f"));
  EXPECT_EQ(st.st_uid, 1234u);
  EXPECT_EQ(st.st_gid, 5678u);
  EXPECT_EQ(st.st_mode & 07777, 0640u);
  EXPECT_EQ(made->first.id, id_of("f"));
  EXPECT_EQ(fs_->files().open_files(), 1u);
  fs_->files().release(made->first.id, O_RDWR);
  EXPECT_EQ(fs_->files().open_files(), 0u);
}

// The kernel assumed that the name was free, so it has not checked permissions on the existing
// file.
TEST_F(NamesTest, CreateFailsIfTheNameExistsOnAnyTier) {
  const std::size_t before = fs_->known_inodes();
  ASSERT_TRUE(fs_->names().mkdir(kRootId, "both", 0755, kRoot));
  dir_.make_file("b/both/f", "old");
  dir_.make_file("a/f", "old");
  ASSERT_EQ(::mkfifo(at("a", "fifo").c_str(), 0666), 0);
  dir_.make_dir("a/d");
  for (const auto& [parent, name] : {std::pair("", "f"), {"both", "f"}, {"", "fifo"}, {"", "d"}}) {
    const InodeId id = id_of(parent);
    for (const int flags : {O_RDWR, O_WRONLY | O_TRUNC})
      EXPECT_TRUE(failed_with(fs_->files().create(id, name, 0644, flags, kUser), ESTALE)) << name;
    EXPECT_TRUE(failed_with(fs_->files().create(id, name, 0644, O_RDWR | O_EXCL, kUser), EEXIST))
        << name;
    EXPECT_TRUE(failed_with(fs_->names().mkdir(id, name, 0755, kUser), EEXIST)) << name;
    EXPECT_TRUE(failed_with(fs_->names().symlink("x", id, name, kUser), EEXIST)) << name;
  }
  EXPECT_EQ(test::read_file(at("b", "both/f")), "old");
  EXPECT_EQ(fs_->known_inodes(), before + 1);
}

TEST_F(NamesTest, EveryFileTypeCanBeMade) {
  ASSERT_TRUE(fs_->names().mkdir(kRootId, "dir", 0777, Caller{1, 2, 022}));
  ASSERT_TRUE(fs_->names().symlink("some/target", kRootId, "link", Caller{3, 4, 0}));
  ASSERT_TRUE(fs_->names().mknod(kRootId, "fifo", S_IFIFO | 0622, 0, Caller{5, 6, 0}));
  EXPECT_EQ(test::lstat_of(at("a", "dir")).st_mode, S_IFDIR | 0755u);
  EXPECT_EQ(test::lstat_of(at("a", "dir")).st_uid, 1u);
  EXPECT_EQ(test::lstat_of(at("a", "link")).st_gid, 4u);
  EXPECT_EQ(test::lstat_of(at("a", "fifo")).st_mode, S_IFIFO | 0622u);
  EXPECT_EQ(*fs_->names().readlink(id_of("link")), "some/target");
  EXPECT_TRUE(failed_with(fs_->names().mkdir(kRootId, "dir", 0755, kRoot), EEXIST));
}

TEST_F(NamesTest, ALinkIsMadeOnTheTierOfItsFile) {
  dir_.make_file("b/f", "1");
  dir_.make_dir("a/d");
  const auto linked = fs_->names().link(id_of("f"), id_of("d"), "g");
  ASSERT_TRUE(linked);
  EXPECT_EQ(linked->id, id_of("f"));
  EXPECT_EQ(linked->st.st_nlink, 2u);
  EXPECT_EQ(test::lstat_of(at("b", "d/g")).st_ino, test::lstat_of(at("b", "f")).st_ino);
}

TEST_F(NamesTest, ANewFileMakesMissingDirectoryCopiesOnItsTier) {
  dir_.make_dir("c/d/e");
  ASSERT_EQ(::chown(at("c", "d").c_str(), 12, 34), 0);
  ASSERT_EQ(::chmod(at("c", "d").c_str(), 02771), 0);
  ASSERT_EQ(::setxattr(at("c", "d").c_str(), "user.k", "v", 1, 0), 0);
  const InodeId d = id_of("d"), e = id_of("d/e");
  ASSERT_TRUE(fs_->files().create(e, "f", 0644, O_RDWR, kRoot));
  EXPECT_TRUE(test::exists(at("a", "d/e/f")));
  EXPECT_EQ(test::lstat_of(at("a", "d")).st_mode, test::lstat_of(at("c", "d")).st_mode);
  EXPECT_EQ(test::lstat_of(at("a", "d")).st_uid, 12u);
  EXPECT_EQ(test::xattr_of(at("a", "d"), "user.k"), "v");
  EXPECT_EQ(id_of("d"), d);
  EXPECT_EQ(id_of("d/e"), e);
  EXPECT_TRUE(test::names_in(at("a", ".sluice/tmp")).empty());
  // The same after a remount, from the disks alone.
  mount(make_tiers("abc"));
  EXPECT_EQ(id_of("d"), d);
  EXPECT_EQ(id_of("d/e"), e);
}

TEST_F(NamesTest, UnlinkRemovesTheFile) {
  dir_.make_file("b/f", "1");
  ASSERT_TRUE(unlink(kRootId, "f"));
  EXPECT_FALSE(test::exists(at("b", "f")));
  EXPECT_FALSE(has(kRootId, "f"));
  EXPECT_TRUE(failed_with(unlink(kRootId, "f"), ENOENT));
}

TEST_F(NamesTest, RmdirRemovesEveryCopy) {
  for (const char* tier : {"a", "b", "c"}) dir_.make_dir(std::string(tier) + "/d");
  id_of("d");
  ASSERT_TRUE(rmdir(kRootId, "d"));
  for (const char* tier : {"a", "b", "c"}) EXPECT_FALSE(test::exists(at(tier, "d"))) << tier;
}

TEST_F(NamesTest, RmdirFailsIfAnyCopyIsNotEmpty) {
  dir_.make_dir("a/d");
  dir_.make_dir("b/d");
  dir_.make_file("c/d/f", "1");
  EXPECT_TRUE(failed_with(rmdir(kRootId, "d"), ENOTEMPTY));
  for (const char* tier : {"a", "b", "c"}) EXPECT_TRUE(test::exists(at(tier, "d"))) << tier;
  EXPECT_TRUE(failed_with(rmdir(id_of("d"), "f"), ENOTDIR));
  EXPECT_TRUE(failed_with(rmdir(kRootId, "missing"), ENOENT));
}

TEST_F(NamesTest, RmdirFailsWhileATierIsOffline) {
  dir_.make_dir("a/d");
  dir_.make_file("b/d/f", "1");
  id_of("d");
  take_away("b");
  EXPECT_TRUE(failed_with(rmdir(kRootId, "d"), EIO));
  EXPECT_TRUE(test::exists(at("a", "d")));
}

TEST_F(NamesTest, RemovedDirectoriesStillHaveAttributes) {
  dir_.make_dir("a/d");
  const InodeId d = id_of("d");
  ASSERT_TRUE(rmdir(kRootId, "d"));
  EXPECT_TRUE(fs_->attributes().get(d)) << "it may be a working directory";
  EXPECT_TRUE(failed_with(fs_->files().create(d, "f", 0644, O_RDWR, kRoot), ENOENT));
}

TEST_F(NamesTest, ForgottenInodesAreFreed) {
  dir_.make_file("a/f", "1");
  const std::size_t before = fs_->known_inodes();
  const InodeId id = id_of("f");
  id_of("f");
  EXPECT_EQ(fs_->known_inodes(), before + 1);
  fs_->names().forget(id, 1);
  EXPECT_EQ(fs_->known_inodes(), before + 1);
  fs_->names().forget(id, 1);
  EXPECT_EQ(fs_->known_inodes(), before);
}

TEST_F(NamesTest, AForgottenIdStillLeadsToItsFile) {
  if (!test::require("unit", test::on_ext4(dir_.path()), "not on ext4")) return;
  dir_.make_file("b/d/f", "1");
  const InodeId d = id_of("d"), f = id_of("d/f");
  mount(make_tiers("abc"));
  EXPECT_EQ(fs_->attributes().get(f)->st.st_size, 1);
  EXPECT_TRUE(S_ISDIR(fs_->attributes().get(d)->st.st_mode));
  EXPECT_EQ(fs_->names().lookup(d, ".")->id, d);
  ASSERT_EQ(::unlink(at("b", "d/f").c_str()), 0);
  mount(make_tiers("abc"));
  EXPECT_TRUE(failed_with(fs_->attributes().get(f), ESTALE));
  EXPECT_TRUE(failed_with(fs_->attributes().get(InodeId{12345}), ESTALE));
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
    EXPECT_TRUE(failed_with(fs_->attributes().get(forged.id), ESTALE)) << path;
  }
}

TEST_F(NamesTest, ADirectoryFindsItsCopyOnATierThatReturns) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("b/d/g", "2");
  ASSERT_EQ(::rename((dir_ / "b").c_str(), (dir_ / "away-b").c_str()), 0);
  mount({tier("a", dir_ / "a"), tier("b", dir_ / "b"), tier("c", dir_ / "c")},
        Pool::Missing::Tolerate);
  const Entry d = entry_of("d");
  bring_back("b");
  // The kernel looks "d" up again only if it was not allowed to cache it.
  if (d.entry_seconds == 0) entry_of("d");
  EXPECT_TRUE(has(d.id, "g"));
  EXPECT_EQ(names(d.id), (NameList{".", "..", "f", "g"}));
}

class ListingTest : public FilesystemTest {};

TEST_F(ListingTest, ADirectoryOnOneTierListsEveryName) {
  NameList expected{".", ".."};
  for (int i = 0; i < 300; ++i) {
    expected.push_back("file" + std::to_string(i));
    dir_.make_file("b/d/" + expected.back(), "");
  }
  std::ranges::sort(expected);
  for (const std::size_t batch : {1000u, 7u, 1u}) EXPECT_EQ(names(id_of("d"), batch), expected);
}

TEST_F(ListingTest, ADirectoryOnSeveralTiersListsEveryNameOnce) {
  NameList expected{".", ".."};
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

TEST_F(ListingTest, TheRootHidesThePrivateDirectory) {
  dir_.make_file("a/f", "");
  dir_.make_file("c/g", "");
  EXPECT_EQ(names(kRootId), (NameList{".", "..", "f", "g"}));
  EXPECT_EQ(names(kRootId, 1), (NameList{".", "..", "f", "g"}));
}

TEST_F(ListingTest, TheRootOfASingleTierHidesThePrivateDirectory) {
  dir_.make_file("solo/f", "");
  mount({tier("solo", dir_ / "solo")});
  EXPECT_EQ(names(kRootId, 1), (NameList{".", "..", "f"}));
}

TEST_F(ListingTest, InodeNumbersAreThoseOfStat) {
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

TEST_F(ListingTest, RewindingShowsNewNames) {
  dir_.make_file("a/d/f", "");
  dir_.make_file("b/d/g", "");
  const auto stream = *fs_->names().open_directory(id_of("d"));
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

TEST_F(ListingTest, ADirectoryWithAnOfflineCopyEndsWithAnError) {
  dir_.make_file("a/d/f", "");
  dir_.make_file("b/d/g", "");
  const InodeId d = id_of("d");
  take_away("b");
  int code = 0;
  const auto items = list(d, 1000, &code);
  EXPECT_EQ(code, EIO);
  EXPECT_EQ(items.size(), 3u);
  bring_back("b");
  EXPECT_EQ(names(d), (NameList{".", "..", "f", "g"}));
}

}  // namespace
}  // namespace sluice
