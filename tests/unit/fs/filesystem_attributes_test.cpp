// SPDX-License-Identifier: BSD-2-Clause
// Attributes and Xattrs, called directly.
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <functional>

#include "tests/unit/fs/test_filesystem.hpp"

namespace {
thread_local std::function<void()> g_after_listing;  // called once, after the next listxattr
}  // namespace

// Replaces libc's function, so that a test can act just after it.
extern "C" ssize_t listxattr(const char* path, char* list, std::size_t size) noexcept {
  const ssize_t found = ::syscall(SYS_listxattr, path, list, size);
  if (g_after_listing) std::exchange(g_after_listing, nullptr)();
  return found;
}

namespace sluice {
namespace {

class AttributesTest : public FilesystemTest {};

TEST_F(AttributesTest, AnXattrSetDuringAGetxattrIsFoundAfterwards) {
  dir_.make_file("a/f", "1");
  const InodeId f = id_of("f");
  g_after_listing = [&] { ASSERT_TRUE(fs_->xattrs().set(f, "user.k", "v", 1, 0, kRoot)); };
  EXPECT_TRUE(failed_with(fs_->xattrs().get(f, "security.capability"), ENODATA));
  ASSERT_FALSE(g_after_listing) << "the hook was never called";
  const auto value = fs_->xattrs().get(f, "user.k");
  ASSERT_TRUE(value);
  EXPECT_EQ(*value, "v");
}

TEST_F(AttributesTest, VirtualXattrsShowTierLocationAndOpens) {
  dir_.make_file("b/d/f", "1");
  EXPECT_EQ(xattr("d/f", "user.sluice.tier"), "b");
  EXPECT_EQ(xattr("d/f", "user.sluice.location"), at("b", "d/f"));
  EXPECT_EQ(xattr("d/f", "user.sluice.accesses"), "0");
  const InodeId id = id_of("d/f");
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(fs_->files().open(id, O_RDONLY, kOpener, std::nullopt));
    fs_->files().release(id, O_RDONLY);
  }
  EXPECT_EQ(xattr("d/f", "user.sluice.accesses"), "3");
  EXPECT_EQ(fs_->accesses().opens(), 3u);
  ASSERT_TRUE(fs_->flush());
  EXPECT_EQ(store_.heat(id)->opens, 3u);
  EXPECT_EQ(xattr("d/f", "user.sluice.accesses"), "3");
  EXPECT_EQ(xattr("d", "user.sluice.accesses"), "error: ENODATA");
  EXPECT_EQ(xattr("d/f", "user.sluice.nonsense"), "error: ENODATA");
}

TEST_F(AttributesTest, VirtualXattrsAreNotListedAndCannotBeSet) {
  dir_.make_file("a/f", "1");
  const InodeId id = id_of("f");
  EXPECT_EQ(*fs_->xattrs().list(id, kRoot), "");
  EXPECT_TRUE(failed_with(fs_->xattrs().set(id, "user.sluice.location", "b", 1, 0, kRoot), EPERM));
}

TEST_F(AttributesTest, TheIdentityXattrIsHidden) {
  dir_.make_dir("c/d");
  const InodeId d = id_of("d");
  ASSERT_TRUE(fs_->files().create(d, "f", 0644, O_RDWR, kRoot));
  ASSERT_TRUE(test::xattr_of(at("a", "d"), kIdentityXattr)) << "nothing is there to hide";
  EXPECT_EQ(*fs_->xattrs().list(d, kRoot), "");
  EXPECT_TRUE(failed_with(fs_->xattrs().get(d, kIdentityXattr), ENODATA));
  EXPECT_TRUE(failed_with(fs_->xattrs().set(d, kIdentityXattr, "x", 1, 0, kRoot), EPERM));
  EXPECT_TRUE(failed_with(fs_->xattrs().remove(d, kIdentityXattr, {}), ENODATA));
  EXPECT_TRUE(test::xattr_of(at("a", "d"), kIdentityXattr));
}

TEST_F(AttributesTest, AliasesOfAclsAreHidden) {
  dir_.make_file("a/f", "x");
  const InodeId f = id_of("f");
  for (const char* alias : {"trusted.SGI_ACL_FILE", "trusted.SGI_ACL_DEFAULT"}) {
    ASSERT_EQ(::setxattr(at("a", "f").c_str(), alias, "x", 1, 0), 0);
    EXPECT_EQ(*fs_->xattrs().list(f, kRoot), "");
    EXPECT_TRUE(failed_with(fs_->xattrs().get(f, alias), ENODATA));
    EXPECT_TRUE(failed_with(fs_->xattrs().set(f, alias, "y", 1, 0, kRoot), EOPNOTSUPP));
    EXPECT_TRUE(failed_with(fs_->xattrs().remove(f, alias, {}), ENODATA));
    EXPECT_EQ(test::xattr_of(at("a", "f"), alias), "x");
  }
}

TEST_F(AttributesTest, XattrsCanBeSetAndRemoved) {
  dir_.make_file("a/f", "1");
  const InodeId id = id_of("f");
  EXPECT_TRUE(failed_with(fs_->xattrs().get(id, "user.k"), ENODATA));
  ASSERT_TRUE(fs_->xattrs().set(id, "user.k", "value", 5, 0, kRoot));
  EXPECT_EQ(*fs_->xattrs().get(id, "user.k"), "value");
  EXPECT_EQ(*fs_->xattrs().list(id, kRoot), std::string("user.k\0", 7));
  EXPECT_TRUE(failed_with(fs_->xattrs().set(id, "user.k", "x", 1, XATTR_CREATE, kRoot), EEXIST));
  const std::string large = test::pattern(2000, 1);
  ASSERT_TRUE(fs_->xattrs().set(id, "user.large", large.data(), large.size(), 0, kRoot));
  EXPECT_EQ(*fs_->xattrs().get(id, "user.large"), large);
  ASSERT_TRUE(fs_->xattrs().remove(id, "user.k", {}));
  EXPECT_TRUE(failed_with(fs_->xattrs().get(id, "user.k"), ENODATA));
}

TEST_F(AttributesTest, DirectoryAttributesAreSetOnEveryCopy) {
  dir_.make_dir("a/d");
  dir_.make_dir("c/d");
  const InodeId d = id_of("d");
  AttributeChange change;
  change.mode = 02750;
  change.uid = 12;
  change.gid = 34;
  ASSERT_TRUE(fs_->attributes().set(d, change));
  ASSERT_TRUE(fs_->xattrs().set(d, "user.k", "v", 1, 0, kRoot));
  for (const char* tier : {"a", "c"}) {
    EXPECT_EQ(test::lstat_of(at(tier, "d")).st_mode & 07777, 02750u) << tier;
    EXPECT_EQ(test::lstat_of(at(tier, "d")).st_uid, 12u) << tier;
    EXPECT_EQ(test::xattr_of(at(tier, "d"), "user.k"), "v") << tier;
  }
  ASSERT_TRUE(fs_->xattrs().remove(d, "user.k", {}));
  EXPECT_EQ(test::xattr_of(at("c", "d"), "user.k"), std::nullopt);
  EXPECT_TRUE(failed_with(fs_->xattrs().remove(d, "user.k", {}), ENODATA));
  EXPECT_EQ(intents_in(store_), 0u);
}

TEST_F(AttributesTest, FileAttributesAreSet) {
  dir_.make_file("b/f", "123456");
  const InodeId id = id_of("f");
  AttributeChange change;
  change.mode = 0600;
  change.uid = 7;
  change.size = 3;
  change.mtime = timespec{1000, 5};
  const auto after = fs_->attributes().set(id, change);
  ASSERT_TRUE(after);
  EXPECT_EQ(after->st.st_size, 3);
  EXPECT_EQ(after->st.st_mode & 07777, 0600u);
  EXPECT_EQ(after->st.st_mtim.tv_sec, 1000);
  EXPECT_EQ(after->st.st_mtim.tv_nsec, 5);
  EXPECT_EQ(test::read_file(at("b", "f")), "123");
  EXPECT_EQ(test::lstat_of(at("b", "f")).st_uid, 7u);
}

TEST_F(AttributesTest, TiersOnOneFilesystemShareItsSpace) {
  struct statvfs native {};
  ASSERT_EQ(::statvfs(dir_.path().c_str(), &native), 0);
  const auto ours = fs_->attributes().statfs();
  ASSERT_TRUE(ours);
  EXPECT_EQ(ours->f_blocks * ours->f_frsize, native.f_blocks * native.f_frsize);
  EXPECT_LE(ours->f_bavail, ours->f_blocks);
}

}  // namespace
}  // namespace sluice
