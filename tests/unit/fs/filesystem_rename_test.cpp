// SPDX-License-Identifier: BSD-2-Clause
// Renames on one tier and on several, called directly.
#include <linux/fs.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "tests/unit/fs/test_filesystem.hpp"

namespace {
thread_local int g_data_syncs = 0;
}  // namespace

// Replaces libc's function, to count the calls.
extern "C" int fdatasync(int fd) {
  ++g_data_syncs;
  return static_cast<int>(::syscall(SYS_fdatasync, fd));
}

namespace sluice {
namespace {

class RenameTest : public FilesystemTest {};

TEST_F(RenameTest, OnOneTierKeepsTheFileOnThatTier) {
  dir_.make_file("b/f", "1");
  const InodeId id = id_of("f");
  ASSERT_TRUE(rename(kRootId, "f", kRootId, "g", 0));
  EXPECT_EQ(test::read_file(at("b", "g")), "1");
  EXPECT_EQ(id_of("g"), id);
  EXPECT_FALSE(has(kRootId, "f"));
  EXPECT_EQ(xattr("g", "user.sluice.location"), at("b", "g"));
}

TEST_F(RenameTest, IntoADirectoryOfAnotherTierMakesADirectoryCopy) {
  dir_.make_file("b/f", "1");
  dir_.make_dir("a/d");
  const InodeId d = id_of("d");
  ASSERT_TRUE(rename(kRootId, "f", d, "g", 0));
  EXPECT_EQ(test::read_file(at("b", "d/g")), "1");
  EXPECT_EQ(id_of("d"), d);
}

TEST_F(RenameTest, OfADirectoryRenamesEveryCopy) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("b/d/g", "2");
  dir_.make_dir("c/to");
  const InodeId d = id_of("d"), to = id_of("to");
  ASSERT_TRUE(rename(kRootId, "d", to, "e", 0));
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
    ASSERT_TRUE(rename(kRootId, "src", kRootId, "dst", 0));
    EXPECT_EQ(g_data_syncs, 2)
        << "once without the lock and once with it: the old file is gone for "
           "good, so the new one must be on disk";
    EXPECT_EQ(test::read_file(at(from, "dst")), "new");
    EXPECT_FALSE(test::exists(at(to, "dst")));
    EXPECT_EQ(id_of("dst"), id);
    EXPECT_EQ(read_path("dst"), "new");
    ASSERT_TRUE(unlink(kRootId, "dst"));
  }
}

TEST_F(RenameTest, ExchangesAcrossTiers) {
  dir_.make_file("a/x", "1");
  dir_.make_file("b/y", "2");
  const InodeId x = id_of("x"), y = id_of("y");
  ASSERT_TRUE(rename(kRootId, "x", kRootId, "y", RENAME_EXCHANGE));
  EXPECT_EQ(read_path("x"), "2");
  EXPECT_EQ(read_path("y"), "1");
  EXPECT_EQ(id_of("x"), y);
  EXPECT_EQ(id_of("y"), x);
  EXPECT_TRUE(failed_with(rename(kRootId, "x", kRootId, "nothing", RENAME_EXCHANGE), ENOENT));
}

TEST_F(RenameTest, FollowsTheRulesOfPosix) {
  dir_.make_file("a/f", "1");
  dir_.make_file("b/g", "2");
  dir_.make_dir("a/empty");
  dir_.make_dir("a/full");
  dir_.make_file("c/full/x", "3");
  const std::string before = shown("abc");
  EXPECT_TRUE(failed_with(rename(kRootId, "f", kRootId, "g", RENAME_NOREPLACE), EEXIST));
  EXPECT_TRUE(failed_with(rename(kRootId, "missing", kRootId, "g", 0), ENOENT));
  EXPECT_TRUE(failed_with(rename(kRootId, "f", kRootId, "empty", 0), EISDIR));
  EXPECT_TRUE(failed_with(rename(kRootId, "empty", kRootId, "f", 0), ENOTDIR));
  EXPECT_TRUE(failed_with(rename(kRootId, "empty", kRootId, "full", 0), ENOTEMPTY));
  EXPECT_TRUE(failed_with(rename(kRootId, "f", kRootId, "h", RENAME_WHITEOUT), EINVAL));
  EXPECT_EQ(shown("abc"), before);
}

TEST_F(RenameTest, OverAnEmptyMergedDirectoryReplacesEveryCopy) {
  dir_.make_file("a/d/f", "1");
  dir_.make_dir("b/e");
  dir_.make_dir("c/e");
  const InodeId d = id_of("d");
  ASSERT_TRUE(rename(kRootId, "d", kRootId, "e", 0));
  EXPECT_EQ(read_path("e/f"), "1");
  EXPECT_EQ(id_of("e"), d);
  EXPECT_FALSE(test::exists(at("b", "e")) || test::exists(at("c", "e")));
}

TEST_F(RenameTest, OfADirectoryWithAnOfflineCopyIsRefused) {
  dir_.make_file("a/d/f", "1");
  dir_.make_file("b/d/g", "2");
  id_of("d");
  take_away("b");
  EXPECT_TRUE(failed_with(rename(kRootId, "d", kRootId, "e", 0), EIO));
  bring_back("b");
  EXPECT_FALSE(test::exists(at("a", "e")) && test::exists(at("b", "d")))
      << "one directory has become two";
}

TEST_F(RenameTest, OverADirectoryWithAnOfflineCopyIsRefused) {
  dir_.make_file("a/d/f", "1");
  dir_.make_dir("a/e");
  dir_.make_file("b/e/hidden", "2");
  id_of("e");
  take_away("b");
  EXPECT_TRUE(failed_with(rename(kRootId, "d", kRootId, "e", 0), EIO))
      << "it is not known to be empty";
}

TEST_F(RenameTest, IsAllOrNothingIfAnyCallOfTheStoreFails) {
  for (std::uint64_t nth = 1;; ++nth) {
    ASSERT_LT(nth, 20u);
    const std::string from = "d" + std::to_string(nth), to = "e" + std::to_string(nth);
    dir_.make_file("a/" + from + "/f", "1");
    dir_.make_file("b/" + from + "/g", "2");
    id_of(from);
    store_.fail_call(nth);
    const auto done = rename(kRootId, from.c_str(), kRootId, to.c_str(), 0);
    const bool failed = store_.has_failed();
    store_.fail_call(0);
    const std::string& now = done ? to : from;
    EXPECT_TRUE(has(kRootId, now.c_str())) << "call " << nth;
    if (has(kRootId, now.c_str())) {
      EXPECT_EQ(names(id_of(now)), (NameList{".", "..", "f", "g"})) << "call " << nth;
    }
    if (!failed) break;
  }
}

}  // namespace
}  // namespace sluice
