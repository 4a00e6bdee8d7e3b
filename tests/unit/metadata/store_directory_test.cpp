// SPDX-License-Identifier: BSD-2-Clause
#include "metadata/store_directory.hpp"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/files.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice {
namespace {

using Contents = StoreDirectory::Contents;

TEST(StoreDirectoryTest, CreatesAPrivateDirectory) {
  test::TempDir dir;
  auto home = StoreDirectory::open(dir / "metadata/");
  ASSERT_TRUE(home) << home.error().operation;
  EXPECT_EQ(home->path(), dir / "metadata");
  EXPECT_EQ(test::lstat_of(dir / "metadata").st_mode & 07777, 0700u);
  EXPECT_EQ(*home->contents(), Contents::Nothing);
}

TEST(StoreDirectoryTest, DoesNotCreateTheParent) {
  test::TempDir dir;
  EXPECT_TRUE(failed_with(StoreDirectory::open(dir / "no/metadata"), ENOENT));
}

TEST(StoreDirectoryTest, AFileInItsPlaceIsAnError) {
  test::TempDir dir;
  EXPECT_TRUE(failed_with(StoreDirectory::open(dir.make_file("f", "mine")), ENOTDIR));
  EXPECT_EQ(test::read_file(dir / "f"), "mine");
}

TEST(StoreDirectoryTest, IsLockedByOneOwnerAtATime) {
  test::TempDir dir;
  {
    auto first = StoreDirectory::open(dir.path());
    ASSERT_TRUE(first);
    EXPECT_TRUE(failed_with(StoreDirectory::open(dir.path()), EBUSY));
  }
  EXPECT_TRUE(StoreDirectory::open(dir.path()));
}

TEST(StoreDirectoryTest, DistinguishesADatabaseFromRemainsAndOtherFiles) {
  test::TempDir dir;
  auto home = StoreDirectory::open(dir.path());
  dir.make_file("notes.txt", "");
  EXPECT_EQ(*home->contents(), Contents::Nothing);
  dir.make_file("MANIFEST-000004", "");
  EXPECT_EQ(*home->contents(), Contents::Remains);
  dir.make_file("CURRENT", "");
  EXPECT_EQ(*home->contents(), Contents::Database);
}

TEST(StoreDirectoryTest, TwoMovesAsideInOneSecondKeepBoth) {
  test::TempDir dir;
  auto home = StoreDirectory::open(dir / "metadata");
  test::write_file(dir / "metadata/CURRENT", "first");
  auto first = home->move_aside();
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->starts_with(dir / "metadata.broken-2")) << *first;
  EXPECT_EQ(*home->contents(), Contents::Nothing);
  test::write_file(dir / "metadata/CURRENT", "second");
  auto second = home->move_aside();
  ASSERT_TRUE(second);

  EXPECT_EQ(test::read_file(*first + "/CURRENT"), "first");
  EXPECT_EQ(test::read_file(*second + "/CURRENT"), "second");
  EXPECT_TRUE(failed_with(StoreDirectory::open(dir / "metadata"), EBUSY)) << "still locked";
}

TEST(StoreDirectoryTest, MovesTheTargetOfASymlinkAside) {
  test::TempDir dir;
  dir.make_dir("disk/real");
  ASSERT_EQ(::symlink((dir / "disk/real").c_str(), (dir / "link").c_str()), 0);
  auto home = StoreDirectory::open(dir / "link");
  auto moved = home->move_aside();
  ASSERT_TRUE(moved);
  EXPECT_TRUE(moved->starts_with(dir / "disk/real.broken-"));
  EXPECT_EQ(*home->contents(), Contents::Nothing);
}

TEST(StoreDirectoryTest, MovesTheContentsOfAMountPointAside) {
  test::TempDir dir;
  const std::string path = dir.make_dir("metadata");
  if (::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=1m") < 0) GTEST_SKIP() << "cannot mount";
  {
    auto home = StoreDirectory::open(path);
    test::write_file(path + "/CURRENT", "broken");
    auto moved = home->move_aside();
    EXPECT_TRUE(moved);
    if (moved) {
      EXPECT_TRUE(moved->starts_with(path + "/broken-")) << *moved;
      EXPECT_EQ(test::read_file(*moved + "/CURRENT"), "broken");
    }
    EXPECT_EQ(*home->contents(), Contents::Nothing);
  }
  ASSERT_EQ(::umount2(path.c_str(), MNT_DETACH), 0);
}

}  // namespace
}  // namespace sluice
