// SPDX-License-Identifier: BSD-2-Clause
// kill -9 during a storm on a tree. After the next mount, each acknowledged call has happened, each
// call in progress has happened or not, and nothing is lost, duplicated or mixed up.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <random>

#include "tests/fault/tree_stage.hpp"
#include "tests/fault/tree_storm.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

class TreeKillTest : public testing::TestWithParam<TreeCase> {
 protected:
  void SetUp() override {
    ::umask(0);
    [[maybe_unused]] const bool able = require_mounts("fault");
  }
};

TEST_P(TreeKillTest, TheTreeIsAsExpectedAfterEachKill) {
  constexpr int kRoundsToFsck = 10;
  const TreeStage stage(GetParam().flags);
  Mount mount(stage.pool());
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  TreeStorm storm(mount.path(), MoveStage::tiers(), seed);

  const int count = samples(20, 500);
  for (int round = 1; round <= count; ++round) {
    SCOPED_TRACE("kill " + std::to_string(round));
    const std::uint64_t enough = storm.operations() + 20 + random() % 200;
    const std::chrono::nanoseconds delay(random() % 3'000'000);
    storm.start();
    ASSERT_TRUE(eventually([&] { return storm.operations() >= enough || storm.has_problem(); },
                           std::chrono::seconds(60)))
        << "the storm makes no progress";
    ASSERT_TRUE(no_problem(storm.problems()));
    // A busy wait, because a call takes microseconds.
    const auto moment = std::chrono::steady_clock::now() + delay;
    while (std::chrono::steady_clock::now() < moment) {
    }
    storm.expect_death();
    mount.kill_daemon();
    storm.stop();
    mount.detach();
    ASSERT_NO_THROW(mount.mount());
    storm.recover();
    ASSERT_TRUE(no_problem(storm.problems()));
    ASSERT_TRUE(no_problem(storm.compare_mount()));
    if (round % kRoundsToFsck != 0 && round != count) continue;
    storm.stop();
    mount.umount();
    ASSERT_TRUE(no_problem(storm.compare_with_tiers(stage.directories()))) << "on the tiers";
    ASSERT_TRUE(no_problem(stage.problems_unmounted()));
    mount.mount();
    ASSERT_TRUE(no_problem(storm.compare_mount())) << "after a remount";
  }
  EXPECT_TRUE(no_problem(storm.remove_everything()));
  mount.umount();
  EXPECT_TRUE(no_problem(storm.compare_with_tiers(stage.directories()))) << "after rm -rf";
  std::printf("%d kills during %llu operations and %llu moves; %llu calls were interrupted\n",
              count, static_cast<unsigned long long>(storm.operations()),
              static_cast<unsigned long long>(storm.moves()),
              static_cast<unsigned long long>(storm.unfinished()));
}

INSTANTIATE_TEST_SUITE_P(With, TreeKillTest, tree_cases(),
                         [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace sluice::test
