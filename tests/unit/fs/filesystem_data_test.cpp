// SPDX-License-Identifier: BSD-2-Clause
// Opening, reading and writing, and spills, asked for directly.
#include <stdio.h>
#include <sys/xattr.h>

#include "tests/support/loop_fs.hpp"
#include "tests/unit/fs/test_filesystem.hpp"

namespace sluice {
namespace {

// What the kernel does itself (passthrough: a backing id) and what it asks us for.
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
    const auto opened = fs_->open(id, flags, kOpener, std::nullopt);
    if (!opened) throw std::runtime_error(opened.error().operation);
    return *opened;
  }

  InodeId small_{}, large_{};
};

TEST_F(OpenTest, ASmallFileForReadingStaysInThePageCache) {
  const Opened opened = open(small_, O_RDONLY);
  EXPECT_EQ(opened.backing_id, 0);
  EXPECT_TRUE(opened.keep_pages);
  EXPECT_TRUE(kernel_.live.empty());
  EXPECT_EQ(read_all(small_), "content");
  fs_->release(small_, O_RDONLY);
}

TEST_F(OpenTest, ALargeFileIsPassedThrough) {
  const Opened opened = open(large_, O_RDONLY);
  EXPECT_NE(opened.backing_id, 0);
  ASSERT_EQ(kernel_.live.size(), 1u);
  EXPECT_EQ(kernel_.live.at(opened.backing_id), test::lstat_of(at("a", "large")).st_ino);
  fs_->release(large_, O_RDONLY);
  EXPECT_TRUE(kernel_.live.empty());
}

TEST_F(OpenTest, AFileForWritingIsPassedThroughWhateverItsSize) {
  for (const int flags : {O_WRONLY, O_RDWR}) {
    EXPECT_NE(open(small_, flags).backing_id, 0);
    fs_->release(small_, flags);
  }
  const auto made = fs_->create(kRootId, "new", 0644, O_WRONLY, kRoot);
  ASSERT_TRUE(made);
  EXPECT_NE(made->second.backing_id, 0);
  fs_->release(made->first.id, O_WRONLY);
  EXPECT_TRUE(kernel_.live.empty());
  EXPECT_TRUE(kernel_.all_read_only) << "a writable backing file would defeat every lease";
}

TEST_F(OpenTest, TheSecondOpenSharesTheFirstOnesWay) {
  EXPECT_EQ(open(small_, O_RDONLY).backing_id, 0);
  EXPECT_EQ(open(small_, O_RDWR).backing_id, 0) << "pages are cached already";
  fs_->release(small_, O_RDONLY);
  EXPECT_EQ(open(small_, O_RDWR).backing_id, 0);
  fs_->release(small_, O_RDWR);
  fs_->release(small_, O_RDWR);

  const std::int32_t id = open(small_, O_RDWR).backing_id;
  EXPECT_NE(id, 0) << "after the last close the choice is free again";
  EXPECT_EQ(open(small_, O_RDONLY).backing_id, id);
  EXPECT_EQ(kernel_.live.size(), 1u);
  fs_->release(small_, O_RDWR);
  EXPECT_EQ(kernel_.live.size(), 1u);
  fs_->release(small_, O_RDONLY);
  EXPECT_TRUE(kernel_.live.empty());
  EXPECT_EQ(fs_->open_files(), 0u);
}

TEST_F(OpenTest, PagesAreStaleAfterAPassthroughWriter) {
  EXPECT_TRUE(open(small_, O_RDONLY).keep_pages);
  fs_->release(small_, O_RDONLY);
  open(small_, O_RDWR);
  fs_->release(small_, O_RDWR);
  EXPECT_FALSE(open(small_, O_RDONLY).keep_pages);
  fs_->release(small_, O_RDONLY);
  EXPECT_TRUE(open(small_, O_RDONLY).keep_pages) << "they were dropped by the open before";
  fs_->release(small_, O_RDONLY);
}

TEST_F(OpenTest, AttributesOfAFileWithAPassthroughWriterAreNotRemembered) {
  EXPECT_GT(fs_->getattr(small_)->seconds, 0);
  open(small_, O_RDWR);
  EXPECT_EQ(fs_->getattr(small_)->seconds, 0);
  fs_->release(small_, O_RDWR);
  EXPECT_GT(fs_->getattr(small_)->seconds, 0);
}

TEST_F(OpenTest, OnACrowdedTierWeSeeTheWrites) {
  auto settings = make_tiers("abc");
  settings[0].reserve = UINT64_MAX;
  mount(settings);
  small_ = id_of("small");
  large_ = id_of("large");
  EXPECT_EQ(open(small_, O_RDWR).backing_id, 0);
  EXPECT_NE(open(large_, O_RDONLY).backing_id, 0) << "reading needs no room";
  ASSERT_TRUE(fs_->write(small_, "CON", 3, 0, std::nullopt));
  EXPECT_EQ(test::read_file(at("a", "small")), "CONtent");
  fs_->release(small_, O_RDWR);
  fs_->release(large_, O_RDONLY);
}

TEST_F(OpenTest, WithoutPassthroughWeServeEverything) {
  kernel_.refuse = true;
  EXPECT_EQ(open(large_, O_RDONLY).backing_id, 0);
  EXPECT_EQ(read_all(large_), test::pattern(256 << 10, 1));
  fs_->release(large_, O_RDONLY);
  kernel_.refuse = false;
  fs_->serve_everything();
  EXPECT_EQ(open(large_, O_RDWR).backing_id, 0);
  fs_->release(large_, O_RDWR);
}

TEST_F(OpenTest, AFileThatIsOpenButWasNeverReadSurvivesItsName) {
  open(small_, O_RDONLY);
  ASSERT_TRUE(unlink(kRootId, "small"));
  EXPECT_FALSE(test::exists(at("a", "small")));
  EXPECT_EQ(read_all(small_), "content");
  EXPECT_EQ(fs_->getattr(small_)->st.st_nlink, 0u);
  fs_->release(small_, O_RDONLY);
}

TEST_F(OpenTest, AFileThatIsOpenButWasNeverReadSurvivesBeingReplaced) {
  for (const char* tier : {"a", "b"}) {
    dir_.make_file("a/victim", "content");
    dir_.make_file(std::string(tier) + "/other", "other");
    const InodeId victim = id_of("victim");
    open(victim, O_RDONLY);
    ASSERT_TRUE(rename(kRootId, "other", kRootId, "victim", 0));
    EXPECT_EQ(read_all(victim), "content") << tier;
    EXPECT_EQ(read_path("victim"), "other") << tier;
    fs_->release(victim, O_RDONLY);
    ASSERT_TRUE(unlink(kRootId, "victim"));
  }
}

TEST_F(OpenTest, AnUnlinkedFileWorksUntilItIsClosed) {
  for (const bool passthrough : {true, false}) {
    kernel_.refuse = !passthrough;
    const auto made = fs_->create(kRootId, "f", 0644, O_RDWR, kRoot);
    ASSERT_TRUE(made);
    const InodeId id = made->first.id;
    ASSERT_TRUE(fs_->unlink(kRootId, "f"));
    ASSERT_TRUE(fs_->write(id, "written", 7, 0, std::nullopt));
    EXPECT_EQ(read_all(id), "written");
    AttributeChange change;
    change.size = 4;
    change.mode = 0600;
    ASSERT_TRUE(fs_->setattr(id, change));
    EXPECT_EQ(read_all(id), "writ");
    EXPECT_EQ(fs_->getattr(id)->st.st_nlink, 0u);
    fs_->release(id, O_RDWR);
    fs_->forget(id, 1);
    EXPECT_TRUE(failed_with(fs_->getattr(id), ESTALE));
  }
}

TEST_F(OpenTest, AnUnnamedFileCanBeUsedAndNamed) {
  const auto made = fs_->create_unnamed(kRootId, 0600, O_RDWR, Caller{12, 34, 0});
  ASSERT_TRUE(made);
  const InodeId id = made->first.id;
  ASSERT_TRUE(fs_->write(id, "x", 1, 0, std::nullopt));
  EXPECT_EQ(fs_->getattr(id)->st.st_uid, 12u);
  EXPECT_EQ(names(kRootId), (Names{".", "..", "large", "small"}));
  ASSERT_TRUE(fs_->link(id, kRootId, "named"));
  EXPECT_EQ(read_path("named"), "x");
  EXPECT_EQ(id_of("named"), id);
  fs_->release(id, O_RDWR);
}

TEST_F(OpenTest, TruncatingEmptiesAndDropsSetuid) {
  ASSERT_EQ(::chmod(at("a", "small").c_str(), 06755), 0);
  ASSERT_TRUE(fs_->open(small_, O_WRONLY | O_TRUNC, kOpener, kUser));
  EXPECT_EQ(test::lstat_of(at("a", "small")).st_size, 0);
  EXPECT_EQ(test::lstat_of(at("a", "small")).st_mode & 07777, 0755u);
  fs_->release(small_, O_WRONLY);
}

TEST_F(OpenTest, OnATierThatIsAwayFails) {
  dir_.make_file("b/f", "1");
  const InodeId id = id_of("f");
  take_away("b");
  EXPECT_TRUE(failed_with(fs_->open(id, O_RDONLY, kOpener, std::nullopt), EIO));
  EXPECT_TRUE(failed_with(fs_->getattr(id), EIO));
  EXPECT_EQ(fs_->open_files(), 0u);
  bring_back("b");
  EXPECT_TRUE(fs_->open(id, O_RDONLY, kOpener, std::nullopt));
  EXPECT_EQ(read_all(id), "1");
  fs_->release(id, O_RDONLY);
}

class BytesTest : public FilesystemTest {
 protected:
  InodeId make(const char* name) {
    const auto made = fs_->create(kRootId, name, 0644, O_RDWR, kRoot);
    if (!made) throw std::runtime_error(made.error().operation);
    return made->first.id;
  }
};

TEST_F(BytesTest, AreReadBackAsWritten) {
  const InodeId id = make("f");
  EXPECT_EQ(*fs_->write(id, "world", 5, 6, std::nullopt), 5u);
  EXPECT_EQ(*fs_->write(id, "hello ", 6, 0, std::nullopt), 6u);
  EXPECT_EQ(read_all(id), "hello world");
  char buffer[8];
  EXPECT_EQ(*fs_->read(id, buffer, sizeof buffer, 8, O_RDONLY), 3u)
      << "short at the end of the file";
  EXPECT_EQ(*fs_->read(id, buffer, sizeof buffer, 100, O_RDONLY), 0u);
  EXPECT_TRUE(fs_->sync(id, false));
  EXPECT_TRUE(fs_->sync(id, true));
  fs_->release(id, O_RDWR);
}

TEST_F(BytesTest, AWriterWithoutPrivilegeDropsSetuid) {
  const InodeId id = make("f");
  ASSERT_EQ(::chmod(at("a", "f").c_str(), 04755), 0);
  ASSERT_TRUE(fs_->write(id, "x", 1, 0, std::nullopt));
  EXPECT_EQ(test::lstat_of(at("a", "f")).st_mode & 07777, 04755u);
  ASSERT_TRUE(fs_->write(id, "x", 1, 0, kUser));
  EXPECT_EQ(test::lstat_of(at("a", "f")).st_mode & 07777, 0755u);
  fs_->release(id, O_RDWR);
}

TEST_F(BytesTest, HolesAreFoundAndFilled) {
  const InodeId id = make("f");
  ASSERT_TRUE(fs_->write(id, "x", 1, kMiB, std::nullopt));
  EXPECT_EQ(*fs_->seek(id, 0, SEEK_DATA), static_cast<off_t>(kMiB));
  ASSERT_TRUE(fs_->allocate(id, 0, 0, 2 * kMiB));
  EXPECT_EQ(fs_->getattr(id)->st.st_size, static_cast<off_t>(2 * kMiB));
  EXPECT_TRUE(failed_with(fs_->seek(id, 3 * kMiB, SEEK_DATA), ENXIO));
  fs_->release(id, O_RDWR);
}

TEST_F(BytesTest, AreCopiedBetweenFiles) {
  const InodeId from = make("from"), to = make("to");
  ASSERT_TRUE(fs_->write(from, "0123456789", 10, 0, std::nullopt));
  EXPECT_EQ(*fs_->copy_range(from, 2, to, 0, 5), 5u);
  EXPECT_EQ(read_all(to), "23456");
  fs_->release(from, O_RDWR);
  fs_->release(to, O_RDWR);
}

// Small disks of their own, because only they can be full.
class SpillTest : public FilesystemTest {
 protected:
  void prepare() override {
    if (!test::require_loop("unit", "ext4")) return;
    fast_ = std::make_unique<test::LoopFs>(dir_ / "fast", "ext4", 64 * kMiB);
    slow_ = std::make_unique<test::LoopFs>(dir_ / "slow", "ext4", 64 * kMiB);
    std::vector settings{tier("fast", fast_->path()), tier("slow", slow_->path())};
    for (TierSettings& s : settings) {
      s.high_watermark = 100;
      s.reserve = 0;
    }
    kernel_.refuse = true;  // we can move only what we serve
    mount(settings);
  }
  void TearDown() override {
    fs_.reset();
    pool_.reset();
    FilesystemTest::TearDown();
  }
  // Leaves about `bytes` of room on a disk.
  static void fill(const test::LoopFs& disk, std::uint64_t bytes) {
    const std::string path = disk.path() + "/ballast";
    test::write_file(path, "");
    struct statfs fs {};
    ASSERT_EQ(::statfs(disk.path().c_str(), &fs), 0);
    const std::uint64_t free = fs.f_bavail * static_cast<std::uint64_t>(fs.f_bsize);
    ASSERT_EQ(::posix_fallocate(test::open_file(path).get(), 0, static_cast<off_t>(free - bytes)),
              0);
  }
  InodeId make(const char* name) {
    const auto made = fs_->create(kRootId, name, 0640, O_RDWR, Caller{12, 34, 0});
    if (!made) throw std::runtime_error(made.error().operation);
    return made->first.id;
  }
  // Writes the pattern from `from` to `to` in pieces; how far it came.
  std::size_t write(InodeId id, std::size_t from, std::size_t to) {
    constexpr std::size_t kPiece = 128 << 10;
    for (std::size_t at = from; at < to; at += kPiece) {
      const auto put = fs_->write(id, content_.data() + at, std::min(kPiece, to - at),
                                  static_cast<off_t>(at), std::nullopt);
      if (!put) {
        code_ = put.error().code;
        return at;
      }
      if (*put < std::min(kPiece, to - at)) return at + *put;
    }
    return to;
  }
  std::string head(std::size_t size) const { return content_.substr(0, size); }

  std::unique_ptr<test::LoopFs> fast_, slow_;
  const std::string content_ = test::pattern(4 * kMiB, 7);
  int code_ = 0;
};

TEST_F(SpillTest, AFileThatOutgrowsItsTierMovesOn) {
  fill(*fast_, 2 * kMiB);
  const InodeId id = make("f");
  ASSERT_TRUE(fs_->setxattr(id, "user.k", "v", 1, 0, kRoot));
  ASSERT_EQ(xattr("f", "user.sluice.tier"), "fast");
  const statx_timestamp born = fs_->statx(id)->stx_btime;
  ASSERT_EQ(write(id, 0, 4 * kMiB), 4 * kMiB) << ::strerrorname_np(code_);
  EXPECT_EQ(xattr("f", "user.sluice.tier"), "slow");
  EXPECT_FALSE(test::exists(fast_->path() + "/f"));
  EXPECT_TRUE(test::read_file(slow_->path() + "/f") == content_);
  EXPECT_TRUE(read_all(id) == content_);
  EXPECT_EQ(id_of("f"), id);
  EXPECT_EQ(fs_->getattr(id)->st.st_uid, 12u);
  EXPECT_EQ(fs_->getattr(id)->st.st_mode & 07777, 0640u);
  EXPECT_EQ(*fs_->getxattr(id, "user.k"), "v");
  EXPECT_EQ(fs_->statx(id)->stx_btime.tv_sec, born.tv_sec);
  EXPECT_EQ(fs_->statx(id)->stx_btime.tv_nsec, born.tv_nsec);
  EXPECT_EQ(fs_->getattr(id)->st.st_ctim.tv_nsec,
            test::lstat_of(slow_->path() + "/f").st_ctim.tv_nsec);
  EXPECT_EQ(intents_in(store_), 0u);
  EXPECT_TRUE(test::names_in(slow_->path() + "/.sluice/tmp").empty());
  fs_->release(id, O_RDWR);
  ASSERT_TRUE(fs_->open(id, O_RDONLY, kOpener, std::nullopt));
  EXPECT_TRUE(read_all(id) == content_);
  fs_->release(id, O_RDONLY);
}

TEST_F(SpillTest, BringsTheDirectoryAlong) {
  ASSERT_TRUE(fs_->mkdir(kRootId, "d", 0750, kRoot));
  fill(*fast_, kMiB);
  const InodeId d = id_of("d");
  const auto made = fs_->create(d, "f", 0644, O_RDWR, kRoot);
  ASSERT_TRUE(made);
  ASSERT_EQ(write(made->first.id, 0, 3 * kMiB), 3 * kMiB);
  EXPECT_TRUE(test::exists(slow_->path() + "/d/f"));
  EXPECT_EQ(test::lstat_of(slow_->path() + "/d").st_mode & 07777, 0750u);
  EXPECT_EQ(id_of("d"), d);
  fs_->release(made->first.id, O_RDWR);
}

TEST_F(SpillTest, WithoutRoomAnywhereIsEnospcAndLosesNothing) {
  fill(*fast_, 2 * kMiB);
  fill(*slow_, kMiB);
  const InodeId id = make("f");
  const std::size_t written = write(id, 0, 4 * kMiB);
  EXPECT_LT(written, 4 * kMiB);
  EXPECT_GT(written, kMiB);
  EXPECT_TRUE(failed_with(
      fs_->write(id, content_.data(), kMiB, static_cast<off_t>(written), std::nullopt), ENOSPC));
  EXPECT_EQ(xattr("f", "user.sluice.tier"), "fast");
  EXPECT_TRUE(read_all(id).substr(0, written) == head(written));
  EXPECT_TRUE(test::names_in(slow_->path() + "/.sluice/tmp").empty());
  fs_->release(id, O_RDWR);
}

TEST_F(SpillTest, AFileWithTwoNamesStays) {
  fill(*fast_, kMiB);
  const InodeId id = make("f");
  ASSERT_TRUE(fs_->link(id, kRootId, "g"));
  EXPECT_LT(write(id, 0, 3 * kMiB), 3 * kMiB);
  EXPECT_EQ(xattr("f", "user.sluice.tier"), "fast");
  EXPECT_FALSE(test::exists(slow_->path() + "/f"));
  fs_->release(id, O_RDWR);
}

TEST_F(SpillTest, AFileThatLostItsLastKnownNameMovesUnderTheOther) {
  ASSERT_TRUE(fs_->mkdir(kRootId, "d", 0750, kRoot));
  fill(*fast_, kMiB);
  const auto made = fs_->create(id_of("d"), "f", 0644, O_RDWR, kRoot);
  ASSERT_TRUE(made);
  const InodeId id = made->first.id;
  ASSERT_TRUE(fs_->link(id, kRootId, "g"));
  ASSERT_TRUE(unlink(kRootId, "g"));
  ASSERT_EQ(write(id, 0, 3 * kMiB), 3 * kMiB) << ::strerrorname_np(code_);
  EXPECT_TRUE(test::read_file(slow_->path() + "/d/f") == head(3 * kMiB));
  EXPECT_FALSE(test::exists(fast_->path() + "/d/f"));
  fs_->release(id, O_RDWR);
}

TEST_F(SpillTest, AnUnlinkedFileMovesToo) {
  fill(*fast_, kMiB);
  const InodeId id = make("f");
  ASSERT_TRUE(unlink(kRootId, "f"));
  ASSERT_EQ(write(id, 0, 3 * kMiB), 3 * kMiB);
  EXPECT_TRUE(read_all(id) == head(3 * kMiB));
  EXPECT_FALSE(test::exists(slow_->path() + "/f"));
  EXPECT_TRUE(test::names_in(slow_->path() + "/.sluice/tmp").empty());
  fs_->release(id, O_RDWR);
}

TEST_F(SpillTest, AFileWhoseDirectoryIsGoneMovesToo) {
  ASSERT_TRUE(fs_->mkdir(kRootId, "d", 0750, kRoot));
  fill(*fast_, kMiB);
  const InodeId d = id_of("d");
  const auto made = fs_->create(d, "f", 0644, O_RDWR, kRoot);
  ASSERT_TRUE(made);
  const InodeId id = made->first.id;
  ASSERT_TRUE(unlink(d, "f"));
  ASSERT_TRUE(rmdir(kRootId, "d"));
  fs_->forget(d, 100);
  ASSERT_EQ(write(id, 0, 3 * kMiB), 3 * kMiB) << ::strerrorname_np(code_);
  EXPECT_TRUE(read_all(id) == head(3 * kMiB));
  fs_->release(id, O_RDWR);
}

TEST_F(SpillTest, AFileMadeWithoutANameCanGetOneAfterwards) {
  fill(*fast_, kMiB);
  const auto made = fs_->create_unnamed(kRootId, 0644, O_RDWR, kRoot);
  ASSERT_TRUE(made);
  const InodeId id = made->first.id;
  ASSERT_EQ(write(id, 0, 3 * kMiB), 3 * kMiB);
  ASSERT_TRUE(fs_->link(id, kRootId, "f"));
  EXPECT_TRUE(test::read_file(slow_->path() + "/f") == head(3 * kMiB));
  EXPECT_EQ(id_of("f"), id);
  fs_->release(id, O_RDWR);
}

TEST_F(SpillTest, AFileRenamedMeanwhileMovesUnderItsNewName) {
  fill(*fast_, kMiB);
  const InodeId id = make("f");
  ASSERT_TRUE(rename(kRootId, "f", kRootId, "g", 0));
  ASSERT_EQ(write(id, 0, 3 * kMiB), 3 * kMiB);
  EXPECT_TRUE(test::read_file(slow_->path() + "/g") == head(3 * kMiB));
  EXPECT_FALSE(test::exists(fast_->path() + "/g") || test::exists(slow_->path() + "/f"));
  fs_->release(id, O_RDWR);
}

TEST_F(SpillTest, AllocatingMovesToo) {
  fill(*fast_, kMiB);
  const InodeId id = make("f");
  ASSERT_EQ(write(id, 0, 1000), 1000u);
  ASSERT_TRUE(fs_->allocate(id, 0, 0, 8 * kMiB));
  EXPECT_EQ(xattr("f", "user.sluice.tier"), "slow");
  EXPECT_EQ(read_all(id).substr(0, 1000), head(1000));
  fs_->release(id, O_RDWR);
}

TEST_F(SpillTest, NothingWrittenIsLostWhicheverCallOfTheStoreFails) {
  fill(*fast_, kMiB);
  for (std::uint64_t nth = 1;; ++nth) {
    ASSERT_LT(nth, 20u);
    const std::string name = "f" + std::to_string(nth);
    const InodeId id = make(name.c_str());
    store_.fail_call(nth);
    const std::size_t written = write(id, 0, 2 * kMiB);
    const bool failed = store_.has_failed();
    store_.fail_call(0);
    EXPECT_TRUE(read_all(id).substr(0, written) == head(written)) << "call " << nth;
    fs_->release(id, O_RDWR);
    // The kernel still knows the inode and opens it again by its id.
    const auto again = fs_->open(id, O_RDONLY, kOpener, std::nullopt);
    EXPECT_TRUE(again) << "call " << nth;
    EXPECT_TRUE(read_all(id).substr(0, written) == head(written)) << "call " << nth;
    if (again) fs_->release(id, O_RDONLY);
    ASSERT_TRUE(replay_intents(store_, *pool_));
    pool_->clear_temporaries();
    EXPECT_TRUE(read_path(name).substr(0, written) == head(written))
        << "call " << nth << ", after replay";
    EXPECT_EQ(id_of(name), id) << "call " << nth;
    if (!failed) break;
    ASSERT_TRUE(unlink(kRootId, name.c_str()));
  }
}

}  // namespace
}  // namespace sluice
