// SPDX-License-Identifier: BSD-2-Clause
// Spills, called directly: a file whose tier is full moves to another while it is open.
#include <sys/xattr.h>

#include "tests/support/loop_fs.hpp"
#include "tests/unit/fs/test_filesystem.hpp"

namespace sluice {
namespace {

// Small disks, because they can be filled quickly.
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
    kernel_.refuse = true;  // only served files can spill
    mount(settings);
  }
  void TearDown() override {
    fs_.reset();
    pool_.reset();
    FilesystemTest::TearDown();
  }
  // Fills a disk, except for about `bytes`.
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
    const auto made = fs_->files().create(kRootId, name, 0640, O_RDWR, Caller{12, 34, 0});
    if (!made) throw std::runtime_error(made.error().operation);
    return made->first.id;
  }
  // Writes the pattern from `from` to `to` in pieces. Returns the offset that it reached.
  std::size_t write(InodeId id, std::size_t from, std::size_t to) {
    constexpr std::size_t kPiece = 128 << 10;
    for (std::size_t at = from; at < to; at += kPiece) {
      const auto put = fs_->files().write(id, content_.data() + at, std::min(kPiece, to - at),
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

TEST_F(SpillTest, AFileThatOutgrowsItsTierIsMoved) {
  fill(*fast_, 2 * kMiB);
  const InodeId id = make("f");
  ASSERT_TRUE(fs_->xattrs().set(id, "user.k", "v", 1, 0, kRoot));
  ASSERT_EQ(xattr("f", "user.sluice.tier"), "fast");
  const statx_timestamp born = fs_->attributes().statx(id)->stx_btime;
  ASSERT_EQ(write(id, 0, 4 * kMiB), 4 * kMiB) << ::strerrorname_np(code_);
  EXPECT_EQ(xattr("f", "user.sluice.tier"), "slow");
  EXPECT_FALSE(test::exists(fast_->path() + "/f"));
  EXPECT_TRUE(test::read_file(slow_->path() + "/f") == content_);
  EXPECT_TRUE(read_all(id) == content_);
  EXPECT_EQ(id_of("f"), id);
  EXPECT_EQ(fs_->attributes().get(id)->st.st_uid, 12u);
  EXPECT_EQ(fs_->attributes().get(id)->st.st_mode & 07777, 0640u);
  EXPECT_EQ(*fs_->xattrs().get(id, "user.k"), "v");
  EXPECT_EQ(fs_->attributes().statx(id)->stx_btime.tv_sec, born.tv_sec);
  EXPECT_EQ(fs_->attributes().statx(id)->stx_btime.tv_nsec, born.tv_nsec);
  EXPECT_EQ(fs_->attributes().get(id)->st.st_ctim.tv_nsec,
            test::lstat_of(slow_->path() + "/f").st_ctim.tv_nsec);
  EXPECT_EQ(intents_in(store_), 0u);
  EXPECT_TRUE(test::names_in(slow_->path() + "/.sluice/tmp").empty());
  fs_->files().release(id, O_RDWR);
  ASSERT_TRUE(fs_->files().open(id, O_RDONLY, kOpener, std::nullopt));
  EXPECT_TRUE(read_all(id) == content_);
  fs_->files().release(id, O_RDONLY);
}

TEST_F(SpillTest, MakesTheMissingDirectoryCopy) {
  ASSERT_TRUE(fs_->names().mkdir(kRootId, "d", 0750, kRoot));
  fill(*fast_, kMiB);
  const InodeId d = id_of("d");
  const auto made = fs_->files().create(d, "f", 0644, O_RDWR, kRoot);
  ASSERT_TRUE(made);
  ASSERT_EQ(write(made->first.id, 0, 3 * kMiB), 3 * kMiB);
  EXPECT_TRUE(test::exists(slow_->path() + "/d/f"));
  EXPECT_EQ(test::lstat_of(slow_->path() + "/d").st_mode & 07777, 0750u);
  EXPECT_EQ(id_of("d"), d);
  fs_->files().release(made->first.id, O_RDWR);
}

TEST_F(SpillTest, FailsWithEnospcAndLosesNothingIfNoTierHasRoom) {
  fill(*fast_, 2 * kMiB);
  fill(*slow_, kMiB);
  const InodeId id = make("f");
  const std::size_t written = write(id, 0, 4 * kMiB);
  EXPECT_LT(written, 4 * kMiB);
  EXPECT_GT(written, kMiB);
  EXPECT_TRUE(failed_with(
      fs_->files().write(id, content_.data(), kMiB, static_cast<off_t>(written), std::nullopt),
      ENOSPC));
  EXPECT_EQ(xattr("f", "user.sluice.tier"), "fast");
  EXPECT_TRUE(read_all(id).substr(0, written) == head(written));
  EXPECT_TRUE(test::names_in(slow_->path() + "/.sluice/tmp").empty());
  fs_->files().release(id, O_RDWR);
}

TEST_F(SpillTest, AFileWithTwoNamesIsNotSpilled) {
  fill(*fast_, kMiB);
  const InodeId id = make("f");
  ASSERT_TRUE(fs_->names().link(id, kRootId, "g"));
  EXPECT_LT(write(id, 0, 3 * kMiB), 3 * kMiB);
  EXPECT_EQ(xattr("f", "user.sluice.tier"), "fast");
  EXPECT_FALSE(test::exists(slow_->path() + "/f"));
  fs_->files().release(id, O_RDWR);
}

TEST_F(SpillTest, AFileThatLostItsLastKnownNameSpillsUnderItsOtherName) {
  ASSERT_TRUE(fs_->names().mkdir(kRootId, "d", 0750, kRoot));
  fill(*fast_, kMiB);
  const auto made = fs_->files().create(id_of("d"), "f", 0644, O_RDWR, kRoot);
  ASSERT_TRUE(made);
  const InodeId id = made->first.id;
  ASSERT_TRUE(fs_->names().link(id, kRootId, "g"));
  ASSERT_TRUE(unlink(kRootId, "g"));
  ASSERT_EQ(write(id, 0, 3 * kMiB), 3 * kMiB) << ::strerrorname_np(code_);
  EXPECT_TRUE(test::read_file(slow_->path() + "/d/f") == head(3 * kMiB));
  EXPECT_FALSE(test::exists(fast_->path() + "/d/f"));
  fs_->files().release(id, O_RDWR);
}

TEST_F(SpillTest, AnUnlinkedFileCanSpill) {
  fill(*fast_, kMiB);
  const InodeId id = make("f");
  ASSERT_TRUE(unlink(kRootId, "f"));
  ASSERT_EQ(write(id, 0, 3 * kMiB), 3 * kMiB);
  EXPECT_TRUE(read_all(id) == head(3 * kMiB));
  EXPECT_FALSE(test::exists(slow_->path() + "/f"));
  EXPECT_TRUE(test::names_in(slow_->path() + "/.sluice/tmp").empty());
  fs_->files().release(id, O_RDWR);
}

TEST_F(SpillTest, AFileInARemovedDirectoryCanSpill) {
  ASSERT_TRUE(fs_->names().mkdir(kRootId, "d", 0750, kRoot));
  fill(*fast_, kMiB);
  const InodeId d = id_of("d");
  const auto made = fs_->files().create(d, "f", 0644, O_RDWR, kRoot);
  ASSERT_TRUE(made);
  const InodeId id = made->first.id;
  ASSERT_TRUE(unlink(d, "f"));
  ASSERT_TRUE(rmdir(kRootId, "d"));
  fs_->names().forget(d, 100);
  ASSERT_EQ(write(id, 0, 3 * kMiB), 3 * kMiB) << ::strerrorname_np(code_);
  EXPECT_TRUE(read_all(id) == head(3 * kMiB));
  fs_->files().release(id, O_RDWR);
}

TEST_F(SpillTest, AnUnnamedFileCanBeLinkedAfterASpill) {
  fill(*fast_, kMiB);
  const auto made = fs_->files().create_unnamed(kRootId, 0644, O_RDWR, kRoot);
  ASSERT_TRUE(made);
  const InodeId id = made->first.id;
  ASSERT_EQ(write(id, 0, 3 * kMiB), 3 * kMiB);
  ASSERT_TRUE(fs_->names().link(id, kRootId, "f"));
  EXPECT_TRUE(test::read_file(slow_->path() + "/f") == head(3 * kMiB));
  EXPECT_EQ(id_of("f"), id);
  fs_->files().release(id, O_RDWR);
}

TEST_F(SpillTest, AFileRenamedMeanwhileGetsItsNewName) {
  fill(*fast_, kMiB);
  const InodeId id = make("f");
  ASSERT_TRUE(rename(kRootId, "f", kRootId, "g", 0));
  ASSERT_EQ(write(id, 0, 3 * kMiB), 3 * kMiB);
  EXPECT_TRUE(test::read_file(slow_->path() + "/g") == head(3 * kMiB));
  EXPECT_FALSE(test::exists(fast_->path() + "/g") || test::exists(slow_->path() + "/f"));
  fs_->files().release(id, O_RDWR);
}

TEST_F(SpillTest, AllocateCanSpill) {
  fill(*fast_, kMiB);
  const InodeId id = make("f");
  ASSERT_EQ(write(id, 0, 1000), 1000u);
  ASSERT_TRUE(fs_->files().allocate(id, 0, 0, 8 * kMiB));
  EXPECT_EQ(xattr("f", "user.sluice.tier"), "slow");
  EXPECT_EQ(read_all(id).substr(0, 1000), head(1000));
  fs_->files().release(id, O_RDWR);
}

TEST_F(SpillTest, LosesNothingIfAnyCallOfTheStoreFails) {
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
    fs_->files().release(id, O_RDWR);
    // The kernel still has the inode and opens it again by its id.
    const auto again = fs_->files().open(id, O_RDONLY, kOpener, std::nullopt);
    EXPECT_TRUE(again) << "call " << nth;
    EXPECT_TRUE(read_all(id).substr(0, written) == head(written)) << "call " << nth;
    if (again) fs_->files().release(id, O_RDONLY);
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
