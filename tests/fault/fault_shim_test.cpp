// SPDX-License-Identifier: BSD-2-Clause
// Tests of the fault shim itself, with dd, whose calls are all known.
#include "tests/support/fault_shim.hpp"

#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "tests/support/command.hpp"
#include "tests/support/files.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

constexpr auto kWrites = static_cast<std::uint32_t>(CallKind::Write);

class FaultShimTest : public testing::Test {
 protected:
  // Writes eight blocks of a KiB to a file.
  CommandResult write_eight() {
    std::vector<std::string> arguments{"env"};
    for (const std::string& each : shim_.environment()) arguments.push_back(each);
    arguments.insert(arguments.end(), {"dd", "if=/dev/zero", "of=" + file_, "bs=1k", "count=8"});
    return run_command(arguments);
  }
  Fault fault_at(std::uint64_t n, FaultAction action) {
    return {.at = n, .action = action, .error = ENOSPC, .kinds = kWrites, .path = base_ / "disk"};
  }
  off_t blocks() { return lstat_of(file_).st_size / 1024; }

  TempDir base_;
  FaultShim shim_{base_ / "faults"};
  std::string file_ = base_.make_dir("disk") + "/f";
};

TEST_F(FaultShimTest, KillsBeforeTheCall) {
  shim_.arm(fault_at(3, FaultAction::KillBefore));
  EXPECT_EQ(write_eight().exit_code, 128 + SIGKILL);
  EXPECT_EQ(blocks(), 2);
  EXPECT_EQ(shim_.where(), "write of " + file_);
}

TEST_F(FaultShimTest, KillsAfterTheCall) {
  shim_.arm(fault_at(3, FaultAction::KillAfter));
  EXPECT_EQ(write_eight().exit_code, 128 + SIGKILL);
  EXPECT_EQ(blocks(), 3);
}

TEST_F(FaultShimTest, FailsTheCallOnce) {
  shim_.arm(fault_at(3, FaultAction::Fail));
  const CommandResult result = write_eight();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("No space left"), std::string::npos) << result.err;
  EXPECT_EQ(blocks(), 2);
  EXPECT_TRUE(shim_.reached());
  EXPECT_EQ(write_eight().exit_code, 0) << "more than one call fails";
}

TEST_F(FaultShimTest, FailsEveryCallFromThenOn) {
  Fault fault = fault_at(3, FaultAction::Fail);
  fault.for_good = true;
  shim_.arm(fault);
  EXPECT_EQ(write_eight().exit_code, 1);
  EXPECT_EQ(write_eight().exit_code, 1);
  EXPECT_EQ(blocks(), 0);
  shim_.disarm();
  EXPECT_EQ(write_eight().exit_code, 0);
}

TEST_F(FaultShimTest, ReportsThatTheCallWasNotReached) {
  shim_.arm(fault_at(9, FaultAction::KillBefore));
  EXPECT_EQ(write_eight().exit_code, 0);
  EXPECT_FALSE(shim_.reached());
  EXPECT_EQ(shim_.calls(), 8u);
}

TEST_F(FaultShimTest, BlocksTheCallUntilDisarmed) {
  shim_.arm(fault_at(3, FaultAction::Block));
  CommandResult result{};
  std::jthread program([&] { result = write_eight(); });
  EXPECT_TRUE(eventually([&] { return shim_.blocks(); }));
  EXPECT_EQ(blocks(), 2);
  shim_.disarm();
  program.join();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(blocks(), 8);
}

TEST_F(FaultShimTest, IgnoresOtherThreadsPathsAndKinds) {
  Fault thread = fault_at(1, FaultAction::Fail);
  thread.thread = "mover";
  Fault path = fault_at(1, FaultAction::Fail);
  path.path = base_ / "dis";
  Fault kind = fault_at(1, FaultAction::Fail);
  kind.kinds = static_cast<std::uint32_t>(CallKind::Rename);
  for (const Fault& fault : {thread, path, kind}) {
    shim_.arm(fault);
    EXPECT_EQ(write_eight().exit_code, 0);
    EXPECT_EQ(shim_.calls(), 0u);
  }
  Fault same = fault_at(1, FaultAction::Fail);
  same.thread = "d";  // dd
  shim_.arm(same);
  EXPECT_EQ(write_eight().exit_code, 1);
}

TEST_F(FaultShimTest, CountsTheDaemonsCallsOnATier) {
  if (!require_mounts("fault")) return;
  Pool pool{{"nvme=" + base_.make_dir("nvme")}, base_ / "state", base_ / "mnt"};
  pool.environment = shim_.environment();
  const Mount mount(pool);
  shim_.arm({.at = 0, .path = base_ / "nvme"});
  write_file(mount / "f", "x");
  EXPECT_GE(shim_.calls(), 1u);  // the create, by syscall(SYS_openat2) or openat
  shim_.arm({.at = 1, .error = EDQUOT, .path = base_ / "nvme"});
  EXPECT_THROW(write_file(mount / "g", "x"), std::system_error);
  EXPECT_FALSE(exists(base_ / "nvme/g"));
}

}  // namespace
}  // namespace sluice::test
