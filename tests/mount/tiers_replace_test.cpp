// SPDX-License-Identifier: BSD-2-Clause
// A new disk in the place of a dead one, and the list of the files that were on it.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "tests/mount/tiers.hpp"
#include "tests/support/files.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

class ReplaceTierTest : public TiersTest {
 protected:
  void SetUp() override {
    TiersTest::SetUp();
    if (IsSkipped() || HasFailure()) return;
    put("nvme", "d/fast", "fast");
    put("ssd", "d/middle", "middle");
    put("hdd", "d/slow", "slow");
    put("ssd", "pinned/old", "old");
  }

  void pin(const std::string& directory, const std::string& tier) {
    ASSERT_EQ(
        ::setxattr((*this / directory).c_str(), "user.sluice.pin", tier.data(), tier.size(), 0), 0)
        << errno_name(errno);
  }
  nlohmann::json tier(const std::string& name) {
    const nlohmann::json status = mount().status();
    for (const nlohmann::json& each : status.at("tiers")) {
      if (each.at("name") == name) return each;
    }
    ADD_FAILURE() << "status does not know " << name;
    return {};
  }
  bool online(const std::string& name) { return tier(name).at("online").get<bool>(); }
  void lose(const std::string& name) {
    disk(name).vanish();
    ASSERT_TRUE(eventually([&] { return !online(name); }));
  }
  CommandResult replace(const std::string& what) {
    return sluice({"tier", "replace", what, base_ / "mnt"});
  }
  CommandResult lost(const std::string& name) {
    return sluice({"tier", "lost", name, base_ / "mnt"});
  }
  // The pool with another path for ssd.
  Pool pool_with(const std::string& ssd) const {
    Pool changed = pool();
    changed.tiers[1] = "ssd=" + ssd;
    return changed;
  }
  CommandResult try_to_mount(const Pool& wanted) {
    std::vector<std::string> arguments = wanted.mount_arguments();
    arguments.insert(arguments.begin(), "mount");
    return sluice(arguments);
  }
  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
};

TEST_F(ReplaceTierTest, TheNewDiskTakesTheNameAndThePlaceOnARunningMount) {
  const LoopFs fresh(base_ / "new", "ext4", kFast);
  start();
  ASSERT_EQ(read_file(*this / "d/middle"), "middle");
  ASSERT_EQ(::mkdir((*this / "kept").c_str(), 0755), 0);
  pin("kept", "ssd");
  lose("ssd");
  const CommandResult said = replace("ssd=" + fresh.path());
  ASSERT_EQ(said.exit_code, 0) << said.err;
  EXPECT_TRUE(has(said.out, "path = \"" + fresh.path() + "\"")) << said.out;

  const nlohmann::json tiers = mount().status().at("tiers");
  EXPECT_EQ(tiers.size(), 3u);
  EXPECT_EQ(tiers.at(1).at("name"), "ssd");
  EXPECT_EQ(tiers.at(1).at("path"), fresh.path());
  EXPECT_TRUE(online("ssd"));
  EXPECT_EQ(names_in(*this / "d"), (std::vector<std::string>{"fast", "slow"}));
  EXPECT_FALSE(exists(*this / "d/middle"));
  write_file(*this / "d/middle", "again");
  EXPECT_EQ(read_file(*this / "d/middle"), "again");
  // What a disk that is away forbids is allowed again.
  EXPECT_EQ(::rename((*this / "d").c_str(), (*this / "e").c_str()), 0) << errno_name(errno);
  // The pin names the tier, whichever disk it is.
  write_file(*this / "kept/file", "pinned");
  EXPECT_EQ(tier_of("kept/file"), "ssd");
  EXPECT_TRUE(exists(fresh.path() + "/kept/file"));

  mount().umount();
  const Mount again(pool_with(fresh.path()));
  EXPECT_EQ(read_file(*this / "kept/file"), "pinned");
  EXPECT_EQ(read_file(*this / "e/middle"), "again");
}

TEST_F(ReplaceTierTest, TheNewDiskStaysAfterTheDaemonWasReplaced) {
  const LoopFs fresh(base_ / "new", "ext4", kFast);
  start();
  lose("ssd");
  ASSERT_EQ(replace("ssd=" + fresh.path()).exit_code, 0);
  write_file(*this / "d/new", "new");
  const CommandResult restarted = sluice({"restart", base_ / "mnt"});
  ASSERT_EQ(restarted.exit_code, 0) << restarted.err;
  EXPECT_EQ(tier("ssd").at("path"), fresh.path());
  EXPECT_TRUE(eventually([&] { return online("ssd"); }));
  EXPECT_EQ(read_file(*this / "d/new"), "new");
}

TEST_F(ReplaceTierTest, WhatCannotTakeThePlaceIsRefusedWithAdvice) {
  const LoopFs fresh(base_ / "new", "ext4", kFast);
  start();
  CommandResult said = replace("ssd=" + fresh.path());
  EXPECT_EQ(said.exit_code, 1);
  EXPECT_TRUE(has(said.err, "not lost") && has(said.err, "sluice tier drain ssd")) << said.err;
  EXPECT_FALSE(exists(fresh.path() + "/.sluice"));
  lose("ssd");
  said = replace("flash=" + fresh.path());
  EXPECT_TRUE(has(said.err, "has had no tier flash")) << said.err;
  said = replace("ssd=" + base_.make_dir("nvme/inside"));
  EXPECT_TRUE(has(said.err, "is inside tier nvme")) << said.err;
  said = replace("ssd=" + on("hdd", ""));
  EXPECT_TRUE(has(said.err, "same directory as tier hdd")) << said.err;
  said = replace("ssd=" + base_ / "nowhere");
  EXPECT_TRUE(has(said.err, "give a directory that exists")) << said.err;
  said = sluice({"tier", "add", "ssd=" + fresh.path(), base_ / "mnt"});
  EXPECT_NE(said.exit_code, 0);
  said = sluice({"tier", "add", "more=" + base_ / "nowhere", base_ / "mnt"});
  EXPECT_TRUE(has(said.err, "give a directory that exists")) << said.err;
  EXPECT_FALSE(has(said.err, "--degraded")) << said.err;

  const Mount other(
      Pool{{"a=" + base_.make_dir("new/a")}, base_ / "other-state", base_.make_dir("other")});
  said = replace("ssd=" + base_ / "new/a");
  EXPECT_TRUE(has(said.err, "belongs to another pool")) << said.err;
  disk("ssd").come_back();
  EXPECT_TRUE(eventually([&] { return online("ssd"); }));
  EXPECT_EQ(read_file(*this / "d/middle"), "middle");
}

TEST_F(ReplaceTierTest, TheDeadDiskIsNotTakenForTheNewOneAndItsFilesCanComeBack) {
  const LoopFs fresh(base_ / "new", "ext4", kFast);
  start();
  lose("ssd");
  ASSERT_EQ(replace("ssd=" + fresh.path()).exit_code, 0);
  mount().umount();
  disk("ssd").come_back();
  const CommandResult refused = try_to_mount(pool());
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_TRUE(has(refused.err, "before another disk took its place")) << refused.err;
  EXPECT_TRUE(has(refused.err, "sluice tier add")) << refused.err;

  Mount again(pool_with(fresh.path()));
  EXPECT_FALSE(exists(*this / "d/middle"));
  CommandResult said = sluice({"tier", "add", "ssd=" + on("ssd", ""), base_ / "mnt"});
  EXPECT_EQ(said.exit_code, 1);
  said = sluice({"tier", "add", "old=" + on("ssd", ""), base_ / "mnt"});
  ASSERT_EQ(said.exit_code, 0) << said.err;
  EXPECT_EQ(read_file(*this / "d/middle"), "middle");
  EXPECT_EQ(names_in(*this / "d"), (std::vector<std::string>{"fast", "middle", "slow"}));
  again.umount();
  Pool four = pool_with(fresh.path());
  four.tiers.push_back("old=" + on("ssd", ""));
  const Mount last(four);
  EXPECT_EQ(read_file(*this / "d/middle"), "middle");
}

// The pass of a drain may take hours, because it waits for all moves.
TEST_F(ReplaceTierTest, ADrainOfTheDeadDiskDoesNotRetireTheNewOne) {
  const LoopFs fresh(base_ / "new", "ext4", kFast);
  put("hdd", "large", pattern(20 * kMiB, 1));
  start({"--bandwidth", "2MiB"});
  ASSERT_EQ(sluice({"move", "--to", "nvme", *this / "large"}).exit_code, 0);
  CommandResult drained;
  std::thread drain([&] { drained = sluice({"tier", "drain", "ssd", base_ / "mnt"}); });
  EXPECT_TRUE(eventually([&] { return names_in(on("ssd", "d")).empty(); }));
  lose("ssd");
  EXPECT_EQ(replace("ssd=" + fresh.path()).exit_code, 0);
  drain.join();
  EXPECT_EQ(drained.exit_code, 1) << drained.out;
  EXPECT_TRUE(has(drained.err, "took the place")) << drained.err;
  EXPECT_TRUE(online("ssd"));
  EXPECT_FALSE(tier("ssd").at("draining").get<bool>());
  mount().umount();
  const Mount again(pool_with(fresh.path()));
  EXPECT_EQ(sluice({"move", "--to", "ssd", "--wait", *this / "d/slow"}).exit_code, 0);
  EXPECT_TRUE(exists(fresh.path() + "/d/slow"));
}

TEST_F(ReplaceTierTest, LostFilesAreListedBeforeAndAfterTheDiskIsReplaced) {
  const LoopFs fresh(base_ / "new", "ext4", kFast);
  start();
  CommandResult said = lost("ssd");
  EXPECT_EQ(said.exit_code, 1);
  EXPECT_TRUE(has(said.err, "nothing is lost")) << said.err;
  ASSERT_EQ(sluice({"plan", base_ / "mnt"}).exit_code, 0);  // takes a census
  pin("pinned", "ssd");
  write_file(*this / "pinned/late", "made after the census");
  ASSERT_EQ(tier_of("pinned/late"), "ssd");
  lose("ssd");
  const std::string all = "/d/middle\n/pinned/late\n/pinned/old\n";
  said = lost("ssd");
  EXPECT_EQ(said.out, all) << said.err;
  EXPECT_TRUE(has(said.err, "3 files") && has(said.err, "last listed completely at")) << said.err;
  ASSERT_EQ(sluice({"tier", "drain", "ssd", "--lost", base_ / "mnt"}).exit_code, 0);
  EXPECT_EQ(lost("ssd").out, all);
  ASSERT_EQ(replace("ssd=" + fresh.path()).exit_code, 0);
  EXPECT_EQ(lost("ssd").out, all);
  // One that was restored is not lost any more.
  write_file(*this / "d/middle", "from the backup");
  said = lost("ssd");
  EXPECT_EQ(said.out, "/pinned/late\n/pinned/old\n");
  EXPECT_TRUE(has(said.err, "1 file left out")) << said.err;
}

TEST_F(ReplaceTierTest, ATierThatWasGivenUpAndRemovedCanBeReplaced) {
  const LoopFs fresh(base_ / "new", "ext4", kFast);
  start();
  lose("ssd");
  ASSERT_EQ(sluice({"tier", "drain", "ssd", "--lost", base_ / "mnt"}).exit_code, 0);
  mount().umount();
  Pool two = pool();
  two.tiers.erase(two.tiers.begin() + 1);
  const Mount without(two);
  CommandResult said = sluice({"tier", "add", "ssd=" + fresh.path(), base_ / "mnt"});
  EXPECT_EQ(said.exit_code, 1);
  EXPECT_TRUE(has(said.err, "sluice tier replace ssd=" + fresh.path())) << said.err;
  said = replace("ssd=" + fresh.path());
  EXPECT_EQ(said.exit_code, 0) << said.err;
  EXPECT_EQ(names_in(*this / "d"), (std::vector<std::string>{"fast", "slow"}));
}

TEST_F(ReplaceTierTest, MountAdvisesToReplaceADiskThatIsNew) {
  start();
  mount().umount();
  disk("ssd").vanish();
  CommandResult said = try_to_mount(pool());
  EXPECT_TRUE(has(said.err, "sluice tier replace ssd=")) << said.err;
  disk("ssd").come_back();
}

}  // namespace
}  // namespace sluice::test
