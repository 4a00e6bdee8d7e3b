// SPDX-License-Identifier: BSD-2-Clause
// kill -9 at every step of 'sluice tier replace': before the daemon's 1st call that changes
// something, its 2nd, ... until a run ends before the nth. The operator then does what the
// documents say: mounts without the dead disk and asks again, or mounts with the new one.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/fault_shim.hpp"
#include "tests/support/files.hpp"
#include "tests/support/loop_fs.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/parallel.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/shared.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

constexpr int kPools = 3;           // in parallel, because a run mostly waits for disks
constexpr std::size_t kEnough = 4;  // stop after this many failures
constexpr std::uint64_t kDisk = 16 << 20;

struct Outcome {
  bool reached = false;
  std::uint64_t calls = 0;
  std::string where;
  std::string problems;
};

// A pool whose middle disk dies, and the disk that takes its place.
class Stage {
 public:
  Stage() {
    pool_.tiers = {"nvme=" + base_.make_dir("nvme"), "ssd=" + dead_.path(),
                   "hdd=" + base_.make_dir("hdd")};
    for (const std::string& each : shim_.environment()) pool_.environment.push_back(each);
    for (const char* tier : {"nvme", "dead", "hdd"}) {
      base_.make_dir(std::string(tier) + "/d");
      write_file(base_ / tier + "/d/" + tier, tier);
    }
  }

  Outcome run(std::uint64_t n, FaultAction action) {
    Outcome outcome;
    {
      Mount mount(pool_);
      ::mkdir((mount / "kept").c_str(), 0755);
      ::setxattr((mount / "kept").c_str(), "user.sluice.pin", "ssd", 3, 0);
      read_file(mount / "d/dead");  // so that it is known, and listed as lost
      dead_.vanish();
      if (!eventually([&] { return !is_online(mount); }))
        return {false, 0, "", "ssd is not lost\n"};
      // A change while the disk is away.
      ::unlink((mount / "d/hdd").c_str());
      write_file(mount / "d/hdd", "newer");
      shim_.arm({.at = n, .action = action, .path = base_.path()});
      const CommandResult said = replace(mount);
      outcome = {shim_.reached(), shim_.calls(), shim_.where(), ""};
      shim_.disarm();
      if (!outcome.reached && said.exit_code != 0) outcome.problems += said.err;
      if (outcome.reached) {
        mount.kill_daemon();
        mount.detach();
      } else {
        mount.umount();
      }
    }
    Pool changed = pool_;
    changed.tiers[1] = "ssd=" + fresh_.path();
    if (outcome.reached && (n % 2 == 0 || !is_done(changed, outcome.problems)))
      outcome.problems += repeat();
    {
      const Mount mount(changed);
      outcome.problems += wrong(mount);
    }
    const CommandResult report = fsck(changed);
    if (report.exit_code != 0) outcome.problems += report.out + report.err;
    return outcome;
  }

 private:
  static bool is_online(const Mount& mount) {
    return mount.status().at("tiers").at(1).at("online").get<bool>();
  }
  CommandResult replace(const Mount& mount) const {
    return sluice({"tier", "replace", "ssd=" + fresh_.path(), mount.path()});
  }

  // Whether the pool can be mounted with the new disk. If not, the error must say what to do.
  static bool is_done(const Pool& changed, std::string& problems) {
    try {
      const Mount mount(changed);
      return true;
    } catch (const std::exception& error) {
      const std::string why = error.what();
      if (why.find("sluice tier replace ssd=") == std::string::npos) problems += why + "\n";
      return false;
    }
  }

  // Mounts without the dead disk, and asks again.
  std::string repeat() {
    Pool degraded = pool_;
    degraded.flags.emplace_back("--degraded");
    const Mount mount(degraded);
    const CommandResult said = replace(mount);
    return said.exit_code == 0 ? wrong(mount) : "asked again: " + said.err;
  }

  // What is wrong with the pool after the disk was replaced.
  std::string wrong(const Mount& mount) const {
    std::string problems;
    const auto expect = [&](bool is_right, const std::string& what) {
      if (!is_right) problems += what + "\n";
    };
    const nlohmann::json tiers = mount.status().at("tiers");
    expect(tiers.size() == 3, "there are not three tiers: " + tiers.dump());
    expect(tiers.at(1).at("path") == fresh_.path(), "ssd is not the new disk");
    expect(eventually([&] { return is_online(mount); }), "ssd is not online");
    expect(names_in(mount / "d") == std::vector<std::string>{"hdd", "nvme"}, "wrong names");
    expect(read_file(mount / "d/nvme") == "nvme", "d/nvme is wrong");
    expect(read_file(mount / "d/hdd") == "newer", "d/hdd is wrong");
    write_file(mount / "kept/file", "pinned");
    expect(exists(fresh_.path() + "/kept/file"), "the pin does not lead to the new disk");
    const CommandResult lost = sluice({"tier", "lost", "ssd", mount.path()});
    expect(lost.out.find("d/dead") != std::string::npos, "d/dead is not listed: " + lost.out);
    return problems;
  }

  TempDir base_;
  LoopFs dead_{base_ / "dead", "ext4", kDisk}, fresh_{base_ / "new", "ext4", kDisk};
  FaultShim shim_{base_ / "faults"};
  Pool pool_{{}, base_ / "state", base_ / "mnt"};
};

class ReplaceKillTest : public testing::Test {
 protected:
  void SetUp() override {
    [[maybe_unused]] const bool able = require_mounts("fault") && require_loop("fault", "ext4");
  }

  // Kills at every call of a run, or at `most` calls at equal distances.
  static void kill_everywhere(FaultAction action, std::uint64_t most) {
    const Outcome whole = Stage().run(0, action);
    ASSERT_EQ(whole.problems, "") << "without any fault";
    ASSERT_GT(whole.calls, 0u);
    const std::uint64_t stride = std::max<std::uint64_t>(1, (whole.calls + most - 1) / most);
    const Shared<std::atomic<int>> kills;
    const auto wrong =
        in_parallel(kPools, (whole.calls + stride - 1) / stride, kEnough, [&](std::uint64_t i) {
          const std::uint64_t n = 1 + i * stride;
          const Outcome outcome = Stage().run(n, action);
          *kills += outcome.reached;
          if (outcome.problems.empty()) return std::string();
          return "call " + std::to_string(n) + ": " + outcome.where + "\n" + outcome.problems;
        });
    for (const auto& [i, said] : wrong) ADD_FAILURE() << said;
    EXPECT_GT(*kills, 0);
    std::printf("%d kills, at one in %llu of %llu calls\n", kills->load(),
                static_cast<unsigned long long>(stride),
                static_cast<unsigned long long>(whole.calls));
  }
};

TEST_F(ReplaceKillTest, ADiskCanBeReplacedAfterAKillBeforeAnyCall) {
  kill_everywhere(FaultAction::KillBefore, samples(40, 100'000));
}

TEST_F(ReplaceKillTest, ADiskCanBeReplacedAfterAKillAfterAnyCall) {
  kill_everywhere(FaultAction::KillAfter, samples(8, 100'000));
}

}  // namespace
}  // namespace sluice::test
