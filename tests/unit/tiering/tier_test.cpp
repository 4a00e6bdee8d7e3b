// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/tier.hpp"

#include <sys/resource.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include <algorithm>
#include <set>

#include "tests/support/command.hpp"
#include "tests/support/loop_fs.hpp"
#include "tests/unit/tiering/pools.hpp"

namespace sluice {
namespace {

using test::open_directory;
using test::open_file;

class TierTest : public test::PoolTest {
 protected:
  void prepare() override { pool_ = open(make_tiers("a")); }
  Tier& a() const { return (*pool_)[0]; }
  Located identify(const std::string& name) const {
    const auto found = a().identify((*a().root())->get(), name.c_str());
    if (!found) throw std::runtime_error("identify " + name);
    return *found;
  }
  // Opens a new pool of one tier with these settings.
  void reopen(TierSettings settings) {
    pool_.reset();
    settings.name = "a";
    settings.path = dir_ / "a";
    pool_ = open({settings});
  }

  std::unique_ptr<Pool> pool_;
};

TEST_F(TierTest, StaysOnlineIfTheProcessHasNoDescriptorsLeft) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool changed = a().check_presence();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(changed);
  EXPECT_TRUE(a().online()) << a().why_offline();
}

TEST_F(TierTest, IdentifiesEveryTypeOfFile) {
  test::write_file(at("a", "file"), "12345");
  ASSERT_EQ(::mkdir(at("a", "dir").c_str(), 0750), 0);
  ASSERT_EQ(::symlink("file", at("a", "link").c_str()), 0);
  ASSERT_EQ(::symlink("nowhere", at("a", "dangling").c_str()), 0);
  ASSERT_EQ(::mkfifo(at("a", "fifo").c_str(), 0600), 0);
  ASSERT_EQ(::mknod(at("a", "device").c_str(), S_IFCHR | 0600, makedev(1, 3)), 0);
  const std::pair<const char*, mode_t> cases[] = {{"file", S_IFREG}, {"dir", S_IFDIR},
                                                  {"link", S_IFLNK}, {"dangling", S_IFLNK},
                                                  {"fifo", S_IFIFO}, {"device", S_IFCHR}};
  std::set<std::uint64_t> ids;
  for (const auto& [name, type] : cases) {
    const Located found = identify(name);
    EXPECT_EQ(found.st.st_mode & S_IFMT, type) << name;
    EXPECT_EQ(found.st.st_ino, test::lstat_of(at("a", name)).st_ino) << name;
    EXPECT_EQ(found.tier, 0);
    EXPECT_TRUE(ids.insert(to_number(found.identity.id)).second) << name;
    EXPECT_EQ(identity_of(a(), at("a", name)), found.identity) << name;
    const auto again = a().open(found.handle, O_PATH);
    ASSERT_TRUE(again) << name;
    struct stat st {};
    ASSERT_EQ(::fstat(again->get(), &st), 0);
    EXPECT_EQ(st.st_ino, found.st.st_ino) << name;
  }
  EXPECT_EQ(identify("file").st.st_size, 5);
}

TEST_F(TierTest, IdentifiesTheFileOfADescriptor) {
  test::write_file(at("a", "file"), "x");
  ASSERT_EQ(::mkdir(at("a", "dir").c_str(), 0755), 0);
  ASSERT_EQ(::symlink("file", at("a", "link").c_str()), 0);
  for (const char* name : {"file", "dir", "link"}) {
    const auto fd = open_file(at("a", name), O_PATH);
    const auto found = a().identify(fd.get(), "");
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(found->identity, identify(name).identity) << name;
    EXPECT_EQ(found->st.st_mode, identify(name).st.st_mode) << name;
  }
}

TEST_F(TierTest, FailsWithEnoentForAMissingName) {
  EXPECT_TRUE(failed_with(a().identify((*a().root())->get(), "missing"), ENOENT));
  EXPECT_TRUE(failed_with(a().identity_of((*a().root())->get(), "missing"), ENOENT));
}

TEST_F(TierTest, FindsAForgottenFileByItsIdentity) {
  if (!test::require("unit", test::on_ext4(dir_.path()), "not on ext4")) return;
  test::write_file(at("a", "file"), "x");
  const InodeId id = identify("file").identity.id;
  ASSERT_EQ(::rename(at("a", "file").c_str(), at("a", "renamed").c_str()), 0);
  const auto found = a().find(id);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->st.st_ino, test::lstat_of(at("a", "renamed")).st_ino);

  const auto held = open_file(at("a", "renamed"), O_RDONLY);
  ASSERT_EQ(::unlink(at("a", "renamed").c_str()), 0);
  EXPECT_TRUE(failed_with(a().find(id), ESTALE)) << "deleted, but still open";
}

TEST_F(TierTest, DoesNotFindAFileWithAnotherGeneration) {
  if (!test::require("unit", test::on_ext4(dir_.path()), "not on ext4")) return;
  test::write_file(at("a", "file"), "x");
  const std::uint64_t id = to_number(identify("file").identity.id);
  EXPECT_TRUE(failed_with(a().find(InodeId{id ^ std::uint64_t{1} << 40}), ESTALE));
}

TEST_F(TierTest, AStoredIdentitySurvivesRenameAndReopen) {
  test::write_file(at("a", "file"), "x");
  ASSERT_EQ(::mkdir(at("a", "dir").c_str(), 0755), 0);
  const Identity file_id{InodeId{0x1234}, 7}, dir_id{InodeId{0x5678}, 8};
  ASSERT_TRUE(a().carry_identity(open_file(at("a", "file")).get(), file_id));
  ASSERT_TRUE(a().carry_identity(open_directory(at("a", "dir")).get(), dir_id));
  ASSERT_EQ(::rename(at("a", "file").c_str(), at("a", "renamed").c_str()), 0);
  EXPECT_EQ(identify("renamed").identity, file_id);
  EXPECT_EQ(identity_of(a(), at("a", "renamed")), file_id);
  EXPECT_EQ(identify("dir").identity, dir_id);
  EXPECT_EQ(a().identify(open_directory(at("a", "dir")).get(), "")->identity, dir_id);

  reopen({});
  EXPECT_EQ(identify("renamed").identity, file_id);
  EXPECT_EQ(identify("dir").identity, dir_id);
}

TEST_F(TierTest, IgnoresACopiedIdentityXattr) {
  test::write_file(at("a", "original"), "x");
  test::write_file(at("a", "copy"), "x");
  const Identity natural = identify("copy").identity;
  ASSERT_TRUE(a().carry_identity(open_file(at("a", "original")).get(), {InodeId{0x1234}, 7}));
  const auto value = test::xattr_of(at("a", "original"), kIdentityXattr);
  ASSERT_TRUE(value);
  ASSERT_EQ(::setxattr(at("a", "copy").c_str(), kIdentityXattr, value->data(), value->size(), 0),
            0);
  EXPECT_EQ(identify("copy").identity, natural);
  EXPECT_EQ(identity_of(a(), at("a", "copy")), natural);
}

TEST_F(TierTest, TempNamesAreUnique) { EXPECT_NE(Tier::new_temp_name(), Tier::new_temp_name()); }

TEST_F(TierTest, TheTempDirectoryIsPrivateToRoot) {
  const auto temp = a().temp_directory();
  ASSERT_TRUE(temp);
  struct stat st {};
  ASSERT_EQ(::fstat((*temp)->get(), &st), 0);
  EXPECT_EQ(st.st_ino, test::lstat_of(at("a", ".sluice/tmp")).st_ino);
  EXPECT_EQ(st.st_mode & 07777, 0700u);
}

TEST_F(TierTest, HasTheSpaceOfItsFilesystem) {
  struct statfs fs {};
  ASSERT_EQ(::statfs(dir_.path().c_str(), &fs), 0);
  const Space space = a().space();
  EXPECT_EQ(space.total + space.kept, fs.f_blocks * static_cast<std::uint64_t>(fs.f_bsize));
  EXPECT_NEAR(static_cast<double>(space.used()),
              static_cast<double>(fs.f_blocks - fs.f_bfree) * static_cast<double>(fs.f_bsize), 64e6)
      << "as df shows it";
  EXPECT_GT(a().space().free, 0u);
  EXPECT_LE(a().space().free, a().space().total);
}

TEST_F(TierTest, ACapacityLimitsItsSpace) {
  const Space whole = a().space();
  ASSERT_GT(whole.used(), 1u << 20);
  TierSettings settings;
  // All used space of the filesystem counts, so a smaller capacity leaves nothing free.
  settings.capacity = 1 << 20;
  reopen(settings);
  EXPECT_EQ(a().space().total, 1u << 20);
  EXPECT_EQ(a().space().free, 0u);
  EXPECT_TRUE(is_above_watermark(a().facts()));

  settings.capacity = whole.total * 2;
  reopen(settings);
  EXPECT_EQ(a().space().total, whole.total);
}

TEST_F(TierTest, IsLowOnSpaceBelowItsReserve) {
  TierSettings settings;
  settings.reserve = a().space().total;
  reopen(settings);
  EXPECT_EQ(a().reserve(), *settings.reserve);
  EXPECT_TRUE(a().low_on_space());
  settings.reserve = 0;
  reopen(settings);
  EXPECT_FALSE(a().low_on_space());
}

TEST_F(TierTest, HasADefaultReserveFromTheFirstCall) {
  TierSettings settings;
  settings.capacity = 100 << 20;
  reopen(settings);
  EXPECT_EQ(a().reserve(), (100u << 20) / 50);
}

TEST_F(TierTest, AFullTierIsLowOnSpaceFromTheFirstCall) {
  TierSettings settings;
  settings.capacity = 100 << 20;  // less than is used, so nothing is free
  reopen(settings);
  EXPECT_TRUE(a().low_on_space());
}

TEST_F(TierTest, TheHighWatermarkIsAPercentageOfUsedSpace) {
  const Space now = a().space();
  TierSettings settings;
  settings.high_watermark = 100;
  reopen(settings);
  EXPECT_FALSE(is_above_watermark(a().facts()));
  const auto percent = static_cast<unsigned>(now.used() / (now.total / 100));
  settings.high_watermark = std::max(percent, 1u) - 1;
  reopen(settings);
  EXPECT_TRUE(is_above_watermark(a().facts()));
}

TEST_F(TierTest, GoesOfflineWhenItsDirectoryIsReplacedAndComesBack) {
  test::write_file(at("a", "file"), "x");
  const Identity before = identify("file").identity;
  EXPECT_FALSE(a().check_presence()) << "nothing changed";
  EXPECT_TRUE(a().online());

  ASSERT_EQ(::rename((dir_ / "a").c_str(), (dir_ / "away").c_str()), 0);
  EXPECT_TRUE(a().check_presence());
  EXPECT_FALSE(a().online());
  EXPECT_FALSE(a().check_presence()) << "already known";

  dir_.make_dir("a");
  EXPECT_FALSE(a().check_presence()) << "an empty directory is not this tier";
  EXPECT_FALSE(a().online());
  EXPECT_NE(a().why_offline(), "");
  EXPECT_TRUE(failed_with(a().root(), EIO));
  EXPECT_TRUE(failed_with(a().temp_directory(), EIO));
  EXPECT_TRUE(failed_with(a().identify(AT_FDCWD, "/"), EIO));
  EXPECT_TRUE(failed_with(a().find(before.id), EIO));
  a().refresh_space();
  EXPECT_EQ(a().space().total, 0u);
  EXPECT_EQ(a().filesystem(), "unknown");

  ASSERT_EQ(::rmdir((dir_ / "a").c_str()), 0);
  ASSERT_EQ(::rename((dir_ / "away").c_str(), (dir_ / "a").c_str()), 0);
  EXPECT_TRUE(a().check_presence());
  EXPECT_TRUE(a().present());
  EXPECT_FALSE(a().online()) << "it has yet to be told what changed in its absence";
  a().admit();
  EXPECT_TRUE(a().online());
  EXPECT_EQ(a().why_offline(), "");
  EXPECT_EQ(identify("file").identity, before);
}

TEST_F(TierTest, GoesOfflineWhenAnotherDirectoryTakesItsPlace) {
  ASSERT_EQ(::rename((dir_ / "a").c_str(), (dir_ / "away").c_str()), 0);
  dir_.make_dir("a");
  EXPECT_TRUE(a().check_presence());
  EXPECT_FALSE(a().online());
}

TEST_F(TierTest, DoesNotAcceptATierOfAnotherPool) {
  const auto other = open({tier("a", dir_.make_dir("other"))});
  ASSERT_EQ(::rename((dir_ / "a").c_str(), (dir_ / "away").c_str()), 0);
  ASSERT_TRUE(a().check_presence());
  ASSERT_EQ(::rename((dir_ / "other").c_str(), (dir_ / "a").c_str()), 0);
  EXPECT_FALSE(a().check_presence());
  EXPECT_FALSE(a().online());
}

TEST_F(TierTest, GoesOfflineWhenItsDiskIsUnmountedAndComesBack) {
  if (!test::require_loop("unit", "ext4")) return;
  test::LoopFs disk(dir_ / "disk", "ext4", 32 << 20);
  const auto pool = open({tier("disk", disk.path())});
  Tier& tier = (*pool)[0];
  EXPECT_EQ(tier.filesystem(), "ext4");
  disk.vanish();
  EXPECT_TRUE(tier.check_presence());
  EXPECT_FALSE(tier.online());
  disk.come_back();
  EXPECT_TRUE(tier.check_presence());
  EXPECT_TRUE(tier.present());
}

TEST_F(TierTest, IdentifiesAndFindsFilesOnXfs) {
  if (!test::require_loop("unit", "xfs")) return;
  test::LoopFs disk(dir_ / "disk", "xfs", 0);
  const auto pool = open({tier("disk", disk.path())});
  Tier& tier = (*pool)[0];
  EXPECT_EQ(tier.filesystem(), "xfs");
  test::write_file(disk.path() + "/f", "x");
  const auto found = tier.identify((*tier.root())->get(), "f");
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->handle.empty());
  const auto again = tier.find(found->identity.id);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->st.st_ino, found->st.st_ino);
  ASSERT_TRUE(tier.carry_identity(open_file(disk.path() + "/f").get(), {InodeId{77}, 7}));
  EXPECT_EQ(tier.identify((*tier.root())->get(), "f")->identity, (Identity{InodeId{77}, 7}));
}

TEST_F(TierTest, IdentifiesFilesAndStoresIdentitiesOnTmpfs) {
  struct statfs fs {};
  if (!test::require("unit", ::statfs("/dev/shm", &fs) == 0 && fs.f_type == 0x01021994,
                     "/dev/shm is not a tmpfs"))
    return;
  std::string path = "/dev/shm/sluice-test-XXXXXX";
  ASSERT_NE(::mkdtemp(path.data()), nullptr);
  {
    const auto pool = open({tier("ram", path)});
    Tier& tier = (*pool)[0];
    EXPECT_EQ(tier.filesystem(), "tmpfs");
    test::write_file(path + "/f", "x");
    test::write_file(path + "/g", "x");
    const auto f = tier.identify((*tier.root())->get(), "f");
    const auto g = tier.identify((*tier.root())->get(), "g");
    ASSERT_TRUE(f && g);
    EXPECT_NE(f->identity.id, g->identity.id);
    EXPECT_EQ(slot_of(f->identity.id), kOpaqueSlot);
    EXPECT_TRUE(failed_with(tier.find(f->identity.id), ESTALE));
    ASSERT_TRUE(tier.carry_identity(open_file(path + "/f").get(), {InodeId{77}, 7}));
    EXPECT_EQ(identity_of(tier, path + "/f").id, InodeId{77});
    EXPECT_EQ(identity_of(tier, path + "/g"), g->identity);
  }
  test::run_command({"rm", "-rf", path});
}

}  // namespace
}  // namespace sluice
