// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/tier_access.hpp"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/unique_fd.hpp"
#include "tests/support/command.hpp"
#include "tests/support/files.hpp"
#include "tests/support/loop_fs.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/user.hpp"

namespace sluice::tools::cli {
namespace {

// The tests work in <tmp>/open, a directory that every user can enter.
class TierAccessTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::require("unit", ::geteuid() == 0, "directories of others need root")) return;
    ASSERT_EQ(::chmod(base_.path().c_str(), 0755), 0);
  }
  std::string make(const std::string& name, mode_t mode = 0755) const {
    const std::string path = base_.make_dir(name);
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  static std::string command(const std::string& tier, std::vector<std::string> tiers = {}) {
    tiers.push_back(tier);
    return closing_command(tier, tiers).value_or("");
  }
  // Whether the user nobody can list a directory.
  static bool is_closed(const std::string& path) {
    return test::as_user(test::kNobody, [&]() -> std::string {
             return ::access(path.c_str(), F_OK) == 0 ? "open" : "closed";
           }) == "closed";
  }
  // Runs the closing command for `tier`. Afterwards only root can enter it, at the same path.
  void close(const std::string& tier, std::vector<std::string> tiers = {}) const {
    test::write_file(tier + "/f", "content");
    EXPECT_FALSE(is_closed(tier + "/f"));
    const struct stat before = test::lstat_of(tier);
    const std::string line = command(tier, tiers);
    const auto result = test::run_command({"sh", "-ec", line});
    EXPECT_TRUE(result.ok()) << line << "\n" << result.err;
    EXPECT_TRUE(is_closed(tier + "/f")) << line;
    EXPECT_EQ(command(tier, tiers), "");
    EXPECT_EQ(test::read_file(tier + "/f"), "content") << "the path is no longer valid";
    struct stat after {};
    ASSERT_EQ(::stat(tier.c_str(), &after), 0);
    EXPECT_EQ(after.st_ino, before.st_ino);
    EXPECT_EQ(after.st_dev, before.st_dev);
  }

  test::TempDir base_;
};

TEST_F(TierAccessTest, TierBelowAPrivateDirectoryNeedsNoCommand) {
  make("closed", 0700);
  EXPECT_EQ(command(make("closed/tier")), "");
  make("closed/deep", 0755);
  EXPECT_EQ(command(make("closed/deep/tier")), "");
  EXPECT_EQ(command(base_ / "missing"), "");
}

TEST_F(TierAccessTest, GroupsOwnersAndAclsCountAsAccess) {
  const std::string above = make("above", 0700), tier = make("above/tier");
  make("above/other");
  EXPECT_EQ(command(tier), "");
  ASSERT_EQ(::chmod(above.c_str(), 0710), 0);
  EXPECT_EQ(command(tier), "") << "the group is root's";
  ASSERT_EQ(::chown(above.c_str(), 0, 12001), 0);
  EXPECT_NE(command(tier), "");
  ASSERT_EQ(::chown(above.c_str(), 12001, 0), 0);
  ASSERT_EQ(::chmod(above.c_str(), 0700), 0);
  EXPECT_NE(command(tier), "");
  ASSERT_EQ(::chown(above.c_str(), 0, 0), 0);
  EXPECT_EQ(command(tier), "");
  ASSERT_TRUE(test::run_command({"setfacl", "-m", "u:12001:x", above}).ok());
  EXPECT_NE(command(tier), "");
}

TEST_F(TierAccessTest, ParentWithOnlyTiersIsClosed) {
  make("disks");
  const std::string a = make("disks/a"), b = make("disks/b");
  EXPECT_EQ(command(a, {b}), "chmod 700 " + base_ / "disks");
  close(a, {b});
  EXPECT_EQ(command(b, {a}), "");
}

TEST_F(TierAccessTest, TierBesideOtherFilesMovesIntoANewDirectory) {
  make("disks");
  const std::string tier = make("disks/it's a tier");
  make("disks/other");
  close(tier);
  EXPECT_FALSE(is_closed(base_ / "disks/other"));
}

TEST_F(TierAccessTest, WholeFilesystemIsMountedInANewDirectory) {
  if (!test::require_loop("unit", "ext4")) return;
  make("top");
  make("top/other");
  const test::LoopFs disk(base_ / "top/disk", "ext4", 8 << 20);
  close(disk.path());
  EXPECT_FALSE(is_closed(base_ / "top/other"));
  ::umount2((disk.path() + ".private/disk").c_str(), MNT_DETACH);
}

TEST_F(TierAccessTest, TheWarningNamesTheTiersAndTheCommand) {
  make("disks");
  make("closed", 0700);
  const std::string a = make("disks/a"), b = make("disks/b"), c = make("closed/c");
  const std::string text = open_tiers_warning({{"nvme", a}, {"ssd", c}, {"hdd", b}});
  EXPECT_NE(text.find("nvme (" + a + "), hdd (" + b + ")"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("sluice tier close " + a + " " + b)) << text;
  EXPECT_EQ(open_tiers_warning({{"ssd", c}}), "");
}

}  // namespace
}  // namespace sluice::tools::cli
