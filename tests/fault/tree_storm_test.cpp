// SPDX-License-Identifier: BSD-2-Clause
// A tree of files and directories that are moved always equals the result of the calls.
#include "tests/fault/tree_storm.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/fault/tree_stage.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice::test {
namespace {

// Runs the storm in several stretches and compares the whole tree after each.
void run_and_compare(TreeStorm& storm, std::chrono::milliseconds stretch, int stretches) {
  for (int i = 0; i < stretches && !storm.has_problem(); ++i) {
    storm.start();
    // Waits for nothing: the test chooses the length of the storm.
    for (const auto end = std::chrono::steady_clock::now() + stretch;
         std::chrono::steady_clock::now() < end && !storm.has_problem();) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    storm.pause();
    if (storm.has_problem()) break;
    ASSERT_TRUE(no_problem(storm.compare_mount()))
        << "after stretch " << i << ", files still moving";
  }
  storm.stop();
  std::printf("%llu moves during %llu operations\n", static_cast<unsigned long long>(storm.moves()),
              static_cast<unsigned long long>(storm.operations()));
  ASSERT_TRUE(no_problem(storm.problems()));
}

class TreeStormTest : public testing::TestWithParam<TreeCase> {
 protected:
  void SetUp() override {
    ::umask(0);
    [[maybe_unused]] const bool able = require_mounts("fault");
  }
};

TEST_P(TreeStormTest, TheTreeIsAsExpected) {
  const TreeStage stage(GetParam().flags);
  Mount mount(stage.pool());
  TreeStorm storm(mount.path(), MoveStage::tiers(), test_seed());

  run_and_compare(storm, std::chrono::seconds(2), rounds(4, 300));
  if (HasFatalFailure()) return;
  EXPECT_GT(storm.moves(), 20u) << "almost no file was moved, so the test tests nothing";

  ASSERT_TRUE(no_problem(storm.compare_mount())) << "after the storm";
  mount.umount();
  ASSERT_TRUE(no_problem(storm.compare_with_tiers(stage.directories()))) << "on the tiers";
  ASSERT_TRUE(no_problem(stage.problems_unmounted()));
  mount.mount();
  ASSERT_TRUE(no_problem(storm.compare_mount())) << "after a remount";
  EXPECT_TRUE(no_problem(storm.remove_everything()));
  mount.umount();
  EXPECT_TRUE(no_problem(storm.compare_with_tiers(stage.directories()))) << "after rm -rf";
  EXPECT_TRUE(no_problem(stage.problems_unmounted())) << "after rm -rf";
}

INSTANTIATE_TEST_SUITE_P(With, TreeStormTest, tree_cases(),
                         [](const auto& given) { return given.param.name; });

// Tests the model itself, in the temporary directory or in $SLUICE_TEST_MOUNT.
TEST(TreeModelTest, AgreesWithANativeDirectory) {
  ::umask(0);
  const TempDir base;
  const char* stand_in = std::getenv("SLUICE_TEST_MOUNT");
  const std::string root = stand_in ? std::string(stand_in) + "/tree" : base / "native";
  ASSERT_EQ(::mkdir(root.c_str(), 0755), 0) << root;
  TreeStorm storm(root, {}, test_seed());
  run_and_compare(storm, std::chrono::milliseconds(500), rounds(2, 200));
  EXPECT_TRUE(no_problem(storm.remove_everything()));
}

}  // namespace
}  // namespace sluice::test
