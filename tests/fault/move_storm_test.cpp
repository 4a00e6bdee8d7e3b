// SPDX-License-Identifier: BSD-2-Clause
// All kinds of operations at once, while the files are moved; also while the daemon is killed.
#include "tests/fault/move_storm.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/fault/daemon_killer.hpp"
#include "tests/fault/move_stage.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

struct Case {
  const char* name;
  std::vector<std::string> flags;
};

void PrintTo(const Case& given, std::ostream* out) { *out << given.name; }

class MoveStormTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    ::umask(022);
    [[maybe_unused]] const bool able = require_mounts("fault");
  }
};

constexpr std::chrono::minutes kLongest{2};  // to wait for a move with a twin

// Moves with a twin since the daemon was started.
int twins_used(const Mount& mount) {
  return mount.status().at("migration").at("twins").at("used").get<int>();
}

// Nothing is wrong with a file that users rename while it moves, and every receipt names its file.
// Shows how many moves met a user who had the file open or changed it.
void check_receipts(const Mount& mount) {
  const CommandResult listed = sluice({"moves", "--json", "--limit", "100000", mount.path()});
  ASSERT_TRUE(listed.ok()) << listed.err;
  std::map<std::string, int> wrong;
  int made = 0, met = 0;
  const nlohmann::json moves = nlohmann::json::parse(listed.out);
  for (const nlohmann::json& receipt : moves.at("receipts")) {
    const int code = receipt.at("code");
    made += code == 0;
    met += code == EBUSY || code == ECANCELED;
    if (receipt.at("path") == "") ++wrong["a receipt without a path"];
    if (code == EEXIST || code == EMLINK) ++wrong[receipt.at("reason")];
  }
  std::printf("%d moves made, %d moves met an open or a change\n", made, met);
  EXPECT_TRUE(wrong.empty()) << testing::PrintToString(wrong);
  EXPECT_GT(met, 0) << "no move met a user, so the test tests nothing";
}

// Compares the files with what the storm expects, in the mount and on the disks.
void check_all(const MoveStorm& storm, const MoveStage& stage, Mount& mount) {
  std::printf("%llu moves seen during %llu operations\n",
              static_cast<unsigned long long>(storm.moves()),
              static_cast<unsigned long long>(storm.operations()));
  ASSERT_EQ(storm.problems(), "");
  EXPECT_GT(storm.moves(), 0u) << "no file was moved, so the test tests nothing";
  EXPECT_EQ(storm.compare_mount(), "") << "after the storm";
  check_receipts(mount);
  mount.remount();
  EXPECT_EQ(storm.compare_mount(), "") << "after a remount";
  mount.umount();
  std::vector<std::string> directories;
  for (const std::string& tier : MoveStage::tiers()) directories.push_back(stage.on(tier));
  EXPECT_EQ(storm.compare_tiers(directories), "");
  const CommandResult report = fsck(mount.pool());
  EXPECT_EQ(report.exit_code, 0) << report.out << report.err;
}

TEST_P(MoveStormTest, EveryFileHasTheExpectedContent) {
  const TempDir base;
  const MoveStage stage(base.path());
  Pool pool = stage.pool();
  pool.flags = GetParam().flags;
  Mount mount(pool);
  MoveStorm storm(mount.path(), MoveStage::tiers(), test_seed());
  {
    const std::jthread storming([&] { storm.run(std::chrono::hours(24)); });
    std::this_thread::sleep_for(std::chrono::seconds(rounds(10, 900)));
    EXPECT_TRUE(eventually([&] { return twins_used(mount) > 0; }, kLongest))
        << "no file went back with its twin";
    storm.stop();
  }
  std::printf("%d moves with a twin\n", twins_used(mount));
  check_all(storm, stage, mount);
}

TEST_P(MoveStormTest, EveryFileHasTheExpectedContentAlthoughTheDaemonIsKilled) {
  const TempDir base;
  const MoveStage stage(base.path());
  Pool pool = stage.pool();
  pool.flags = GetParam().flags;
  pool.flags.push_back("--debug=crash_limit=0");
  Mount mount(pool);
  MoveStorm storm(mount.path(), MoveStage::tiers(), test_seed());
  DaemonKiller killer(mount.keeper());
  std::mt19937_64 random(test_seed());
  int twins = 0;
  {
    const std::jthread storming([&] { storm.run(std::chrono::hours(24)); });
    while (killer.kills() < rounds(8, 350) && storm.problems().empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      twins += twins_used(mount);
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 700));
      killer.kill();
    }
    EXPECT_TRUE(eventually([&] { return twins + twins_used(mount) > 0; }, kLongest))
        << "no file went back with its twin";
    storm.stop();
  }
  std::printf("%d kills, %d moves with a twin\n", killer.kills(), twins);
  check_all(storm, stage, mount);
}

INSTANTIATE_TEST_SUITE_P(With, MoveStormTest,
                         testing::Values(Case{"Defaults", {}},
                                         Case{"EveryFileInPassthrough", {"--small-file", "0"}},
                                         Case{"EveryFileServed", {"--debug=passthrough=off"}}),
                         [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace sluice::test
