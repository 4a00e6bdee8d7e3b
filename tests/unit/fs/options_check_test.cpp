// SPDX-License-Identifier: BSD-2-Clause
// Options that are each right by themselves: whether they go together, and with what is on the
// disks.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "fs/control/options.hpp"

namespace sluice {
namespace {

using namespace std::chrono_literals;

MountOptions two_tiers() {
  MountOptions options;
  options.mountpoint = "/m";
  options.tiers.resize(2);
  options.tiers[0].name = "nvme";
  options.tiers[1].name = "ssd";
  return options;
}

std::string option_error(MountOptions options) {
  const auto read = check_options(options);
  return read ? "" : read.error().text();
}

TEST(CheckOptionsTest, AsksForAMountPointAndOneToSixteenDifferentTiers) {
  MountOptions options = two_tiers();
  EXPECT_EQ(option_error(options), "");
  options.mountpoint.clear();
  EXPECT_EQ(option_error(options), "no mount point is given");

  options = two_tiers();
  options.tiers.clear();
  EXPECT_EQ(option_error(options),
            "no tiers are given; name at least one with --tier NAME=PATH or in the config file");

  options = two_tiers();
  options.tiers[1].name = "nvme";
  EXPECT_EQ(option_error(options), "tier nvme: two tiers have that name; names must differ");

  options.tiers.clear();
  for (int i = 0; i < 17; ++i) options.tiers.emplace_back().name = std::to_string(i);
  EXPECT_EQ(option_error(options), "17 tiers are given; allowed: 1 to 16");
  options.tiers.pop_back();
  EXPECT_EQ(option_error(options), "");
}

TEST(CheckOptionsTest, ThresholdsDefaultByTheTiersPlace) {
  MountOptions options = two_tiers();
  EXPECT_EQ(tier_threshold(options.tiers, 0), 10);
  EXPECT_EQ(tier_threshold(options.tiers, 1), 0);
  options.tiers.resize(4);
  EXPECT_EQ(tier_threshold(options.tiers, 0), 100);
  EXPECT_EQ(tier_threshold(options.tiers, 1), 100);
  EXPECT_EQ(tier_threshold(options.tiers, 2), 10);
  EXPECT_EQ(tier_threshold(options.tiers, 3), 0);
  options.tiers[1].threshold = 50;
  EXPECT_EQ(tier_threshold(options.tiers, 1), 50);
}

TEST(CheckOptionsTest, ThresholdsDontRiseTowardsSlowerTiers) {
  MountOptions options = two_tiers();
  options.policy = "thresholds";
  options.tiers.emplace_back().name = "hdd";
  options.tiers[0].threshold = 5;
  EXPECT_EQ(option_error(options),
            "tier ssd: threshold 10 (its default) must not be above 5, that of tier nvme, which is "
            "faster");
  options.tiers[1].threshold = 5;
  EXPECT_EQ(option_error(options), "");
  options.tiers[2].threshold = 0.5;
  EXPECT_EQ(option_error(options),
            "tier hdd: threshold 0.5 must be 0, or left out: the last tier takes what is too cold "
            "for the others");
}

TEST(CheckOptionsTest, ThresholdsThatAreNotUsedAreNoMistakeButAreReported) {
  MountOptions options = two_tiers();
  EXPECT_EQ(unused_thresholds(options), "");
  options.tiers[0].threshold = 5;
  options.tiers[1].threshold = 10;
  EXPECT_EQ(option_error(options), "");
  EXPECT_EQ(unused_thresholds(options),
            "the threshold of nvme, ssd is not used: files are chosen by their value now; remove "
            "it, or set policy = \"thresholds\" to go on with thresholds");
  options.policy = "thresholds";
  EXPECT_EQ(unused_thresholds(options), "");
}

TEST(CheckOptionsTest, PolicyAndObjectiveReachThePlanner) {
  MountOptions options = two_tiers();
  EXPECT_EQ(make_policy(options).method, Method::Value);
  EXPECT_EQ(make_policy(options).objective, Objective::Time);
  ASSERT_TRUE(apply_config_text("policy = \"thresholds\"\noptimize = \"hits\"", "/c", options));
  EXPECT_EQ(make_policy(options).method, Method::Thresholds);
  EXPECT_EQ(make_policy(options).objective, Objective::Hits);
  const auto wrong = apply_config_text("optimize = \"speed\"", "/c", options);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().text(), "/c:1: optimize must be one of time, hits, not \"speed\"");
}

TEST(CheckOptionsTest, RulesNameTiersThatThereAre) {
  MountOptions options = two_tiers();
  ASSERT_TRUE(apply_config_text("\n[[rule]]\nmatch = \"*.iso\"\ntier = \"sdd\"", "/c", options));
  EXPECT_EQ(option_error(options),
            "/c:2: rule \"*.iso\": there is no tier \"sdd\" (there are nvme, ssd; \"stay\" leaves "
            "files where they are); did you mean 'ssd'?");
  options.rules[0].tier = "optical";
  EXPECT_EQ(option_error(options),
            "/c:2: rule \"*.iso\": there is no tier \"optical\" (there are nvme, ssd; \"stay\" "
            "leaves files where they are)");
  options.rules[0].tier = "stay";
  EXPECT_EQ(option_error(options), "");
}

TEST(MakePolicyTest, TurnsNamesIntoPlaces) {
  MountOptions options = two_tiers();
  ASSERT_TRUE(
      apply_config_text("min_stay = \"2h\"\n"
                        "[[rule]]\nmatch = \"*.iso\"\nlarger = 7\ntier = \"ssd\"\n"
                        "[[rule]]\nmatch = \"*\"\nolder = \"1d\"\ntier = \"stay\"\n",
                        "/c", options));
  const Policy policy = make_policy(options);
  EXPECT_EQ(policy.min_stay, 2h);
  ASSERT_EQ(policy.rules.size(), 2u);
  EXPECT_EQ(policy.rules[0].match, "*.iso");
  EXPECT_EQ(policy.rules[0].larger, 7u);
  EXPECT_EQ(policy.rules[0].tier, 1);
  EXPECT_EQ(policy.rules[1].older, 24h);
  EXPECT_EQ(policy.rules[1].tier, kNoTier);
}

TEST(CheckOptionsTest, AChunkIsAPowerOfTwo) {
  MountOptions options = two_tiers();
  for (const std::uint64_t good : {64u << 10, 4u << 20, 64u << 20}) {
    options.gpu_chunk = good;
    EXPECT_EQ(option_error(options), "");
  }
  for (const std::uint64_t bad : {0u, 32u << 10, 3u << 20, 128u << 20}) {
    options.gpu_chunk = bad;
    EXPECT_NE(
        option_error(options).find("gpu_chunk must be a power of two from 64.0 KiB to 64.0 MiB"),
        std::string::npos)
        << option_error(options);
  }
}

TEST(CheckOptionsTest, MetricsStayOnThisMachine) {
  MountOptions options = two_tiers();
  for (const char* good : {"off", "unix", "127.0.0.1:9464", "[::1]:9464"}) {
    options.metrics = good;
    EXPECT_EQ(option_error(options), "");
  }
  for (const char* bad : {"", "on", "9464", "0.0.0.0:9464"}) {
    options.metrics = bad;
    EXPECT_EQ(
        option_error(options),
        "metrics must be \"off\", \"unix\" or an address of this machine alone with its port, "
        "like \"127.0.0.1:9464\" or \"[::1]:9464\", not \"" +
            std::string(bad) + "\"");
  }
}

TEST(CheckOptionsTest, KeepsTheMountOptionsThatTheKernelTakes) {
  MountOptions options = two_tiers();
  options.mount_options = "defaults,noatime,,nofail,x-systemd.automount,ro";
  ASSERT_TRUE(check_options(options));
  EXPECT_EQ(options.mount_options, "noatime,ro");
  options.mount_options = "noatim";
  EXPECT_EQ(option_error(options), "-o noatim: unknown mount option; did you mean 'noatime'?");
}

// Tiers a and b, a mount point m and a state directory s below one folder.
class CheckTiersTest : public testing::Test {
 protected:
  CheckTiersTest() {
    std::string name = testing::TempDir() + "sluice-options-XXXXXX";
    root_ = std::filesystem::canonical(::mkdtemp(name.data())).string();
    for (const char* each : {"/a/in", "/b", "/m/in"})
      std::filesystem::create_directories(root_ + each);
    options_.mountpoint = root_ + "/m";
    options_.over = true;  // tests use directories in it
    options_.state = root_ + "/s";
    options_.tiers.resize(2);
    options_.tiers[0].name = "nvme";
    options_.tiers[0].path = root_ + "/a";
    options_.tiers[1].name = "ssd";
    options_.tiers[1].path = root_ + "/b";
  }
  ~CheckTiersTest() override { std::filesystem::remove_all(root_); }

  // The message, with the folder written as '@'.
  std::string message() const {
    const auto read = check_tiers(options_);
    std::string text = read ? "" : read.error().text();
    for (auto at = text.find(root_); at != std::string::npos; at = text.find(root_)) {
      text.replace(at, root_.size(), "@");
    }
    return text;
  }

  std::string root_;
  MountOptions options_;
};

TEST_F(CheckTiersTest, AcceptsSeparateDirectories) { EXPECT_EQ(message(), ""); }

TEST_F(CheckTiersTest, RefusesAMissingTierUnlessDegraded) {
  options_.tiers[1].path = root_ + "/none";
  EXPECT_EQ(message(),
            "tier ssd: @/none does not exist; is its disk mounted? A new tier needs its directory "
            "first: mkdir -p @/none; --degraded mounts a pool without its missing tiers");
  options_.degraded = true;
  EXPECT_EQ(message(), "");
}

TEST_F(CheckTiersTest, RefusesATierThatIsNoDirectory) {
  std::ofstream(root_ + "/file") << "x";
  options_.tiers[1].path = root_ + "/file";
  EXPECT_EQ(message(), "tier ssd: @/file is not a directory");
}

TEST_F(CheckTiersTest, RefusesATierThatStoresNothing) {
  options_.tiers[1].path = "/proc/self";
  EXPECT_EQ(
      message(),
      "tier ssd: /proc/self shows the state of the kernel and stores nothing; give a directory "
      "on a disk");
}

TEST_F(CheckTiersTest, RefusesTheSameDirectoryTwice) {
  options_.tiers[1].path = root_ + "/a";
  EXPECT_EQ(message(),
            "tier ssd: @/a is the same directory as tier nvme (@/a); give each tier a directory of "
            "its own");
}

TEST_F(CheckTiersTest, RefusesNestedTiersInEitherOrder) {
  options_.tiers[1].path = root_ + "/a/in";
  EXPECT_EQ(message(),
            "tier ssd: @/a/in is inside tier nvme (@/a); give each tier a directory of its own");
  std::swap(options_.tiers[0].path, options_.tiers[1].path);
  EXPECT_EQ(message(),
            "tier nvme: @/a/in is inside tier ssd (@/a); give each tier a directory of its own");
}

TEST_F(CheckTiersTest, SeesThroughSymbolicLinks) {
  std::filesystem::create_directory_symlink(root_ + "/a/in", root_ + "/link");
  options_.tiers[1].path = root_ + "/link";
  EXPECT_EQ(message(),
            "tier ssd: @/link is inside tier nvme (@/a); give each tier a directory of its own");
}

TEST_F(CheckTiersTest, NamesThatShareABeginningAreApart) {
  std::filesystem::create_directory(root_ + "/ab");
  options_.tiers[1].path = root_ + "/ab";
  EXPECT_EQ(message(), "");
}

TEST_F(CheckTiersTest, KeepsTiersAndMountPointApart) {
  options_.tiers[1].path = root_ + "/m/in";
  EXPECT_EQ(message(),
            "tier ssd: @/m/in is inside the mount point (@/m); choose a mount point outside the "
            "tiers");
  options_.tiers[1].path = root_ + "/b";
  options_.mountpoint = root_ + "/a/in";
  EXPECT_EQ(message(),
            "mount point: @/a/in is inside tier nvme (@/a); choose a mount point outside the "
            "tiers");
  options_.mountpoint = root_ + "/b";
  EXPECT_EQ(message(),
            "tier ssd: @/b is the same directory as the mount point (@/b); choose a mount point "
            "outside the tiers");
}

TEST_F(CheckTiersTest, RefusesAMountPointThatIsNotEmpty) {
  options_.over = false;
  EXPECT_EQ(message(),
            "mount point @/m is not empty: in would be hidden while the pool is mounted there; "
            "move it away or choose an empty directory, or mount with --over");
}

TEST_F(CheckTiersTest, RefusesAMountPointThatIsNoDirectory) {
  options_.mountpoint = root_ + "/none";
  EXPECT_EQ(message(), "mount point @/none does not exist; create it: mkdir -p @/none");
  std::ofstream(root_ + "/file") << "x";
  options_.mountpoint = root_ + "/file";
  EXPECT_EQ(message(), "mount point @/file is not a directory");
}

TEST_F(CheckTiersTest, KeepsTheStateOutOfMountPointAndTiers) {
  options_.state = root_ + "/m/s";
  EXPECT_EQ(message(),
            "state directory: @/m/s is inside the mount point (@/m); choose a --state outside it");
  options_.state = root_ + "/b/s";
  EXPECT_EQ(message(),
            "state directory: @/b/s is inside tier ssd (@/b); choose a --state outside it");
  options_.state = root_ + "/b/.sluice/s";
  EXPECT_EQ(message(), "");
}

TEST(ClosestWordTest, OffersOnlyWhatIsClose) {
  const std::vector<std::string_view> verbs{"mount", "umount", "status", "fsck"};
  EXPECT_EQ(closest_word("stats", verbs), "status");
  EXPECT_EQ(closest_word("unmount", verbs), "umount");
  EXPECT_EQ(closest_word("mout", verbs), "mount");
  EXPECT_FALSE(closest_word("xyzzy", verbs));
  EXPECT_FALSE(closest_word("", verbs));
}

}  // namespace
}  // namespace sluice
