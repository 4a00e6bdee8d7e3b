// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/copier.hpp"

#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/xattr.h>
#include <xxhash.h>

#include <array>

#include "tests/support/janitor.hpp"
#include "tests/support/loop_fs.hpp"
#include "tests/unit/tiering/pools.hpp"

namespace sluice {
namespace {

using test::open_file;

class CopierTest : public test::PoolTest {
 protected:
  void prepare() override {
    test::write_file(from_, "");
    test::write_file(to_, "");
  }
  void write_at(off_t offset, const std::string& data) const {
    ASSERT_EQ(::pwrite(open_file(from_).get(), data.data(), data.size(), offset),
              static_cast<ssize_t>(data.size()));
  }
  void copy_bytes() const {
    const auto done = copy_data(open_file(from_, O_RDONLY).get(), open_file(to_).get());
    ASSERT_TRUE(done) << done.error().operation;
  }
  void copy_all_attributes() const {
    const auto done = copy_attributes(open_file(from_, O_RDONLY).get(), open_file(to_).get());
    ASSERT_TRUE(done) << done.error().operation;
  }
  void set(const std::string& path, const char* name, const std::string& value) const {
    ASSERT_EQ(::setxattr(path.c_str(), name, value.data(), value.size(), 0), 0) << name;
  }

  const std::string from_ = dir_ / "from", to_ = dir_ / "to";
};

TEST_F(CopierTest, CopiesEveryByte) {
  for (const std::size_t size : {0ul, 1ul, 4095ul, 4097ul, (3ul << 20) + 17}) {
    test::write_file(from_, test::pattern(size, size));
    test::write_file(to_, "");
    copy_bytes();
    EXPECT_EQ(test::read_file(to_), test::read_file(from_)) << size;
  }
}

TEST_F(CopierTest, KeepsHoles) {
  // data, hole, data, hole to the end
  constexpr off_t kMiB = 1 << 20;
  write_at(0, test::pattern(64 << 10, 1));
  write_at(8 * kMiB, test::pattern(128 << 10, 2));
  ASSERT_EQ(::truncate(from_.c_str(), 64 * kMiB), 0);
  ASSERT_LT(test::lstat_of(from_).st_blocks, 1024) << "the source itself has no holes";
  copy_bytes();
  EXPECT_EQ(test::lstat_of(to_).st_size, 64 * kMiB);
  EXPECT_EQ(test::lstat_of(to_).st_blocks, test::lstat_of(from_).st_blocks);
  EXPECT_EQ(test::read_file(to_), test::read_file(from_));
  const auto copy = open_file(to_, O_RDONLY);
  EXPECT_EQ(::lseek(copy.get(), 64 << 10, SEEK_DATA), 8 * kMiB);
  EXPECT_EQ(::lseek(copy.get(), 8 * kMiB, SEEK_HOLE), 8 * kMiB + (128 << 10));
}

TEST_F(CopierTest, AFileThatIsOneHoleStaysSparse) {
  ASSERT_EQ(::truncate(from_.c_str(), 1 << 30), 0);
  copy_bytes();
  EXPECT_EQ(test::lstat_of(to_).st_size, 1 << 30);
  EXPECT_EQ(test::lstat_of(to_).st_blocks, 0);
}

TEST_F(CopierTest, ReportsAFullTarget) {
  if (!test::require_loop("unit", "ext4")) return;
  const test::LoopFs small(dir_ / "small", "ext4", 4 << 20);
  test::write_file(from_, test::pattern(8 << 20, 3));
  test::write_file(small.path() + "/to", "");
  EXPECT_TRUE(failed_with(
      copy_data(open_file(from_, O_RDONLY).get(), open_file(small.path() + "/to").get()), ENOSPC));
}

TEST_F(CopierTest, CopiesOwnerAndModeWithSetuid) {
  ASSERT_EQ(::chown(from_.c_str(), 1234, 5678), 0);
  for (const mode_t mode : {0644u, 0000u, 04755u, 06711u, 01777u, 02640u}) {
    ASSERT_EQ(::chmod(from_.c_str(), mode), 0);
    ASSERT_EQ(::chmod(to_.c_str(), 0600), 0);
    ASSERT_EQ(::chown(to_.c_str(), 0, 0), 0);
    copy_all_attributes();
    const struct stat copy = test::lstat_of(to_);
    EXPECT_EQ(copy.st_mode & 07777, mode);
    EXPECT_EQ(copy.st_uid, 1234u);
    EXPECT_EQ(copy.st_gid, 5678u);
  }
}

TEST_F(CopierTest, CopiesTimesToTheNanosecond) {
  const std::array<timespec, 2> times{timespec{1'000'000'001, 123'456'789},
                                      timespec{987'654'321, 999'999'999}};
  ASSERT_EQ(::utimensat(AT_FDCWD, from_.c_str(), times.data(), 0), 0);
  set(from_, "user.k", "v");
  copy_all_attributes();
  const struct stat copy = test::lstat_of(to_);
  EXPECT_EQ(copy.st_atim.tv_sec, times[0].tv_sec);
  EXPECT_EQ(copy.st_atim.tv_nsec, times[0].tv_nsec);
  EXPECT_EQ(copy.st_mtim.tv_sec, times[1].tv_sec);
  EXPECT_EQ(copy.st_mtim.tv_nsec, times[1].tv_nsec);
}

TEST_F(CopierTest, CopiesXattrsOfEveryNamespace) {
  const std::string binary("\0\x01\xff\0", 4);
  // version 2, permitted CAP_NET_BIND_SERVICE
  const std::string capability("\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
  set(from_, "user.text", "value");
  set(from_, "user.empty", "");
  set(from_, "user.binary", binary);
  set(from_, "user.large", test::pattern(2000, 4));
  set(from_, "trusted.secret", "t");
  set(from_, "security.capability", capability);
  copy_all_attributes();
  EXPECT_EQ(test::xattr_of(to_, "user.text"), "value");
  EXPECT_EQ(test::xattr_of(to_, "user.empty"), "");
  EXPECT_EQ(test::xattr_of(to_, "user.binary"), binary);
  EXPECT_EQ(test::xattr_of(to_, "user.large"), test::pattern(2000, 4));
  EXPECT_EQ(test::xattr_of(to_, "trusted.secret"), "t");
  EXPECT_EQ(test::xattr_of(to_, "security.capability"), capability);
}

TEST_F(CopierTest, ReplacesAndRemovesAttributesOfTheTarget) {
  set(from_, "user.both", "new");
  set(to_, "user.both", "old and longer");
  set(to_, "user.extra", "x");
  set(to_, "trusted.extra", "x");
  copy_all_attributes();
  EXPECT_EQ(test::xattr_of(to_, "user.both"), "new");
  EXPECT_EQ(test::xattr_of(to_, "user.extra"), std::nullopt);
  EXPECT_EQ(test::xattr_of(to_, "trusted.extra"), std::nullopt);
}

// An access ACL as the kernel stores it: user::rwx user:77:r-- group::r-x mask::rwx other::---
std::string access_acl() {
  struct Entry {
    std::uint16_t tag, permissions;
    std::uint32_t id;
  };
  const Entry entries[] = {
      {0x01, 7, ~0u}, {0x02, 4, 77}, {0x04, 5, ~0u}, {0x10, 7, ~0u}, {0x20, 0, ~0u}};
  const std::uint32_t version = 2;
  std::string out(reinterpret_cast<const char*>(&version), sizeof version);
  out.append(reinterpret_cast<const char*>(entries), sizeof entries);
  return out;
}

constexpr const char* kAccessAcl = "system.posix_acl_access";
constexpr const char* kDefaultAcl = "system.posix_acl_default";

TEST_F(CopierTest, CopiesAnAclAndTheModeThatGoesWithIt) {
  set(from_, kAccessAcl, access_acl());
  copy_all_attributes();
  EXPECT_EQ(test::xattr_of(to_, kAccessAcl), access_acl());
  EXPECT_EQ(test::lstat_of(to_).st_mode, test::lstat_of(from_).st_mode);
  EXPECT_EQ(test::lstat_of(to_).st_mode & 0777, 0770u);
}

TEST_F(CopierTest, RemovesAnAclThatTheSourceLacks) {
  set(to_, kAccessAcl, access_acl());
  ASSERT_EQ(::chmod(from_.c_str(), 0604), 0);
  copy_all_attributes();
  EXPECT_EQ(test::xattr_of(to_, kAccessAcl), std::nullopt);
  EXPECT_EQ(test::lstat_of(to_).st_mode & 07777, 0604u);
}

TEST_F(CopierTest, CopiesADirectorysAttributes) {
  const std::string a = dir_.make_dir("a"), b = dir_.make_dir("b");
  set(a, kDefaultAcl, access_acl());
  set(a, "user.k", "v");
  set(b, "user.extra", "v");
  ASSERT_EQ(::chown(a.c_str(), 12, 34), 0);
  ASSERT_EQ(::chmod(a.c_str(), 03775), 0);
  const auto done = copy_attributes(test::open_directory(a).get(), test::open_directory(b).get());
  ASSERT_TRUE(done) << done.error().operation;
  EXPECT_EQ(test::xattr_of(b, kDefaultAcl), access_acl());
  EXPECT_EQ(test::xattr_of(b, "user.k"), "v");
  EXPECT_EQ(test::xattr_of(b, "user.extra"), std::nullopt);
  EXPECT_EQ(test::lstat_of(b).st_mode & 07777, 03775u);
  EXPECT_EQ(test::lstat_of(b).st_uid, 12u);
  EXPECT_EQ(test::lstat_of(b).st_mtim.tv_nsec, test::lstat_of(a).st_mtim.tv_nsec);
}

TEST_F(CopierTest, DoesNotCopyAclAliases) {
  set(from_, "trusted.SGI_ACL_FILE", "left by XFS");
  set(from_, "trusted.SGI_ACL_DEFAULT", "left by XFS");
  set(from_, "trusted.SGI_OTHER", "kept");
  copy_all_attributes();
  EXPECT_EQ(test::xattr_of(to_, "trusted.SGI_ACL_FILE"), std::nullopt);
  EXPECT_EQ(test::xattr_of(to_, "trusted.SGI_ACL_DEFAULT"), std::nullopt);
  EXPECT_EQ(test::xattr_of(to_, "trusted.SGI_OTHER"), "kept");
}

TEST_F(CopierTest, AnAclRevokedOutsideXfsStaysRevoked) {
  if (!test::require_loop("unit", "xfs")) return;
  const test::LoopFs xfs(dir_ / "xfs", "xfs", 0);
  for (const bool is_directory : {false, true}) {
    const std::string name = is_directory ? "d" : "f";
    const std::string there = xfs.path() + "/" + name, here = dir_ / ("here-" + name);
    for (const std::string& path : {there, here}) {
      if (is_directory) {
        ASSERT_EQ(::mkdir(path.c_str(), 0750), 0);
      } else {
        test::write_file(path, "");
      }
    }
    const auto copy = [](const std::string& from, const std::string& to) {
      const auto done =
          copy_attributes(open_file(from, O_RDONLY).get(), open_file(to, O_RDONLY).get());
      ASSERT_TRUE(done) << done.error().operation;
    };
    set(there, kAccessAcl, access_acl());
    if (is_directory) set(there, kDefaultAcl, access_acl());
    ASSERT_TRUE(test::xattr_of(there, "trusted.SGI_ACL_FILE")) << "XFS has no alias any more";
    copy(there, here);
    EXPECT_EQ(test::xattr_of(here, kAccessAcl), access_acl());
    EXPECT_EQ(test::xattr_of(here, "trusted.SGI_ACL_FILE"), std::nullopt);
    EXPECT_EQ(test::xattr_of(here, "trusted.SGI_ACL_DEFAULT"), std::nullopt);
    // As an earlier version left it.
    set(here, "trusted.SGI_ACL_FILE", *test::xattr_of(there, "trusted.SGI_ACL_FILE"));
    ASSERT_EQ(::removexattr(here.c_str(), kAccessAcl), 0);
    if (is_directory) {
      ASSERT_EQ(::removexattr(here.c_str(), kDefaultAcl), 0);
    }
    copy(here, there);
    EXPECT_EQ(test::xattr_of(there, kAccessAcl), std::nullopt);
    EXPECT_EQ(test::xattr_of(there, kDefaultAcl), std::nullopt);
  }
}

TEST_F(CopierTest, FailsIfTheTargetCannotStoreAnAcl) {
  const std::string memory = dir_.make_dir("memory");
  // ramfs has no ACLs or other xattrs.
  if (::mount("none", memory.c_str(), "ramfs", 0, nullptr) < 0) GTEST_SKIP() << "no ramfs";
  test::janitor::watch_mount(memory);
  test::write_file(memory + "/to", "");
  set(from_, kAccessAcl, access_acl());
  const auto done =
      copy_attributes(open_file(from_, O_RDONLY).get(), open_file(memory + "/to").get());
  ::umount2(memory.c_str(), MNT_DETACH);
  test::janitor::forget(memory);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, EOPNOTSUPP);
  EXPECT_NE(std::string(done.error().operation).find("POSIX ACL"), std::string::npos);
}

TEST_F(CopierTest, DoesNotCopyIdentities) {
  set(from_, kIdentityXattr, "source");
  copy_all_attributes();
  EXPECT_EQ(test::xattr_of(to_, kIdentityXattr), std::nullopt);
  set(to_, kIdentityXattr, "target");
  copy_all_attributes();
  EXPECT_EQ(test::xattr_of(to_, kIdentityXattr), "target");
}

TEST_F(CopierTest, DoesNotChangeTheSource) {
  test::write_file(from_, "content");
  ASSERT_EQ(::chmod(from_.c_str(), 04711), 0);
  set(from_, "user.k", "v");
  const struct stat before = test::lstat_of(from_);
  copy_bytes();
  copy_all_attributes();
  const struct stat after = test::lstat_of(from_);
  EXPECT_EQ(after.st_mode, before.st_mode);
  EXPECT_EQ(after.st_mtim.tv_nsec, before.st_mtim.tv_nsec);
  EXPECT_EQ(after.st_ctim.tv_nsec, before.st_ctim.tv_nsec);
  EXPECT_EQ(test::read_file(from_), "content");
}

std::uint64_t xxh3(const std::string& content) {
  return XXH3_64bits(content.data(), content.size());
}

class CopyHashTest : public CopierTest {
 protected:
  Copied copy(const Pace& pace = {}) {
    const auto done = copy_data(open_file(from_, O_RDONLY).get(), open_file(to_).get(), pace);
    if (!done) throw std::runtime_error(done.error().operation);
    if (::fsync(open_file(to_).get()) < 0) throw std::runtime_error("fsync");
    copied_ = *done;
    return copied_;
  }
  std::uint64_t on_disk() const {
    const auto hash = hash_on_disk(open_file(to_, O_RDONLY).get(), copied_);
    if (!hash) throw std::runtime_error(hash.error().operation);
    return *hash;
  }
  void write_to_copy(off_t offset, const char* byte) const {
    const auto fd = open_file(to_);
    ASSERT_EQ(::pwrite(fd.get(), byte, 1, offset), 1);
    ASSERT_EQ(::fsync(fd.get()), 0);
  }
  // data, hole, data that ends between blocks, hole to the end
  void make_sparse() const {
    write_at(0, test::pattern(64 << 10, 1));
    write_at(8 << 20, test::pattern(100'001, 2));
    ASSERT_EQ(::truncate(from_.c_str(), 64 << 20), 0);
  }

  Copied copied_;  // result of the last copy()
};

TEST_F(CopyHashTest, IsXxh3ForAFileWithoutHoles) {
  for (const std::size_t size : {0ul, 1ul, 4096ul, 100'001ul, (5ul << 20) + 17}) {
    const std::string content = test::pattern(size, size);
    test::write_file(from_, content);
    test::write_file(to_, "");
    const Copied copied = copy();
    EXPECT_EQ(copied.hash, xxh3(content)) << size;
    EXPECT_EQ(copied.bytes, size);
  }
}

TEST_F(CopyHashTest, IsTheSameOnTheDisk) {
  for (const std::size_t size : {0ul, 1ul, 4096ul, 100'001ul, (5ul << 20) + 17}) {
    test::write_file(from_, test::pattern(size, size));
    test::write_file(to_, "");
    const std::uint64_t hash = copy().hash;
    EXPECT_EQ(on_disk(), hash) << size;
  }
}

TEST_F(CopyHashTest, IsTheSameOnTheDiskForAFileWithHoles) {
  make_sparse();
  const Copied copied = copy();
  EXPECT_EQ(on_disk(), copied.hash);
  EXPECT_LT(copied.bytes, 1u << 20);
}

TEST_F(CopyHashTest, DependsOnThePositionsOfHoles) {
  write_at(0, "x");
  ASSERT_EQ(::truncate(from_.c_str(), 1 << 20), 0);
  const std::uint64_t shorter = copy().hash;
  ASSERT_EQ(::truncate(from_.c_str(), 2 << 20), 0);
  test::write_file(to_, "");
  EXPECT_NE(copy().hash, shorter);
}

TEST_F(CopyHashTest, DetectsAFlippedByteOnTheDisk) {
  make_sparse();
  const std::uint64_t hash = copy().hash;
  for (const off_t offset : {0l, 65535l, (8l << 20) + 100'000}) {
    const std::string good = test::read_file(to_).substr(static_cast<std::size_t>(offset), 1);
    write_to_copy(offset, "\x5a");
    EXPECT_NE(on_disk(), hash) << offset;
    write_to_copy(offset, good.c_str());
    EXPECT_EQ(on_disk(), hash) << offset;
  }
}

TEST_F(CopyHashTest, DetectsACopyThatIsTooShort) {
  test::write_file(from_, test::pattern(100'000, 1));
  const std::uint64_t hash = copy().hash;
  ASSERT_EQ(::truncate(to_.c_str(), 50'000), 0);
  const auto found = hash_on_disk(open_file(to_, O_RDONLY).get(), copied_);
  EXPECT_TRUE(!found || *found != hash);
}

// Preallocated space is a hole until someone reads it, and data after that.
TEST_F(CopyHashTest, IsTheSameOnTheDiskAfterAReadOfTheOriginal) {
  test::write_file(from_, test::pattern(64 << 10, 1));
  {
    const auto fd = open_file(from_);
    ASSERT_EQ(::posix_fallocate(fd.get(), 0, 1 << 20), 0);
    ASSERT_EQ(::fsync(fd.get()), 0);
  }
  const std::uint64_t hash = copy().hash;
  EXPECT_EQ(test::read_file(from_).size(), 1u << 20);
  EXPECT_EQ(on_disk(), hash);
}

TEST_F(CopyHashTest, PaceIsCalledForEveryByte) {
  test::write_file(from_, test::pattern((5 << 20) + 17, 1));
  std::uint64_t told = 0;
  copy([&](std::uint64_t bytes) {
    told += bytes;
    return Result<void>();
  });
  EXPECT_EQ(told, (5u << 20) + 17);
}

TEST_F(CopyHashTest, PaceCanStopACopy) {
  test::write_file(from_, test::pattern(8 << 20, 1));
  int pieces = 0;
  const auto done = copy_data(open_file(from_, O_RDONLY).get(), open_file(to_).get(),
                              [&](std::uint64_t) -> Result<void> {
                                ++pieces;
                                return Error(ECANCELED, "enough");
                              });
  EXPECT_TRUE(failed_with(done, ECANCELED));
  EXPECT_EQ(pieces, 1);
}

TEST_F(CopyHashTest, PaceCanStopAVerification) {
  test::write_file(from_, test::pattern(8 << 20, 1));
  copy();
  EXPECT_TRUE(failed_with(
      hash_on_disk(open_file(to_, O_RDONLY).get(), copied_,
                   [](std::uint64_t) -> Result<void> { return Error(ECANCELED, "enough"); }),
      ECANCELED));
}

class InodeFlagsTest : public CopierTest {
 protected:
  void prepare() override {
    CopierTest::prepare();
    if (!test::require("unit", set_flags(from_, flags_of(from_)), "chattr is not possible")) return;
  }
  void TearDown() override { set_flags(from_, 0); }
  static unsigned flags_of(const std::string& path) {
    unsigned flags = 0;
    ::ioctl(open_file(path, O_RDONLY).get(), FS_IOC_GETFLAGS, &flags);
    return flags;
  }
  // Sets only the flags that users set; others stay.
  static bool set_flags(const std::string& path, unsigned wanted) {
    constexpr unsigned kOurs = FS_IMMUTABLE_FL | FS_APPEND_FL | FS_NODUMP_FL | FS_NOATIME_FL;
    const auto fd = open_file(path, O_RDONLY);
    unsigned flags = 0;
    if (::ioctl(fd.get(), FS_IOC_GETFLAGS, &flags) < 0) return false;
    flags = (flags & ~kOurs) | (wanted & kOurs);
    return ::ioctl(fd.get(), FS_IOC_SETFLAGS, &flags) == 0;
  }
  Result<void> copy_flags() const {
    return copy_inode_flags(open_file(from_, O_RDONLY).get(), open_file(to_).get());
  }
};

TEST_F(InodeFlagsTest, AreCopied) {
  ASSERT_TRUE(set_flags(from_, FS_NODUMP_FL | FS_NOATIME_FL));
  ASSERT_TRUE(copy_flags());
  EXPECT_EQ(flags_of(to_), flags_of(from_));
}

TEST_F(InodeFlagsTest, AreClearedIfTheSourceLacksThem) {
  ASSERT_TRUE(set_flags(to_, FS_NODUMP_FL));
  ASSERT_TRUE(copy_flags());
  EXPECT_EQ(flags_of(to_) & FS_NODUMP_FL, 0u);
}

TEST_F(InodeFlagsTest, OfAnImmutableOrAppendOnlyFileAreAnError) {
  for (const unsigned flag : {FS_IMMUTABLE_FL, FS_APPEND_FL}) {
    ASSERT_TRUE(set_flags(from_, flag));
    EXPECT_TRUE(failed_with(copy_flags(), EPERM));
    EXPECT_EQ(flags_of(to_) & flag, 0u);
    ASSERT_TRUE(set_flags(from_, 0));
  }
}

}  // namespace
}  // namespace sluice
