// SPDX-License-Identifier: BSD-2-Clause
// Emptying a tier.
#include <unistd.h>

#include <array>

#include "tests/support/command.hpp"
#include "tests/unit/fs/moving_filesystem.hpp"

namespace sluice {
namespace {

class VacateTest : public FileMoveTest {
 protected:
  Relocator::Remainder vacate(TierIndex tier) {
    if (!(*pool_)[tier].set_draining(true)) throw std::runtime_error("set draining");
    const auto left = fs_->relocator().vacate(tier);
    if (!left) throw std::runtime_error(left.error().operation);
    return *left;
  }
};

TEST_F(VacateTest, ADrainingTierGetsNoFilesByPinOrRequest) {
  dir_.make_dir("a/d");
  dir_.make_file("a/f", "content");
  migrate();
  ASSERT_EQ(set_xattr("d", "user.sluice.pin", "b"), 0);
  vacate(kB);
  const auto made = fs_->files().create(id_of("d"), "new", 0644, O_WRONLY, kRoot);
  ASSERT_TRUE(made);
  fs_->files().release(made->first.id, O_WRONLY);
  EXPECT_EQ(where("d/new"), "a");
  EXPECT_EQ(set_xattr("f", "user.sluice.tier", "b"), EBUSY);
}

TEST_F(VacateTest, MovesSymlinksToAnotherTier) {
  dir_.make_dir("b/d");
  ASSERT_EQ(::symlink("some/target", at("b", "d/link").c_str()), 0);
  ASSERT_EQ(::lchown(at("b", "d/link").c_str(), 12, 34), 0);
  const std::array<timespec, 2> times{timespec{1000, 1}, timespec{2000, 2}};
  ASSERT_EQ(::utimensat(AT_FDCWD, at("b", "d/link").c_str(), times.data(), AT_SYMLINK_NOFOLLOW), 0);
  EXPECT_EQ(*fs_->names().readlink(id_of("d/link")), "some/target");
  vacate(kB);
  EXPECT_EQ(where("d/link"), "a");
  EXPECT_EQ(*fs_->names().readlink(id_of("d/link")), "some/target");
  const struct stat st = test::lstat_of(at("a", "d/link"));
  EXPECT_EQ(st.st_uid, 12u);
  EXPECT_EQ(st.st_gid, 34u);
  EXPECT_EQ(st.st_mtim.tv_sec, 2000);
}

TEST_F(VacateTest, MovesFifosToAnotherTier) {
  ASSERT_EQ(::mkfifo(at("b", "fifo").c_str(), 0600), 0);
  ASSERT_EQ(::chmod(at("b", "fifo").c_str(), 0622), 0);
  vacate(kB);
  EXPECT_EQ(where("fifo"), "a");
  EXPECT_EQ(test::lstat_of(at("a", "fifo")).st_mode, S_IFIFO | 0622u);
}

TEST_F(VacateTest, AFifoKeepsItsAcl) {
  const std::string fifo = at("b", "fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  // The group gets no access and user 77 gets all: the mode is 0660.
  ASSERT_TRUE(test::run_command({"setfacl", "-m", "u:77:rw,g::-", fifo}).ok());
  const auto acl = test::xattr_of(fifo, "system.posix_acl_access");
  ASSERT_TRUE(acl);
  vacate(kB);
  EXPECT_EQ(where("fifo"), "a");
  EXPECT_EQ(test::xattr_of(at("a", "fifo"), "system.posix_acl_access"), acl);
}

TEST_F(VacateTest, AKnownSymlinkCanStillBeRead) {
  ASSERT_EQ(::symlink("target", at("b", "link").c_str()), 0);
  const InodeId known = id_of("link");
  vacate(kB);
  EXPECT_EQ(*fs_->names().readlink(known), "target");
  EXPECT_TRUE(fs_->attributes().get(known));
}

TEST_F(VacateTest, ALookupThatBeganBeforeTheMoveFindsTheSymlink) {
  ASSERT_EQ(::symlink("target", at("b", "link").c_str()), 0);
  syscall_hook.calls = 2;  // it has searched a and is about to search b
  syscall_hook.before_naming = [&] { vacate(kB); };
  const auto entry = fs_->names().lookup(kRootId, "link");
  ASSERT_FALSE(syscall_hook.before_naming) << "the hook was never called";
  ASSERT_EQ(where("link"), "a");
  ASSERT_TRUE(entry);
  EXPECT_NE(entry->id, InodeId{}) << "and the kernel remembers for " << entry->entry_seconds
                                  << " s that it does not exist";
}

TEST_F(VacateTest, MovesDirectoriesToAnotherTier) {
  dir_.make_dir("b/d/empty");
  ASSERT_EQ(::chmod(at("b", "d/empty").c_str(), 02751), 0);
  const InodeId empty = id_of("d/empty");
  vacate(kB);
  EXPECT_TRUE(test::exists(at("a", "d/empty")));
  EXPECT_EQ(test::lstat_of(at("a", "d/empty")).st_mode & 07777, 02751u);
  EXPECT_EQ(id_of("d/empty"), empty);
}

TEST_F(VacateTest, CountsTheFilesThatAreLeft) {
  dir_.make_file("b/d/f", test::pattern(10'000, 1));
  dir_.make_file("b/g", "x");
  ASSERT_EQ(::symlink("x", at("b", "link").c_str()), 0);
  const Relocator::Remainder left = vacate(kB);
  EXPECT_EQ(left.files, 2u);
  EXPECT_GE(left.bytes, 10'000u);
  ASSERT_EQ(left.first.size(), 2u);
  const auto& [f, g] = left.first[0].path == "/g" ? std::pair(left.first[1], left.first[0])
                                                  : std::pair(left.first[0], left.first[1]);
  EXPECT_EQ(f.path, "/d/f");
  EXPECT_EQ(f.id, id_of("d/f"));
  EXPECT_EQ(f.why, "");
  EXPECT_EQ(g.path, "/g");
  EXPECT_EQ(where("d/f"), "b");
}

TEST_F(VacateTest, AnEmptiedTierCanBeRemovedFromThePool) {
  dir_.make_dir("b/d");
  ASSERT_EQ(::symlink("target", at("b", "d/link").c_str()), 0);
  dir_.make_file("b/d/f", "content");
  const InodeId d = id_of("d"), f = id_of("d/f");
  ASSERT_TRUE(move("d/f", kA));
  EXPECT_EQ(vacate(kB).files, 0u);
  ASSERT_TRUE(pool_->set_retired(kB, true));
  fs_.reset();
  pool_.reset();
  pool_ = open({tier("a", dir_ / "a"), tier("c", dir_ / "c")});
  fs_ = std::make_unique<Filesystem>(*pool_, store_, kernel_, Filesystem::Settings{});
  EXPECT_EQ(id_of("d"), d);
  EXPECT_EQ(id_of("d/f"), f);
  EXPECT_EQ(read_all(f), "content");
  EXPECT_EQ(*fs_->names().readlink(id_of("d/link")), "target");
}

TEST_F(VacateTest, NeedsAnotherTier) {
  for (const auto& tier : *pool_) ASSERT_TRUE(tier->set_draining(true));
  EXPECT_TRUE(failed_with(fs_->relocator().vacate(kB), ENOSPC));
}

TEST_F(VacateTest, ASymlinkStaysIfItsNameIsTakenOnTheOtherTier) {
  ASSERT_EQ(::symlink("hidden", at("b", "link").c_str()), 0);
  ASSERT_EQ(::symlink("shown", at("a", "link").c_str()), 0);
  const Relocator::Remainder left = vacate(kB);
  EXPECT_EQ(left.files, 1u);
  ASSERT_EQ(left.first.size(), 1u);
  EXPECT_EQ(left.first[0].path, "/link");
  EXPECT_NE(left.first[0].why.find("another file has its name"), std::string::npos);
  EXPECT_EQ(*fs_->names().readlink(id_of("link")), "shown");
  EXPECT_EQ(where("link"), "ab");
  EXPECT_TRUE(test::names_in(at("a", ".sluice/tmp")).empty());
}

TEST_F(FileMoveTest, ANewTierGetsFiles) {
  dir_.make_file("a/d/f", "content");
  const InodeId d = id_of("d"), f = id_of("d/f");
  ASSERT_TRUE(fs_->add_tier(tier("new", dir_.make_dir("new"))));
  ASSERT_TRUE(move("d/f", 3));
  EXPECT_TRUE(test::exists(at("new", "d/f")));
  EXPECT_EQ(id_of("d"), d);
  EXPECT_EQ(read_all(f), "content");
}

}  // namespace
}  // namespace sluice
