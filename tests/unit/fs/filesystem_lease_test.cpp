// SPDX-License-Identifier: BSD-2-Clause
// Files on which another process has a lease: requests fail instead of waiting for it.
#include <csignal>

#include "tests/unit/fs/test_filesystem.hpp"

namespace sluice {
namespace {

class LeaseTest : public FilesystemTest {
 protected:
  void prepare() override {
    FilesystemTest::prepare();
    dir_.make_file("a/small", "content");
    test::write_file(at("a", "large"), test::pattern(256 << 10, 1));
    ::signal(SIGIO, SIG_IGN);  // the kernel sends it when a lease is being broken
  }
  void TearDown() override {
    ::signal(SIGIO, SIG_DFL);
    FilesystemTest::TearDown();
  }
  UniqueFd take_lease(const char* name, int flags, int lease) {
    UniqueFd fd(::open(at("a", name).c_str(), flags | O_CLOEXEC));
    if (!fd || ::fcntl(fd.get(), F_SETLEASE, lease) < 0) throw std::runtime_error("no lease");
    return fd;
  }
};

TEST_F(LeaseTest, OpeningALeasedFileIsRefusedAndBreaksTheLease) {
  const InodeId large = id_of("large");
  const UniqueFd lease = take_lease("large", O_RDWR, F_WRLCK);
  const auto refused = fs_->files().open(large, O_RDONLY, kOpener, std::nullopt);
  ASSERT_FALSE(refused) << "the open waited for the lease";
  EXPECT_EQ(refused.error().code, EAGAIN);
  EXPECT_EQ(::fcntl(lease.get(), F_GETLEASE), F_RDLCK)
      << "the type to which the holder must downgrade";

  ASSERT_EQ(::fcntl(lease.get(), F_SETLEASE, F_UNLCK), 0);
  ASSERT_TRUE(fs_->files().open(large, O_RDONLY, kOpener, std::nullopt));
  fs_->files().release(large, O_RDONLY);
}

TEST_F(LeaseTest, ReadingASmallLeasedFileIsRefused) {
  const InodeId small = id_of("small");
  const UniqueFd lease = take_lease("small", O_RDWR, F_WRLCK);
  ASSERT_TRUE(fs_->files().open(small, O_RDONLY, kOpener, std::nullopt)) << "nothing is opened yet";
  EXPECT_EQ(read_all(small), "error: EAGAIN");
  ASSERT_EQ(::fcntl(lease.get(), F_SETLEASE, F_UNLCK), 0);
  EXPECT_EQ(read_all(small), "content");
  fs_->files().release(small, O_RDONLY);
}

TEST_F(LeaseTest, ChangingAFileWithAReadLeaseIsRefused) {
  const InodeId small = id_of("small");
  const UniqueFd lease = take_lease("small", O_RDONLY, F_RDLCK);
  AttributeChange change;
  change.size = 0;
  const auto truncated = fs_->attributes().set(small, change);
  EXPECT_TRUE(failed_with(truncated, EAGAIN));
  const auto opened = fs_->files().open(small, O_WRONLY | O_TRUNC, kOpener, std::nullopt);
  EXPECT_TRUE(failed_with(opened, EAGAIN));
  EXPECT_EQ(fs_->files().open_files(), 0u);
  EXPECT_EQ(read_all(small), "content");
}

TEST_F(LeaseTest, StatAndRenameIgnoreLeases) {
  const InodeId small = id_of("small");
  const UniqueFd lease = take_lease("small", O_RDWR, F_WRLCK);
  EXPECT_TRUE(fs_->attributes().get(small));
  EXPECT_TRUE(fs_->names().rename(kRootId, "small", kRootId, "other", 0));
  EXPECT_EQ(::fcntl(lease.get(), F_GETLEASE), F_WRLCK) << "the lease was not broken";
}

// A file that replaces one on another tier is opened first, to be synced.
TEST_F(LeaseTest, ReplacingAFileOnAnotherTierByALeasedOneIsRefused) {
  dir_.make_file("b/target", "old");
  const UniqueFd lease = take_lease("small", O_RDWR, F_WRLCK);
  EXPECT_TRUE(failed_with(rename(kRootId, "small", kRootId, "target", 0), EAGAIN));
  EXPECT_EQ(read_path("target"), "old");
}

}  // namespace
}  // namespace sluice
