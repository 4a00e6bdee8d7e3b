// SPDX-License-Identifier: BSD-2-Clause
// What is said about a tier that is not as usual, and whether it agrees with df.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "tests/mount/tiers.hpp"
#include "tests/support/files.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

using nlohmann::json;

class TierStateTest : public TiersTest {
 protected:
  json tier(const std::string& name) {
    const json status = mount().status();
    for (const json& each : status.at("tiers")) {
      if (each.at("name") == name) return each;
    }
    ADD_FAILURE() << "status does not know " << name;
    return {};
  }
  bool is_in(const std::string& name, const std::string& state) {
    const json states = tier(name).at("states");
    return std::any_of(states.begin(), states.end(),
                       [&](const json& each) { return each.at("name") == state; });
  }
  // Everything that people read says it; only root's doctor sees tiers.
  void expect_said(const std::string& name, const std::string& state) {
    EXPECT_TRUE(eventually([&] { return is_in(name, state); })) << mount().status();
    const std::string shown = sluice({"status", *this / ""}).out;
    EXPECT_NE(shown.find(name + ": " + state), std::string::npos) << shown;
    const std::string top = sluice({"top", "--once", *this / ""}).out;
    EXPECT_NE(top.find(state), std::string::npos) << top;
    const std::string doctor = sluice({"doctor", *this / ""}).out;
    EXPECT_NE(doctor.find(state), std::string::npos) << doctor;
  }
};

TEST_F(TierStateTest, NothingIsSaidIfAllIsWell) {
  start();
  for (const char* name : {"nvme", "ssd", "hdd"}) EXPECT_EQ(tier(name).at("states"), json::array());
}

TEST_F(TierStateTest, ATierAboveItsWatermarkSaysSoAndThatFilesLeave) {
  set_options("nvme", "high_watermark=50,low_watermark=40");
  start();
  EXPECT_EQ(tier("nvme").at("leaves_at"), 50);
  ASSERT_TRUE(sluice({"tier", "pause", *this / ""}).ok());
  EXPECT_EQ(tier("nvme").at("leaves_at"), nullptr) << "not while migration is paused";
  fill("nvme", kFast / 4);
  expect_said("nvme", "above-watermark");
  EXPECT_FALSE(is_in("nvme", "full"));
}

TEST_F(TierStateTest, NothingLeavesTheLastTier) {
  set_options("hdd", "high_watermark=50,low_watermark=40");
  start();
  EXPECT_EQ(tier("hdd").at("leaves_at"), nullptr);
  fill("hdd", kSlow / 4);
  expect_said("hdd", "above-watermark");
  const std::string shown = sluice({"status", *this / ""}).out;
  EXPECT_NE(shown.find("no files leave it by themselves"), std::string::npos) << shown;
}

TEST_F(TierStateTest, AFullTierSaysSo) {
  set_options("nvme", "reserve=4MiB,high_watermark=100");
  start({"--no-migrate"});  // a pass would make room
  fill("nvme", 2 * kMiB);
  expect_said("nvme", "full");
}

TEST_F(TierStateTest, AReadOnlyTierSaysSo) {
  start();
  // As the kernel does if it finds an error.
  ASSERT_TRUE(run_command({"mount", "-o", "remount,abort", disk("hdd").path()}).ok());
  expect_said("hdd", "read-only");
}

// A budget that was set by a command that failed would delete files.
TEST_F(TierStateTest, ADirectoryWithAReadOnlyCopyIsChangedAsAWholeOrNotAtAll) {
  for (const char* name : {"nvme", "hdd"}) put(name, std::string("d/") + name, "x");
  start({"--no-migrate"});
  ASSERT_TRUE(run_command({"mount", "-o", "remount,abort", disk("hdd").path()}).ok());
  ASSERT_TRUE(eventually([&] { return is_in("hdd", "read-only"); })) << mount().status();
  for (const char* name : {"user.k", "user.sluice.pin", "user.sluice.budget"}) {
    const std::string value = name == std::string("user.sluice.budget") ? "1KiB" : "nvme";
    EXPECT_EQ(::setxattr((*this / "d").c_str(), name, value.data(), value.size(), 0), -1) << name;
    EXPECT_EQ(errno, EROFS) << name;
    EXPECT_EQ(::getxattr((*this / "d").c_str(), name, nullptr, 0), -1) << name;
  }
  EXPECT_EQ(::chmod((*this / "d").c_str(), 0700), -1);
  for (const char* name : {"nvme", "hdd"}) EXPECT_EQ(lstat_of(on(name, "d")).st_mode & 0777, 0755u);
  const CommandResult budget = sluice({"budget", *this / "d", "1KiB", "--yes"});
  EXPECT_EQ(budget.exit_code, 1);
  EXPECT_NE(budget.err.find("nothing was changed"), std::string::npos) << budget.err;
  const CommandResult drain = sluice({"tier", "drain", "hdd", *this / ""});
  EXPECT_NE(drain.err.find("tier hdd is read-only"), std::string::npos) << drain.err;
}

TEST_F(TierStateTest, ADrainedTierSaysSo) {
  put("ssd", "f", "content");
  for (const char* tier : {"nvme", "hdd"}) set_options(tier, "reserve=1GiB");
  start({"--no-migrate"});
  // It does not end: the other tiers have no room.
  const CommandResult drained = sluice({"tier", "drain", "ssd", *this / ""});
  EXPECT_TRUE(is_in("ssd", "draining")) << drained.out << drained.err << mount().status();
  expect_said("ssd", "draining");
}

TEST_F(TierStateTest, DrainsAtOnceLeaveATierThatTakesFiles) {
  start({"--no-migrate"});
  const std::vector<std::string> names{"nvme", "ssd", "hdd"};
  for (int round = 0; round < 5; ++round) {
    std::array<CommandResult, 3> drains;
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < names.size(); ++i)
        threads.emplace_back([&, i] {
          drains[i] = sluice({"tier", "drain", names[i], *this / ""});
        });
    }
    const auto refused = std::count_if(drains.begin(), drains.end(), [](const CommandResult& each) {
      return each.err.find("no other tier takes the files") != std::string::npos;
    });
    EXPECT_EQ(refused, 1) << drains[0].err << drains[1].err << drains[2].err;
    const auto marked = std::count_if(names.begin(), names.end(), [&](const std::string& name) {
      return tier(name).at("draining").get<bool>();
    });
    EXPECT_EQ(marked, 2) << mount().status();
    for (const std::string& name : names)
      EXPECT_TRUE(sluice({"tier", "drain", name, "--cancel", *this / ""}).ok());
  }
}

TEST_F(TierStateTest, AFilesystemThatFoundErrorsIsDegraded) {
  struct stat st {};
  ASSERT_EQ(::stat(disk("nvme").path().c_str(), &st), 0);
  const std::string device =
      std::filesystem::read_symlink("/sys/dev/block/" + std::to_string(major(st.st_dev)) + ":" +
                                    std::to_string(minor(st.st_dev)))
          .filename();
  const std::string trigger = "/sys/fs/ext4/" + device + "/trigger_fs_error";
  start();
  if (!(std::ofstream(trigger) << "of the test" << std::flush))
    GTEST_SKIP() << "the kernel can't pretend an error of ext4";
  expect_said("nvme", "degraded");
}

TEST_F(TierStateTest, AnOfflineTierSaysSo) {
  start();
  disk("ssd").vanish();
  EXPECT_TRUE(eventually([&] { return is_in("ssd", "offline"); })) << mount().status();
  const std::string shown = sluice({"status", *this / ""}).out;
  EXPECT_NE(shown.find("offline: "), std::string::npos) << shown;
}

TEST_F(TierStateTest, StatusAgreesWithDf) {
  start();
  write_file(*this / "f", std::string(5 * kMiB, 'x'));
  ASSERT_EQ(run_command({"sync"}).exit_code, 0);
  for (const char* name : {"nvme", "ssd", "hdd"}) {
    const auto agrees = [&] {
      const auto df = run_command(
          {"df", "--block-size=1", "--output=size,used,avail,pcent", disk(name).path()});
      std::istringstream lines(df.out);
      std::string head, percent;
      std::getline(lines, head);
      std::uint64_t size = 0, used = 0, free = 0;
      lines >> size >> used >> free >> percent;
      const json now = tier(name);
      const std::string table = sluice({"status", "--bytes", *this / ""}).out;
      return now.at("total").get<std::uint64_t>() + now.at("kept").get<std::uint64_t>() == size &&
             now.at("used") == used && now.at("free") == free &&
             table.find(" " + percent + " ") != std::string::npos;
    };
    EXPECT_TRUE(eventually(agrees)) << name << ": " << tier(name);
  }
  struct statvfs fs {};
  ASSERT_EQ(::statvfs((*this / "").c_str(), &fs), 0);
  std::uint64_t used = 0;
  for (const char* name : {"nvme", "ssd", "hdd"})
    used += tier(name).at("used").get<std::uint64_t>();
  EXPECT_NEAR(static_cast<double>((fs.f_blocks - fs.f_bfree) * fs.f_frsize),
              static_cast<double>(used), 1 << 20);
}

}  // namespace
}  // namespace sluice::test
