// SPDX-License-Identifier: BSD-2-Clause
#include "base/path.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/files.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice {
namespace {

TEST(AbsolutePathTest, NormalizesAPath) {
  const std::pair<const char*, const char*> cases[] = {
      {"/", "/"},         {"/a", "/a"},      {"/a/", "/a"},         {"/a/.", "/a"},
      {"/a/./b", "/a/b"}, {"/a/../b", "/b"}, {"//a//b//", "//a/b"}, {"/a/b/../..", "/"},
      {"/a/b/..", "/a"}};
  for (const auto& [written, expected] : cases) {
    // A leading double slash may be kept: POSIX leaves its meaning open, and Linux treats it as
    // one.
    std::string got = absolute_path(written);
    if (std::string(written).starts_with("//") && !got.starts_with("//")) got.insert(0, "/");
    EXPECT_EQ(got, expected) << written;
  }
}

TEST(AbsolutePathTest, DotDotAtTheRootIsIgnored) {
  EXPECT_EQ(absolute_path("/.."), "/");
  EXPECT_EQ(absolute_path("/../../a"), "/a");
  EXPECT_EQ(absolute_path("../../b", "/a"), "/b");
}

TEST(AbsolutePathTest, StartsFromTheBaseOrTheCurrentDirectory) {
  EXPECT_EQ(absolute_path("b", "/a"), "/a/b");
  EXPECT_EQ(absolute_path("../b", "/a/c"), "/a/b");
  EXPECT_EQ(absolute_path("/b", "/a"), "/b");
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(absolute_path("x"), (here == "/" ? "" : here) + "/x");
  EXPECT_EQ(absolute_path("."), here);
}

TEST(AbsolutePathTest, DoesNotFollowLinks) {
  const test::TempDir dir;
  dir.make_dir("real");
  ASSERT_EQ(::symlink("real", (dir / "link").c_str()), 0);
  EXPECT_EQ(absolute_path(dir / "link/x"), dir / "link/x");
  EXPECT_EQ(real_path(dir / "link/x"), real_path(dir.path()) + "/real/x");
}

TEST(ParentPathTest, IsTheDirectoryAbove) {
  EXPECT_EQ(parent_path("/a/b"), "/a");
  EXPECT_EQ(parent_path("/a/b/"), "/a");
  EXPECT_EQ(parent_path("/a"), "/");
  EXPECT_EQ(parent_path("/"), "/");
}

TEST(IsInsideTest, ComparesComponentByComponent) {
  EXPECT_TRUE(is_inside("/nowhere/a", "/nowhere/a"));
  EXPECT_TRUE(is_inside("/nowhere/a", "/nowhere/a/b"));
  EXPECT_TRUE(is_inside("/nowhere/a/", "/nowhere/a/b/c/"));
  EXPECT_TRUE(is_inside("/", "/nowhere"));
  EXPECT_TRUE(is_inside("/", "/"));
  EXPECT_FALSE(is_inside("/nowhere/a", "/nowhere/ab"));
  EXPECT_FALSE(is_inside("/nowhere/a/b", "/nowhere/a"));
  EXPECT_FALSE(is_inside("/nowhere/a", "/nowhere/a/../b"));
  EXPECT_FALSE(is_inside("/nowhere", "/"));
}

TEST(IsInsideTest, ResolvesLinks) {
  const test::TempDir dir;
  dir.make_dir("tier/sub");
  dir.make_dir("other");
  ASSERT_EQ(::symlink((dir / "tier/sub").c_str(), (dir / "other/link").c_str()), 0);
  EXPECT_TRUE(is_inside(dir / "tier", dir / "other/link"));
  EXPECT_TRUE(is_inside(dir / "tier", dir / "other/link/not/yet"));
  EXPECT_FALSE(is_inside(dir / "other", dir / "other/link"));
}

TEST(MakeDirectoriesTest, CreatesMissingDirectories) {
  const test::TempDir dir;
  ASSERT_TRUE(make_directories(dir / "a/b/c"));
  EXPECT_TRUE(S_ISDIR(test::lstat_of(dir / "a/b/c").st_mode));
}

TEST(MakeDirectoriesTest, AcceptsExistingDirectories) {
  const test::TempDir dir;
  dir.make_file("a/b/keep", "content");
  ASSERT_TRUE(make_directories(dir / "a/b"));
  EXPECT_EQ(test::read_file(dir / "a/b/keep"), "content");
}

TEST(MakeDirectoriesTest, FailsIfAComponentIsAFile) {
  const test::TempDir dir;
  dir.make_file("file", "content");
  EXPECT_FALSE(make_directories(dir / "file/below"));
  EXPECT_FALSE(make_directories(dir / "file"));
  EXPECT_EQ(test::read_file(dir / "file"), "content");
}

}  // namespace
}  // namespace sluice
