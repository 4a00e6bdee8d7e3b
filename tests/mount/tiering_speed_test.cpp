// SPDX-License-Identifier: BSD-2-Clause
// How a mount finds out how fast its tiers are, and what it says about thresholds that it does not
// use. The tiers are directories, because the disks of the other tests are too small to be probed.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/files.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

using Json = nlohmann::json;

class TierSpeedTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!require("mount", ::geteuid() == 0, "mounting needs root")) return;
    const int fd = ::open(base_.path().c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (fd >= 0) ::close(fd);
    if (!require("mount", fd >= 0, "the filesystem of the tests has no O_DIRECT")) return;
  }
  Pool pool(const std::string& fast_options = "", std::vector<std::string> flags = {}) const {
    return {.tiers = {"fast=" + base_.make_dir("fast") + fast_options,
                      "slow=" + base_.make_dir("slow")},
            .state = base_ / "state",
            .mountpoint = base_ / "mnt",
            .flags = std::move(flags)};
  }
  static Json speed_of(const Mount& mount, const std::string& name) {
    const Json status = mount.status();
    for (const Json& tier : status.at("tiers")) {
      if (tier.at("name") == name) return tier.at("speed");
    }
    throw std::invalid_argument(name);
  }
  static bool is_measured(const Mount& mount, const std::string& name) {
    return eventually([&] { return speed_of(mount, name).at("source") != "kind"; });
  }
  std::vector<std::string> left_overs(const std::string& tier) const {
    return names_in(base_ / (tier + "/.sluice/tmp"));
  }
  std::string stored(const std::string& tier) const {
    return read_file(base_ / (tier + "/.sluice/speed.json"));
  }

  TempDir base_;
};

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t times = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

TEST_F(TierSpeedTest, TheFirstMountMeasuresTheTiersAndTheNextDoesNot) {
  Mount mount(pool());
  ASSERT_TRUE(is_measured(mount, "fast"));
  ASSERT_TRUE(is_measured(mount, "slow"));
  EXPECT_GT(speed_of(mount, "fast").at("latency_us"), 0);
  EXPECT_GT(speed_of(mount, "fast").at("bytes_per_s"), 0);
  EXPECT_TRUE(left_overs("fast").empty());
  EXPECT_EQ(count(mount.log(), "measured a tier"), 2u);
  const std::string before = stored("fast");

  mount.remount();
  EXPECT_NE(speed_of(mount, "fast").at("source"), "kind") << "known from the beginning";
  EXPECT_NE(speed_of(mount, "slow").at("source"), "kind");
  mount.remount();
  EXPECT_EQ(count(mount.log(), "measured a tier"), 2u) << mount.log();
  EXPECT_EQ(stored("fast"), before);
}

TEST_F(TierSpeedTest, ADaemonThatIsKilledLeavesNothingAndTheNextMountMeasures) {
  for (int i = 0; i < 5; ++i) {
    Mount mount(pool());
    mount.kill_daemon();
    mount.detach();
    EXPECT_TRUE(left_overs("fast").empty());
    EXPECT_TRUE(left_overs("slow").empty());
  }
  const Mount mount(pool());
  EXPECT_TRUE(is_measured(mount, "slow"));
}

TEST_F(TierSpeedTest, ASuccessorKnowsWhatWasMeasured) {
  Mount mount(pool());
  ASSERT_TRUE(is_measured(mount, "slow"));
  ASSERT_TRUE(eventually([&] { return !stored("slow").empty(); }));
  mount.crash_daemon();
  EXPECT_NE(speed_of(mount, "fast").at("source"), "kind");
  EXPECT_NE(speed_of(mount, "slow").at("source"), "kind");
}

TEST_F(TierSpeedTest, ATierWithLittleRoomIsNotProbed) {
  const Mount mount(pool(",capacity=100MiB"));
  ASSERT_TRUE(is_measured(mount, "slow"));
  // The fast one had its turn before.
  EXPECT_EQ(speed_of(mount, "fast").at("source"), "kind");
  EXPECT_GT(speed_of(mount, "fast").at("bytes_per_s"), 0);
}

TEST_F(TierSpeedTest, ATierThatIsAddedIsMeasured) {
  const Mount mount(pool());
  const std::string path = base_.make_dir("bulk");
  ASSERT_TRUE(sluice({"tier", "add", "bulk=" + path, mount.path()}).ok());
  EXPECT_TRUE(is_measured(mount, "bulk"));
}

TEST_F(TierSpeedTest, ThresholdsThatAreNotUsedAreReported) {
  const std::string notice = "the threshold of fast is not used";
  {
    const Mount mount(pool(",threshold=50"));
    EXPECT_EQ(mount.status().at("migration").at("policy"), "value");
    EXPECT_EQ(count(mount.log(), notice), 1u) << mount.log();
  }
  const Mount mount(pool(",threshold=50", {"--policy", "thresholds"}));
  EXPECT_EQ(mount.status().at("migration").at("policy"), "thresholds");
  EXPECT_EQ(count(mount.log(), notice), 1u) << "the first mount's";
}

}  // namespace
}  // namespace sluice::test
