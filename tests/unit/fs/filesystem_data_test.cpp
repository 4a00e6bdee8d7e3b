// SPDX-License-Identifier: BSD-2-Clause
// Files: opening, reading and writing, called directly.
#include <linux/magic.h>
#include <stdio.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

#include "fs/core/inodes/kernel_request.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/fs/test_filesystem.hpp"

namespace sluice {
namespace {

// Which opens get passthrough (a backing id) and which are served.
class OpenTest : public FilesystemTest {
 protected:
  void prepare() override {
    FilesystemTest::prepare();
    dir_.make_file("a/small", "content");
    test::write_file(at("a", "large"), test::pattern(256 << 10, 1));
    small_ = id_of("small");
    large_ = id_of("large");
  }
  Opened open(InodeId id, int flags) {
    const auto opened = fs_->files().open(id, flags, kOpener, std::nullopt);
    if (!opened) throw std::runtime_error(opened.error().operation);
    return *opened;
  }

  InodeId small_{}, large_{};
};

TEST_F(OpenTest, ASmallFileOpenedForReadingIsServed) {
  const Opened opened = open(small_, O_RDONLY);
  EXPECT_EQ(opened.backing_id, 0);
  EXPECT_TRUE(opened.keep_pages);
  EXPECT_TRUE(kernel_.live.empty());
  EXPECT_EQ(read_all(small_), "content");
  fs_->files().release(small_, O_RDONLY);
}

TEST_F(OpenTest, ALargeFileGetsPassthrough) {
  const Opened opened = open(large_, O_RDONLY);
  EXPECT_NE(opened.backing_id, 0);
  ASSERT_EQ(kernel_.live.size(), 1u);
  EXPECT_EQ(kernel_.live.at(opened.backing_id), test::lstat_of(at("a", "large")).st_ino);
  fs_->files().release(large_, O_RDONLY);
  EXPECT_TRUE(kernel_.live.empty());
}

TEST_F(OpenTest, AWriterGetsPassthroughWhateverTheSize) {
  for (const int flags : {O_WRONLY, O_RDWR}) {
    EXPECT_NE(open(small_, flags).backing_id, 0);
    fs_->files().release(small_, flags);
  }
  const auto made = fs_->files().create(kRootId, "new", 0644, O_WRONLY, kRoot);
  ASSERT_TRUE(made);
  EXPECT_NE(made->second.backing_id, 0);
  fs_->files().release(made->first.id, O_WRONLY);
  EXPECT_TRUE(kernel_.live.empty());
  EXPECT_TRUE(kernel_.all_read_only) << "a writable backing file would defeat every lease";
}

TEST_F(OpenTest, LaterOpensShareTheChoiceOfTheFirst) {
  EXPECT_EQ(open(small_, O_RDONLY).backing_id, 0);
  EXPECT_EQ(open(small_, O_RDWR).backing_id, 0) << "pages are cached already";
  fs_->files().release(small_, O_RDONLY);
  EXPECT_EQ(open(small_, O_RDWR).backing_id, 0);
  fs_->files().release(small_, O_RDWR);
  fs_->files().release(small_, O_RDWR);

  const std::int32_t id = open(small_, O_RDWR).backing_id;
  EXPECT_NE(id, 0) << "after the last close the choice is free again";
  EXPECT_EQ(open(small_, O_RDONLY).backing_id, id);
  EXPECT_EQ(kernel_.live.size(), 1u);
  fs_->files().release(small_, O_RDWR);
  EXPECT_EQ(kernel_.live.size(), 1u);
  fs_->files().release(small_, O_RDONLY);
  EXPECT_TRUE(kernel_.live.empty());
  EXPECT_EQ(fs_->files().open_files(), 0u);
}

TEST_F(OpenTest, PagesAreStaleAfterAPassthroughWriter) {
  EXPECT_TRUE(open(small_, O_RDONLY).keep_pages);
  fs_->files().release(small_, O_RDONLY);
  open(small_, O_RDWR);
  fs_->files().release(small_, O_RDWR);
  EXPECT_FALSE(open(small_, O_RDONLY).keep_pages);
  fs_->files().release(small_, O_RDONLY);
  EXPECT_TRUE(open(small_, O_RDONLY).keep_pages) << "they were dropped by the open before";
  fs_->files().release(small_, O_RDONLY);
}

TEST_F(OpenTest, AttributesOfAFileWithAPassthroughWriterAreNotCached) {
  EXPECT_GT(fs_->attributes().get(small_)->seconds, 0);
  open(small_, O_RDWR);
  EXPECT_EQ(fs_->attributes().get(small_)->seconds, 0);
  fs_->files().release(small_, O_RDWR);
  EXPECT_GT(fs_->attributes().get(small_)->seconds, 0);
}

TEST_F(OpenTest, WritersOnANearlyFullTierAreServed) {
  auto settings = make_tiers("abc");
  settings[0].reserve = UINT64_MAX;
  mount(settings);
  small_ = id_of("small");
  large_ = id_of("large");
  EXPECT_EQ(open(small_, O_RDWR).backing_id, 0);
  EXPECT_NE(open(large_, O_RDONLY).backing_id, 0) << "reading needs no room";
  ASSERT_TRUE(fs_->files().write(small_, "CON", 3, 0, std::nullopt));
  EXPECT_EQ(test::read_file(at("a", "small")), "CONtent");
  fs_->files().release(small_, O_RDWR);
  fs_->files().release(large_, O_RDONLY);
}

TEST_F(OpenTest, WithoutPassthroughEverythingIsServed) {
  kernel_.refuse = true;
  EXPECT_EQ(open(large_, O_RDONLY).backing_id, 0);
  EXPECT_EQ(read_all(large_), test::pattern(256 << 10, 1));
  fs_->files().release(large_, O_RDONLY);
  kernel_.refuse = false;
  fs_->files().serve_everything();
  EXPECT_EQ(open(large_, O_RDWR).backing_id, 0);
  fs_->files().release(large_, O_RDWR);
}

TEST_F(OpenTest, AnOpenFileThatWasNeverReadSurvivesItsUnlink) {
  open(small_, O_RDONLY);
  ASSERT_TRUE(unlink(kRootId, "small"));
  EXPECT_FALSE(test::exists(at("a", "small")));
  EXPECT_EQ(read_all(small_), "content");
  EXPECT_EQ(fs_->attributes().get(small_)->st.st_nlink, 0u);
  fs_->files().release(small_, O_RDONLY);
}

TEST_F(OpenTest, AnOpenFileThatWasNeverReadSurvivesBeingReplaced) {
  for (const char* tier : {"a", "b"}) {
    dir_.make_file("a/victim", "content");
    dir_.make_file(std::string(tier) + "/other", "other");
    const InodeId victim = id_of("victim");
    open(victim, O_RDONLY);
    ASSERT_TRUE(rename(kRootId, "other", kRootId, "victim", 0));
    EXPECT_EQ(read_all(victim), "content") << tier;
    EXPECT_EQ(read_path("victim"), "other") << tier;
    fs_->files().release(victim, O_RDONLY);
    ASSERT_TRUE(unlink(kRootId, "victim"));
  }
}

TEST_F(OpenTest, AnUnlinkedFileCanBeUsedUntilItIsClosed) {
  for (const bool passthrough : {true, false}) {
    kernel_.refuse = !passthrough;
    const auto made = fs_->files().create(kRootId, "f", 0644, O_RDWR, kRoot);
    ASSERT_TRUE(made);
    const InodeId id = made->first.id;
    ASSERT_TRUE(fs_->names().unlink(kRootId, "f"));
    ASSERT_TRUE(fs_->files().write(id, "written", 7, 0, std::nullopt));
    EXPECT_EQ(read_all(id), "written");
    AttributeChange change;
    change.size = 4;
    change.mode = 0600;
    ASSERT_TRUE(fs_->attributes().set(id, change));
    EXPECT_EQ(read_all(id), "writ");
    EXPECT_EQ(fs_->attributes().get(id)->st.st_nlink, 0u);
    fs_->files().release(id, O_RDWR);
    fs_->names().forget(id, 1);
    EXPECT_TRUE(failed_with(fs_->attributes().get(id), ESTALE));
  }
}

TEST_F(OpenTest, AnUnnamedFileCanBeUsedAndLinked) {
  const auto made = fs_->files().create_unnamed(kRootId, 0600, O_RDWR, Caller{12, 34, 0});
  ASSERT_TRUE(made);
  const InodeId id = made->first.id;
  ASSERT_TRUE(fs_->files().write(id, "x", 1, 0, std::nullopt));
  EXPECT_EQ(fs_->attributes().get(id)->st.st_uid, 12u);
  EXPECT_EQ(names(kRootId), (NameList{".", "..", "large", "small"}));
  ASSERT_TRUE(fs_->names().link(id, kRootId, "named"));
  EXPECT_EQ(read_path("named"), "x");
  EXPECT_EQ(id_of("named"), id);
  fs_->files().release(id, O_RDWR);
}

TEST_F(OpenTest, OpenWithTruncateEmptiesTheFileAndClearsSetuid) {
  ASSERT_EQ(::chmod(at("a", "small").c_str(), 06755), 0);
  ASSERT_TRUE(fs_->files().open(small_, O_WRONLY | O_TRUNC, kOpener, kUser));
  EXPECT_EQ(test::lstat_of(at("a", "small")).st_size, 0);
  EXPECT_EQ(test::lstat_of(at("a", "small")).st_mode & 07777, 0755u);
  fs_->files().release(small_, O_WRONLY);
}

TEST_F(OpenTest, OpenFailsWhileTheTierIsOffline) {
  dir_.make_file("b/f", "1");
  const InodeId id = id_of("f");
  take_away("b");
  EXPECT_TRUE(failed_with(fs_->files().open(id, O_RDONLY, kOpener, std::nullopt), EIO));
  EXPECT_TRUE(failed_with(fs_->attributes().get(id), EIO));
  EXPECT_EQ(fs_->files().open_files(), 0u);
  bring_back("b");
  EXPECT_TRUE(fs_->files().open(id, O_RDONLY, kOpener, std::nullopt));
  EXPECT_EQ(read_all(id), "1");
  fs_->files().release(id, O_RDONLY);
}

class BytesTest : public FilesystemTest {
 protected:
  InodeId make(const char* name) {
    const auto made = fs_->files().create(kRootId, name, 0644, O_RDWR, kRoot);
    if (!made) throw std::runtime_error(made.error().operation);
    return made->first.id;
  }
};

TEST_F(BytesTest, ReadReturnsWhatWasWritten) {
  const InodeId id = make("f");
  EXPECT_EQ(*fs_->files().write(id, "world", 5, 6, std::nullopt), 5u);
  EXPECT_EQ(*fs_->files().write(id, "hello ", 6, 0, std::nullopt), 6u);
  EXPECT_EQ(read_all(id), "hello world");
  char buffer[8];
  EXPECT_EQ(*fs_->files().read(id, buffer, sizeof buffer, 8, O_RDONLY), 3u)
      << "short at the end of the file";
  EXPECT_EQ(*fs_->files().read(id, buffer, sizeof buffer, 100, O_RDONLY), 0u);
  EXPECT_TRUE(fs_->files().sync(id, false));
  EXPECT_TRUE(fs_->files().sync(id, true));
  fs_->files().release(id, O_RDWR);
}

TEST_F(BytesTest, AReadThatMustNotWaitReturnsWouldWait) {
  const InodeId id = make("cold");
  ASSERT_TRUE(fs_->files().write(id, "content", 7, 0, std::nullopt));
  const UniqueFd file(::open(at("a", "cold").c_str(), O_RDONLY | O_CLOEXEC));
  struct statfs where {};
  ASSERT_EQ(::fstatfs(file.get(), &where), 0);
  if (where.f_type == TMPFS_MAGIC) GTEST_SKIP() << "a disk is needed";
  ASSERT_EQ(::fdatasync(file.get()), 0);
  std::string out(7, '\0');
  const auto read = [&](const KernelRequest& request) {
    return fs_->files().read(id, out.data(), out.size(), 0, O_RDONLY, request);
  };
  const auto now = KernelRequest().without_waiting();
  // The kernel does not drop a page that it is just looking at.
  EXPECT_TRUE(test::eventually([&] {
    EXPECT_EQ(::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    return failed_with(read(now), kWouldWait);
  }));
  EXPECT_TRUE(read({}));
  EXPECT_EQ(out, "content");
  EXPECT_TRUE(read(now)) << "it is in memory now";
}

TEST_F(BytesTest, AnUnprivilegedWriteClearsSetuid) {
  const InodeId id = make("f");
  ASSERT_EQ(::chmod(at("a", "f").c_str(), 04755), 0);
  ASSERT_TRUE(fs_->files().write(id, "x", 1, 0, std::nullopt));
  EXPECT_EQ(test::lstat_of(at("a", "f")).st_mode & 07777, 04755u);
  ASSERT_TRUE(fs_->files().write(id, "x", 1, 0, kUser));
  EXPECT_EQ(test::lstat_of(at("a", "f")).st_mode & 07777, 0755u);
  fs_->files().release(id, O_RDWR);
}

TEST_F(BytesTest, SeekFindsHolesAndAllocateFillsThem) {
  const InodeId id = make("f");
  ASSERT_TRUE(fs_->files().write(id, "x", 1, kMiB, std::nullopt));
  EXPECT_EQ(*fs_->files().seek(id, 0, SEEK_DATA), static_cast<off_t>(kMiB));
  ASSERT_TRUE(fs_->files().allocate(id, 0, 0, 2 * kMiB));
  EXPECT_EQ(fs_->attributes().get(id)->st.st_size, static_cast<off_t>(2 * kMiB));
  EXPECT_TRUE(failed_with(fs_->files().seek(id, 3 * kMiB, SEEK_DATA), ENXIO));
  fs_->files().release(id, O_RDWR);
}

TEST_F(BytesTest, CopyRangeCopiesBetweenFiles) {
  const InodeId from = make("from"), to = make("to");
  ASSERT_TRUE(fs_->files().write(from, "0123456789", 10, 0, std::nullopt));
  EXPECT_EQ(*fs_->files().copy_range(from, 2, to, 0, 5), 5u);
  EXPECT_EQ(read_all(to), "23456");
  fs_->files().release(from, O_RDWR);
  fs_->files().release(to, O_RDWR);
}

}  // namespace
}  // namespace sluice
