// SPDX-License-Identifier: BSD-2-Clause
// kill -9 at every step of the mover: before its 1st call that changes something, its 2nd, ...
// until a run ends before the nth. After the next mount, every file must be intact, on exactly one
// tier.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <string>

#include "tests/fault/move_stage.hpp"
#include "tests/support/fault_shim.hpp"
#include "tests/support/parallel.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/shared.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

constexpr int kPools = 4;           // in parallel, because a run mostly waits for disks
constexpr std::size_t kEnough = 8;  // stop after this many failures

struct Outcome {
  bool reached = false;
  bool left_debris = false;
  std::uint64_t calls = 0;
  std::string where;
  std::string problems;
};

using LayOut = void (MoveStage::*)();

// Which moves are interrupted: the first ones of all files, or those back, in which the files that
// went up have twins.
enum class Way { There, Back };

// One run: lays out a pool, kills the daemon once and checks the pool.
Outcome run_once(LayOut lay_out, std::uint64_t n, FaultAction action, Way way = Way::There) {
  TempDir base;
  MoveStage stage(base.path());
  (stage.*lay_out)();
  FaultShim shim(base / "faults");
  Pool pool = stage.pool();
  for (const std::string& each : shim.environment()) pool.environment.push_back(each);
  Mount mount(pool);
  stage.remember();

  if (way == Way::Back) {
    stage.send_all();
    if (!stage.wait_for_moves(mount)) return {false, false, 0, "", "the first moves do not end\n"};
  }
  shim.arm({.at = n, .action = action, .thread = kMoverThread});
  way == Way::Back ? stage.send_all_back() : stage.send_all();
  const bool ended = stage.wait_for_moves(mount);
  Outcome outcome{shim.reached(), false, shim.calls(), shim.where(), ""};
  shim.disarm();
  if (!outcome.reached && !ended) {
    outcome.problems = "the moves do not end\n";
    return outcome;
  }
  if (outcome.reached) {
    mount.kill_daemon();
    mount.detach();
    outcome.left_debris = !stage.debris().empty();
    mount.mount();
  }
  // One after the other: what is read while moves go on moves later.
  outcome.problems = stage.problems_at_rest(mount);
  outcome.problems += stage.changed_times();
  // What the dead daemon left must not prevent new moves.
  stage.send_all();
  // A file whose last close the kernel has not reported yet moves later.
  eventually([&] { return stage.not_arrived().empty(); });
  if (!stage.wait_for_moves(mount)) outcome.problems += "the new moves do not end\n";
  outcome.problems += stage.not_arrived() + stage.problems() + stage.changed_times();
  mount.umount();
  outcome.problems += stage.problems_unmounted();
  return outcome;
}

// Kills the mover at its nth call, and then the daemon that recovers at its mth call, counted over
// all its threads. With m = 0 it only counts.
Outcome kill_twice(std::uint64_t n, std::uint64_t m) {
  TempDir base;
  MoveStage stage(base.path());
  stage.lay_out_few();
  FaultShim shim(base / "faults");
  Pool pool = stage.pool();
  for (const std::string& each : shim.environment()) pool.environment.push_back(each);
  Mount mount(pool);
  stage.remember();
  shim.arm({.at = n, .action = FaultAction::KillBefore, .thread = kMoverThread});
  stage.send_all();
  stage.wait_for_moves(mount);
  Outcome outcome;
  if (!shim.reached()) return outcome;
  outcome.where = shim.where();
  mount.kill_daemon();
  mount.detach();

  shim.arm({.at = m, .action = FaultAction::KillBefore, .path = base.path()});
  try {
    mount.mount();
  } catch (const std::exception&) {
    if (!shim.reached()) throw;
  }
  outcome.calls = shim.calls();
  outcome.reached = shim.reached();
  outcome.where += ", then " + shim.where();
  shim.disarm();
  if (outcome.reached) {
    mount.detach();
    mount.mount();
  }
  // One after the other: what is read while moves go on moves later.
  outcome.problems = stage.problems_at_rest(mount);
  outcome.problems += stage.changed_times();
  mount.umount();
  outcome.problems += stage.problems_unmounted();
  return outcome;
}

class MoveKillTest : public testing::Test {
 protected:
  void SetUp() override { [[maybe_unused]] const bool able = require_mounts("fault"); }

  // Kills at every call of a run, or at `most` calls at equal distances.
  void kill_everywhere(LayOut lay_out, FaultAction action, std::uint64_t most,
                       Way way = Way::There) {
    const Outcome whole = run_once(lay_out, 0, action, way);
    ASSERT_EQ(whole.problems, "") << "without any fault";
    ASSERT_GT(whole.calls, 0u) << "no call of a thread named " << kMoverThread << " was seen";
    // The order of calls varies a little, so some runs are longer than the first.
    const std::uint64_t last = whole.calls + 5;
    const std::uint64_t stride = std::max<std::uint64_t>(1, (last + most - 1) / most);
    const Shared<std::atomic<int>> kills, halfway;
    const auto wrong =
        in_parallel(kPools, (last + stride - 1) / stride, kEnough, [&](std::uint64_t i) {
          const std::uint64_t n = 1 + i * stride;
          const Outcome outcome = run_once(lay_out, n, action, way);
          *kills += outcome.reached;
          *halfway += outcome.left_debris;
          if (outcome.problems.empty()) return std::string();
          return "call " + std::to_string(n) + ": " + outcome.where + "\n" + outcome.problems;
        });
    for (const auto& [i, said] : wrong) ADD_FAILURE() << said;
    EXPECT_GT(*halfway, *kills / 4) << "almost no move was interrupted, so the test tests nothing";
    std::printf("%d kills, at one in %llu of %llu calls; %d left something to recover\n",
                kills->load(), static_cast<unsigned long long>(stride),
                static_cast<unsigned long long>(whole.calls), halfway->load());
  }
};

TEST_F(MoveKillTest, AFewFilesSurviveAKillBeforeEveryCall) {
  kill_everywhere(&MoveStage::lay_out_few, FaultAction::KillBefore, samples(200, 100'000));
}

TEST_F(MoveKillTest, FilesOfEveryKindSurviveAKillBeforeAnyCall) {
  kill_everywhere(&MoveStage::lay_out, FaultAction::KillBefore, samples(30, 100'000));
}

TEST_F(MoveKillTest, FilesOfEveryKindSurviveAKillAfterAnyCall) {
  kill_everywhere(&MoveStage::lay_out, FaultAction::KillAfter, samples(12, 100'000));
}

TEST_F(MoveKillTest, AFewFilesWithTwinsSurviveAKillBeforeEveryCall) {
  kill_everywhere(&MoveStage::lay_out_few, FaultAction::KillBefore, samples(200, 100'000),
                  Way::Back);
}

TEST_F(MoveKillTest, FilesOfEveryKindWithTwinsSurviveAKillAfterAnyCall) {
  kill_everywhere(&MoveStage::lay_out, FaultAction::KillAfter, samples(20, 100'000), Way::Back);
}

TEST_F(MoveKillTest, RecoveryMayBeKilledToo) {
  const std::uint64_t calls = run_once(&MoveStage::lay_out_few, 0, FaultAction::KillBefore).calls;
  ASSERT_GT(calls, 0u);
  const Shared<std::atomic<int>> kills;
  // Kills in the second half of a move leave most to recover.
  const auto most = static_cast<std::uint64_t>(samples(6, 100'000));
  const std::uint64_t stride = std::max<std::uint64_t>(1, calls / 2 / most);
  const auto wrong =
      in_parallel(kPools, calls / 2 / stride + 1, kEnough, [&](std::uint64_t i) -> std::string {
        const std::uint64_t n = calls / 2 + i * stride;
        const std::uint64_t recovery = kill_twice(n, 0).calls;
        const std::uint64_t step = std::max<std::uint64_t>(1, recovery / samples(6, 60));
        for (std::uint64_t m = 1 + i % step; m <= recovery; m += step) {
          const Outcome outcome = kill_twice(n, m);
          *kills += outcome.reached;
          if (outcome.problems.empty()) continue;
          return "calls " + std::to_string(n) + " and " + std::to_string(m) + ": " + outcome.where +
                 "\n" + outcome.problems;
        }
        return "";
      });
  for (const auto& [i, said] : wrong) ADD_FAILURE() << said;
  std::printf("%d double kills\n", kills->load());
}

}  // namespace
}  // namespace sluice::test
