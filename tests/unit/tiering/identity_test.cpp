// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/identity.hpp"

#include <sys/xattr.h>

#include <set>
#include <thread>

#include "tests/support/loop_fs.hpp"
#include "tests/unit/tiering/pools.hpp"

namespace sluice {
namespace {

using test::LoopFs;
using test::open_directory;

constexpr unsigned kSlot = 3;

FileHandle handle_of(const std::string& path) {
  int mount_id = 0;
  const auto handle = handle_at(AT_FDCWD, path.c_str(), &mount_id);
  if (!handle) throw std::runtime_error("handle of " + path);
  return *handle;
}

// The test directory is on the filesystem under test.
class IdentityTest : public test::PoolTest {
 protected:
  Identity natural(const std::string& name) const {
    return natural_identity(HandleKind::Ext4, kSlot, handle_of(dir_ / name));
  }
  void prepare() override {
    if (!test::require("unit", test::on_ext4(dir_.path()), "the test directory is not on ext4"))
      return;
  }
};

TEST_F(IdentityTest, IsKeptAcrossRenameAndLink) {
  dir_.make_file("f", "x");
  const Identity born = natural("f");
  ASSERT_EQ(::rename((dir_ / "f").c_str(), (dir_ / "g").c_str()), 0);
  EXPECT_EQ(natural("g"), born);
  ASSERT_EQ(::link((dir_ / "g").c_str(), (dir_ / "h").c_str()), 0);
  EXPECT_EQ(natural("h"), born);
  ASSERT_EQ(::unlink((dir_ / "g").c_str()), 0);
  EXPECT_EQ(natural("h"), born);
  test::write_file(dir_ / "h", "other content");
  EXPECT_EQ(natural("h"), born);
}

TEST_F(IdentityTest, IsNotReusedWithTheInodeNumber) {
  // ext4 reuses a freed inode number for the next file created in the directory.
  const std::string path = dir_ / "f";
  std::set<std::uint64_t> numbers, ids;
  for (int i = 0; i < 20; ++i) {
    dir_.make_file("f", "x");
    numbers.insert(test::lstat_of(path).st_ino);
    EXPECT_TRUE(ids.insert(to_number(natural("f").id)).second) << "round " << i;
    ASSERT_EQ(::unlink(path.c_str()), 0);
  }
  if (!test::require("unit", numbers.size() < 20, "no inode number was used twice")) return;
}

TEST_F(IdentityTest, DiffersBetweenFiles) {
  std::set<std::uint64_t> ids;
  for (int i = 0; i < 100; ++i) {
    const std::string name = "f" + std::to_string(i);
    dir_.make_file(name, "");
    ids.insert(to_number(natural(name).id));
  }
  EXPECT_EQ(ids.size(), 100u);
}

TEST_F(IdentityTest, ContainsTheSlotAndTheInodeNumber) {
  dir_.make_file("f", "x");
  const Identity identity = natural("f");
  EXPECT_EQ(slot_of(identity.id), kSlot);
  EXPECT_EQ(to_number(identity.id) & 0xffffffff, test::lstat_of(dir_ / "f").st_ino);
  EXPECT_EQ(inode_number(HandleKind::Ext4, handle_of(dir_ / "f")),
            test::lstat_of(dir_ / "f").st_ino);
  EXPECT_NE(natural_identity(HandleKind::Ext4, kSlot + 1, handle_of(dir_ / "f")).id, identity.id);
}

TEST_F(IdentityTest, OfAHandleOfUnknownLayoutIsAHashInTheOpaqueSlot) {
  dir_.make_file("f", "x");
  dir_.make_file("g", "x");
  const auto opaque = [&](const std::string& name, unsigned slot) {
    return natural_identity(HandleKind::Opaque, slot, handle_of(dir_ / name)).id;
  };
  EXPECT_EQ(slot_of(opaque("f", 1)), kOpaqueSlot);
  EXPECT_EQ(opaque("f", 1), opaque("f", 1));
  EXPECT_NE(opaque("f", 1), opaque("g", 1));
  EXPECT_NE(opaque("f", 1), opaque("f", 2));
  EXPECT_EQ(inode_number(HandleKind::Opaque, handle_of(dir_ / "f")), std::nullopt);
}

TEST_F(IdentityTest, WithoutHandlesComesFromDeviceAndInodeNumber) {
  struct stat st {};
  st.st_dev = 5;
  st.st_ino = 7;
  const Identity identity = natural_identity(1, st);
  EXPECT_EQ(slot_of(identity.id), kOpaqueSlot);
  EXPECT_NE(natural_identity(2, st).id, identity.id);
  st.st_size = 99;  // not part of the identity
  EXPECT_EQ(natural_identity(1, st), identity);
  st.st_ino = 8;
  EXPECT_NE(natural_identity(1, st).id, identity.id);
  st.st_ino = 7;
  st.st_dev = 6;
  EXPECT_NE(natural_identity(1, st).id, identity.id);
}

TEST_F(IdentityTest, AnXfsInodeNumberTooLargeForItsBitsIsHashed) {
  FileHandle handle;
  handle.bytes.push_back(char(0x81));
  const std::uint64_t inode = std::uint64_t{1} << 40;
  const std::uint32_t generation = 1;
  handle.bytes.append(reinterpret_cast<const char*>(&inode), sizeof inode);
  handle.bytes.append(reinterpret_cast<const char*>(&generation), sizeof generation);
  EXPECT_EQ(inode_number(HandleKind::Xfs, handle), inode);
  EXPECT_EQ(slot_of(natural_identity(HandleKind::Xfs, kSlot, handle).id), kOpaqueSlot);
}

TEST_F(IdentityTest, DisplacedDiffersFromNatural) {
  dir_.make_file("f", "x");
  dir_.make_file("g", "x");
  const Identity displaced = displaced_identity(kSlot, handle_of(dir_ / "f"));
  EXPECT_EQ(slot_of(displaced.id), kOpaqueSlot);
  EXPECT_NE(displaced.id, natural("f").id);
  EXPECT_NE(displaced.id, natural_identity(HandleKind::Opaque, kSlot, handle_of(dir_ / "f")).id);
  EXPECT_NE(displaced.id, displaced_identity(kSlot, handle_of(dir_ / "g")).id);
  EXPECT_EQ(displaced, displaced_identity(kSlot, handle_of(dir_ / "f")));
}

TEST_F(IdentityTest, AHandleOpensTheFileAfterARename) {
  dir_.make_file("f", "content");
  const FileHandle handle = handle_of(dir_ / "f");
  ASSERT_EQ(::rename((dir_ / "f").c_str(), (dir_ / "g").c_str()), 0);
  const auto mount = open_directory(dir_.path());
  const auto fd = open_handle(mount.get(), handle, O_RDONLY);
  ASSERT_TRUE(fd);
  char content[16]{};
  EXPECT_EQ(::pread(fd->get(), content, sizeof content, 0), 7);
  EXPECT_STREQ(content, "content");
}

TEST_F(IdentityTest, AHandleOfADeletedFileIsStale) {
  dir_.make_file("f", "x");
  const FileHandle handle = handle_of(dir_ / "f");
  ASSERT_EQ(::unlink((dir_ / "f").c_str()), 0);
  EXPECT_TRUE(
      failed_with(open_handle(open_directory(dir_.path()).get(), handle, O_RDONLY), ESTALE));
}

TEST_F(IdentityTest, AHandleOfADeletedFileIsStaleWhileItsInodeNumberIsReused) {
  dir_.make_file("f", "x");
  const FileHandle handle = handle_of(dir_ / "f");
  const std::string path = dir_ / "f";
  ::unlink(path.c_str());
  std::jthread others([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      ::close(::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
      ::unlink(path.c_str());
    }
  });
  const UniqueFd mount = open_directory(dir_.path());
  for (int i = 0; i < 20'000; ++i) {
    const auto opened = open_handle(mount.get(), handle, O_RDONLY);
    ASSERT_FALSE(opened);
    ASSERT_EQ(opened.error().code, ESTALE) << "at " << i;
  }
}

TEST_F(IdentityTest, AHandleOfASymlinkOpensTheLinkItself) {
  dir_.make_file("f", "x");
  ASSERT_EQ(::symlink("f", (dir_ / "link").c_str()), 0);
  EXPECT_NE(natural("link"), natural("f"));
}

TEST_F(IdentityTest, Ext4FindsTheFileAgain) {
  dir_.make_file("f", "x");
  dir_.make_dir("d");
  const auto mount = open_directory(dir_.path());
  for (const char* name : {"f", "d"}) {
    const auto handle = handle_from_identity(HandleKind::Ext4, mount.get(), natural(name).id);
    ASSERT_TRUE(handle);
    const auto fd = open_handle(mount.get(), *handle, O_PATH);
    ASSERT_TRUE(fd) << name;
    struct stat st {};
    ASSERT_EQ(::fstat(fd->get(), &st), 0);
    EXPECT_EQ(st.st_ino, test::lstat_of(dir_ / name).st_ino);
  }
}

TEST_F(IdentityTest, XfsFindsTheFileAgain) {
  if (!test::require_loop("unit", "xfs")) return;
  const LoopFs xfs(dir_ / "xfs", "xfs", 0);
  const auto mount = open_directory(xfs.path());
  test::write_file(xfs.path() + "/f", "x");
  const FileHandle born = handle_of(xfs.path() + "/f");
  const Identity identity = natural_identity(HandleKind::Xfs, kSlot, born);
  EXPECT_EQ(slot_of(identity.id), kSlot);
  EXPECT_EQ(to_number(identity.id) & ((std::uint64_t{1} << 40) - 1),
            test::lstat_of(xfs.path() + "/f").st_ino);
  const auto handle = handle_from_identity(HandleKind::Xfs, mount.get(), identity.id);
  ASSERT_TRUE(handle);
  const auto fd = open_handle(mount.get(), *handle, O_PATH);
  ASSERT_TRUE(fd);
  struct stat st {};
  ASSERT_EQ(::fstat(fd->get(), &st), 0);
  EXPECT_EQ(st.st_ino, test::lstat_of(xfs.path() + "/f").st_ino);
}

TEST_F(IdentityTest, OtherFilesystemsCannotFindAFileByIdentity) {
  const auto mount = open_directory(dir_.path());
  for (const HandleKind kind : {HandleKind::Opaque, HandleKind::None}) {
    EXPECT_EQ(handle_from_identity(kind, mount.get(), InodeId{12}), std::nullopt);
  }
}

TEST(CarriedIdentityTest, SurvivesEncoding) {
  const Identity carried{InodeId{0x0123456789abcdef}, 0x89abcdef};
  const Identity natural{InodeId{0xfedcba9876543210}, 0x01234567};
  EXPECT_EQ(decode_carried(encode_carried(carried, natural), natural), carried);
}

TEST(CarriedIdentityTest, IsIgnoredOnAFileWithAnotherNaturalIdentity) {
  const Identity carried{InodeId{1000}, 1}, natural{InodeId{2000}, 2};
  const std::string bytes = encode_carried(carried, natural);
  EXPECT_EQ(decode_carried(bytes, {InodeId{2001}, 2}), std::nullopt);
  EXPECT_EQ(decode_carried(bytes, {InodeId{2000}, 3}), std::nullopt);
  EXPECT_EQ(decode_carried(bytes, carried), std::nullopt);
}

TEST(CarriedIdentityTest, IsNotReadFromDamagedBytes) {
  const Identity carried{InodeId{1000}, 1}, natural{InodeId{2000}, 2};
  const std::string bytes = encode_carried(carried, natural);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(decode_carried(bytes.substr(0, size), natural), std::nullopt) << size;
  }
  EXPECT_EQ(decode_carried(bytes + "x", natural), std::nullopt);
  std::string newer = bytes;
  newer[0] = 2;
  EXPECT_EQ(decode_carried(newer, natural), std::nullopt);
}

TEST(HandleKindTest, KnowsTheLayoutsOfExt4AndXfsOnly) {
  EXPECT_EQ(handle_kind(0xef53), HandleKind::Ext4);
  EXPECT_EQ(handle_kind(0x58465342), HandleKind::Xfs);
  EXPECT_EQ(handle_kind(0x9123683e), HandleKind::Opaque);
  EXPECT_EQ(handle_kind(0), HandleKind::Opaque);
}

}  // namespace
}  // namespace sluice
