// SPDX-License-Identifier: BSD-2-Clause
// All kinds of operations at once, while the files are moved.
#include "tests/fault/move_storm.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <ostream>
#include <string>
#include <vector>

#include "tests/fault/move_stage.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/temp_dir.hpp"

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

TEST_P(MoveStormTest, EveryFileHasTheExpectedContent) {
  const TempDir base;
  const MoveStage stage(base.path());
  Pool pool = stage.pool();
  pool.flags = GetParam().flags;
  Mount mount(pool);
  MoveStorm storm(mount.path(), MoveStage::tiers(), test_seed());
  storm.run(std::chrono::seconds(rounds(10, 900)));
  std::printf("%llu moves seen during %llu operations\n",
              static_cast<unsigned long long>(storm.moves()),
              static_cast<unsigned long long>(storm.operations()));
  ASSERT_EQ(storm.problems(), "");
  EXPECT_GT(storm.moves(), 0u) << "no file was moved, so the test tests nothing";
  EXPECT_EQ(storm.compare_mount(), "") << "after the storm";
  mount.remount();
  EXPECT_EQ(storm.compare_mount(), "") << "after a remount";
  mount.umount();
  std::vector<std::string> directories;
  for (const std::string& tier : MoveStage::tiers()) directories.push_back(stage.on(tier));
  EXPECT_EQ(storm.compare_tiers(directories), "");
  const CommandResult report = fsck(pool);
  EXPECT_EQ(report.exit_code, 0) << report.out << report.err;
}

INSTANTIATE_TEST_SUITE_P(With, MoveStormTest,
                         testing::Values(Case{"Defaults", {}},
                                         Case{"EveryFileInPassthrough", {"--small-file", "0"}},
                                         Case{"EveryFileServed", {"--debug=passthrough=off"}}),
                         [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace sluice::test
