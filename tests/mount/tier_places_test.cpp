// SPDX-License-Identifier: BSD-2-Clause
// Directories that cannot be a tier: `sluice tier add`, `tier replace` and `mount` refuse them with
// a sentence that says why, and the mount goes on as before.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/command.hpp"
#include "tests/support/files.hpp"
#include "tests/support/janitor.hpp"
#include "tests/support/loop_fs.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/user.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

// A mount over something else for the time of a test.
class Mounted {
 public:
  Mounted(const std::string& what, const std::string& where, const char* type, unsigned long flags,
          const std::string& options = "")
      : where_(where) {
    janitor::watch_mount(where_);
    if (::mount(what.c_str(), where_.c_str(), type, flags, options.c_str()) < 0)
      fail("mount " + where_);
  }
  ~Mounted() {
    ::umount2(where_.c_str(), MNT_DETACH);
    janitor::forget(where_);
  }
  Mounted(const Mounted&) = delete;
  Mounted& operator=(const Mounted&) = delete;

 private:
  const std::string where_;
};

class TierPlacesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!require_mounts("mount") || !require_loop("mount", "ext4")) return;
    slow_ = std::make_unique<LoopFs>(base_ / "slow", "ext4", 32 * kMiB);
    pool_ =
        std::make_unique<Mount>(Pool{{"fast=" + base_.make_dir("fast"), "slow=" + slow_->path()},
                                     base_.make_dir("state"),
                                     base_.make_dir("mnt"),
                                     {"--no-migrate"}});
    ASSERT_EQ(::mkdir((*pool_ / "d").c_str(), 0755), 0);
    write_file(*pool_ / "d/x", "content");
  }

  // Expects that the pool gets no new tier at `path`, and that the message has `word`.
  void expect_not_added(const std::string& path, const std::string& word) {
    const CommandResult said = sluice({"tier", "add", "bulk=" + path, pool_->path()});
    EXPECT_EQ(said.exit_code, 1) << path << ": " << said.out;
    EXPECT_NE(said.err.find(word), std::string::npos) << path << ": " << said.err;
    EXPECT_NE(said.err.find("bulk"), std::string::npos) << path << ": " << said.err;
    expect_works();
  }
  void expect_works() {
    EXPECT_EQ(read_file(*pool_ / "d/x"), "content");
    write_file(*pool_ / "new", "y");
    EXPECT_EQ(::unlink((*pool_ / "new").c_str()), 0);
    EXPECT_EQ(names_in(pool_->path()), std::vector<std::string>{"d"});
  }

  TempDir base_;
  std::unique_ptr<LoopFs> slow_;
  std::unique_ptr<Mount> pool_;
};

TEST_F(TierPlacesTest, NotInTheMountItself) {
  expect_not_added(*pool_ / "d", "inside the mount itself");
  expect_not_added(pool_->path(), "inside the mount itself");
  ASSERT_EQ(::symlink((*pool_ / "d").c_str(), (base_ / "link").c_str()), 0);
  expect_not_added(base_ / "link", "inside the mount itself");
  expect_not_added("/proc/self/root" + *pool_ / "d", "inside the mount itself");
  EXPECT_EQ(names_in(*pool_ / "d"), std::vector<std::string>{"x"}) << "a marker was written";
}

TEST_F(TierPlacesTest, NotInABindMountOfTheMount) {
  const Mounted elsewhere(*pool_ / "d", base_.make_dir("bind"), nullptr, MS_BIND);
  expect_not_added(base_ / "bind", "inside the mount itself");
}

// Neither directly nor through another image.
TEST_F(TierPlacesTest, NotOnADiskImageInTheMount) {
  make_image(*pool_ / "d/image", "ext4", 48 * kMiB);
  const auto refuse = [&](const std::string& path) {
    const CommandResult said = sluice({"tier", "add", "bulk=" + path, pool_->path()});
    EXPECT_EQ(said.exit_code, 1);
    EXPECT_NE(said.err.find("disk image or an overlay inside the mount"), std::string::npos)
        << said.err;
  };
  {
    const LoopFs disk(base_ / "disk", "ext4", *pool_ / "d/image");
    refuse(disk.path());
    make_image(disk.path() + "/image", "ext4", 16 * kMiB);
    const LoopFs inner(base_ / "inner", "ext4", disk.path() + "/image");
    refuse(inner.path());
  }
  EXPECT_EQ(::unlink((*pool_ / "d/image").c_str()), 0);
  expect_works();
}

TEST_F(TierPlacesTest, NotOnAnOverlayOfTheMount) {
  const std::string upper = base_.make_dir("upper"), work = base_.make_dir("work");
  const Mounted overlay("overlay", base_.make_dir("overlay"), "overlay", 0,
                        "lowerdir=" + (*pool_ / "d") + ",upperdir=" + upper + ",workdir=" + work);
  expect_not_added(base_ / "overlay", "disk image or an overlay inside the mount");
}

TEST_F(TierPlacesTest, NotAboveTheMountOrATier) {
  expect_not_added(base_.path(), "contains the mount itself");
  const Mounted elsewhere(base_.path(), base_.make_dir("bind"), nullptr, MS_BIND);
  expect_not_added(base_ / "bind", "contains the mount itself");
}

TEST_F(TierPlacesTest, NotAboveABindMountOfTheMount) {
  base_.make_dir("outer/inner");
  const Mounted elsewhere(pool_->path(), base_ / "outer/inner", nullptr, MS_BIND);
  expect_not_added(base_ / "outer", "contains the mount itself");
}

TEST_F(TierPlacesTest, NotInAnotherTierByABindMount) {
  ASSERT_TRUE(exists(base_ / "fast/d"));
  const Mounted elsewhere(base_ / "fast/d", base_.make_dir("bind"), nullptr, MS_BIND);
  expect_not_added(base_ / "bind", "is inside tier fast");
}

TEST_F(TierPlacesTest, NotInTheMountOfAnotherPool) {
  const Mount other(Pool{{"a=" + base_.make_dir("a")},
                         base_.make_dir("state2"),
                         base_.make_dir("mnt2"),
                         {"--no-migrate"}});
  ASSERT_EQ(::mkdir((other / "d").c_str(), 0755), 0);
  expect_not_added(other / "d", "inside a mount of Sluice");
  const Pool third{{"b=" + other / "d"}, base_.make_dir("state3"), base_.make_dir("mnt3")};
  std::vector<std::string> arguments = third.mount_arguments();
  arguments.insert(arguments.begin(), "mount");
  const CommandResult said = sluice(arguments);
  EXPECT_EQ(said.exit_code, 1);
  EXPECT_NE(said.err.find("inside a mount of Sluice"), std::string::npos) << said.err;
  if (said.ok()) sluice({"umount", third.mountpoint});
}

TEST_F(TierPlacesTest, NotInATierOfAnotherPool) {
  const Mount other(Pool{{"a=" + base_.make_dir("a")},
                         base_.make_dir("state2"),
                         base_.make_dir("mnt2"),
                         {"--no-migrate"}});
  const std::string inner = base_.make_dir("a/d/inner");
  expect_not_added(inner, "is inside a tier of a pool (" + base_ / "a" + ")");
  const std::string point = base_.make_dir("mnt3");
  const CommandResult said = sluice({"mount", "--tier", "b=" + inner, point});
  EXPECT_EQ(said.exit_code, 1);
  if (said.ok()) sluice({"umount", point});
  EXPECT_NE(said.err.find("is inside a tier of a pool"), std::string::npos) << said.err;
  EXPECT_EQ(said.err.find("tier close"), std::string::npos) << said.err;
  EXPECT_EQ(names_in(inner), std::vector<std::string>{});
}

TEST_F(TierPlacesTest, NotAroundATierOfAnotherPool) {
  const Mount other(Pool{{"a=" + base_.make_dir("disk/sluice/tier")},
                         base_.make_dir("state2"),
                         base_.make_dir("mnt2"),
                         {"--no-migrate"}});
  const std::string said =
      "contains a tier of a pool that is mounted (" + base_ / "disk" + "/sluice/tier)";
  expect_not_added(base_ / "disk", said);
  const std::string point = base_.make_dir("mnt3");
  const CommandResult mounted = sluice({"mount", "--tier", "b=" + base_ / "disk", point});
  EXPECT_EQ(mounted.exit_code, 1);
  if (mounted.ok()) sluice({"umount", point});
  EXPECT_NE(mounted.err.find(said), std::string::npos) << mounted.err;
  EXPECT_FALSE(exists(base_ / "disk/.sluice"));
}

TEST_F(TierPlacesTest, InitRefusesWhatAMountWouldRefuse) {
  const CommandResult init = sluice({"init", "--yes", "--tier", "a=/proc", "--mountpoint",
                                     base_.make_dir("mnt3"), "-o", base_ / "new.toml"});
  EXPECT_EQ(init.exit_code, 1);
  EXPECT_NE(init.err.find("/proc shows the state of the kernel"), std::string::npos) << init.err;
  EXPECT_FALSE(exists(base_ / "new.toml"));
}

// The database would be visible in the mount.
TEST_F(TierPlacesTest, NotTheStateDirectory) {
  expect_not_added(base_ / "state", "state directory");
  EXPECT_FALSE(exists(base_ / "state/.sluice"));
}

TEST_F(TierPlacesTest, AReplacementHasTheSameRules) {
  const auto replace = [&](const std::string& path, const std::string& word) {
    const CommandResult said = sluice({"tier", "replace", "slow=" + path, pool_->path()});
    EXPECT_EQ(said.exit_code, 1) << path << ": " << said.out;
    EXPECT_NE(said.err.find(word), std::string::npos) << path << ": " << said.err;
  };
  slow_->vanish();
  ASSERT_TRUE(
      eventually([&] { return !pool_->status().at("tiers").at(1).at("online").get<bool>(); }));
  replace(*pool_ / "d", "inside the mount itself");
  replace(base_.path(), "contains the mount itself");
  replace(base_ / "fast", "same directory as tier fast");
  replace(base_ / "fast/d", "inside tier fast");
  replace("/proc", "/proc");
  replace(base_ / "missing", "No such file or directory");
  EXPECT_EQ(read_file(*pool_ / "d/x"), "content");
}

TEST_F(TierPlacesTest, NotWhereNothingCanBeWritten) {
  expect_not_added(base_ / "missing", "No such file or directory");
  expect_not_added(base_.make_file("file", "x"), "Not a directory");
  expect_not_added("/proc", "/proc");
  expect_not_added("/sys", "/sys");
  {
    LoopFs disk(base_ / "readonly", "ext4", 16 * kMiB);
    disk.remount_read_only();
    expect_not_added(disk.path(), "Read-only file system");
  }
  // No room for the marker.
  const Mounted tiny("tiny", base_.make_dir("tiny"), "tmpfs", 0, "size=4k");
  write_file(base_ / "tiny/x", "x");
  expect_not_added(base_ / "tiny", "No space left on device");
  EXPECT_EQ(names_in(base_ / "tiny"), std::vector<std::string>{"x"});
}

TEST_F(TierPlacesTest, NotTheSameDiskTwice) {
  // Mounted at a second place.
  const Mounted again(slow_->path(), base_.make_dir("again"), nullptr, MS_BIND);
  expect_not_added(base_ / "again", "same directory as tier slow");
  expect_not_added(slow_->path(), "same directory as tier slow");
}

// Root can still mount the pool into a tier. Its daemon then uses a directory of its own mount.
TEST_F(TierPlacesTest, AMountInItselfCanBeRemoved) {
  pool_->umount();
  base_.make_dir("fast/inner");
  pool_->mount();
  std::optional<Mounted> itself(std::in_place, pool_->path(), base_ / "fast/inner", nullptr,
                                MS_BIND);
  const std::string listed = in_child([&] {
    ::alarm(2);  // it may wait for itself
    return exists(*pool_ / "inner/d/x") ? std::string("found") : std::string("not there");
  });
  const CommandResult said = sluice({"umount", "--lazy", pool_->path()});
  EXPECT_EQ(said.exit_code, 0) << said.err << "; before: " << listed;
  EXPECT_TRUE(eventually([&] { return has_ended(pool_->pid()) && has_ended(pool_->keeper()); }));
  itself.reset();
  pool_->mount();
  EXPECT_EQ(read_file(*pool_ / "d/x"), "content");
}

// Files that are there already become files of the pool.
TEST_F(TierPlacesTest, ADirectoryWithFilesIsTaken) {
  base_.make_dir("full/d");
  base_.make_file("full/d/old", "old");
  const CommandResult said = sluice({"tier", "add", "bulk=" + base_ / "full", pool_->path()});
  EXPECT_EQ(said.exit_code, 0) << said.err;
  EXPECT_EQ(read_file(*pool_ / "d/old"), "old");
  EXPECT_EQ(read_file(*pool_ / "d/x"), "content");
}

}  // namespace
}  // namespace sluice::test
