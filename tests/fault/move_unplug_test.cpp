// SPDX-License-Identifier: BSD-2-Clause
// A tier goes away during a move: its disk is unplugged, or its filesystem fails. Other files are
// served meanwhile, and when the tier is back nothing is lost.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/fault/move_stage.hpp"
#include "tests/support/fault_shim.hpp"
#include "tests/support/files.hpp"
#include "tests/support/loop_fs.hpp"
#include "tests/support/parallel.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

using std::chrono::seconds;

enum class Loss {
  Unmounted,  // umount -l
  ShutDown,   // every access fails with EIO, and data that was not on the disk is lost
};

// Files move from nvme to hdd; ssd is not involved.
class Scene {
 public:
  Scene() {
    constexpr std::uint64_t kMiB = 1 << 20;
    for (const std::string& tier : MoveStage::tiers()) {
      disks_.push_back(std::make_unique<LoopFs>(base_ / tier, "ext4", 48 * kMiB));
    }
    stage_ = std::make_unique<MoveStage>(base_.path());
    stage_->add({"d/large", "nvme", "hdd"}, 6'000'000);
    stage_->add({"d/small", "nvme", "hdd"}, 3'000);
    stage_->add({"d/e/other", "nvme", "hdd"}, 50'000);
    stage_->add({"d/aside", "ssd", ""}, 200'000);
    ::sync();
    Pool pool = stage_->pool();
    for (const std::string& each : shim_.environment()) pool.environment.push_back(each);
    mount_ = std::make_unique<Mount>(pool);
    stage_->remember();
  }
  ~Scene() { shim_.disarm(); }

  // Removes `tier` before the nth call of the mover (0: only counts calls), brings it back, and
  // returns what is wrong.
  std::string play(Loss loss, const std::string& tier, std::uint64_t n) {
    const std::string aside = read_file(stage_->in_mount("d/aside"));
    shim_.arm({.at = n, .action = FaultAction::Block, .thread = kMoverThread});
    stage_->send_all();
    if (n == 0) {
      stage_->wait_for_moves(*mount_);
      return stage_->not_arrived() + stage_->problems();
    }
    const bool began =
        eventually([&] { return shim_.blocks() || have_moves_ended(); }, seconds(120));
    if (!began) return "the move neither began nor ended\n";
    where_ = shim_.where();
    lose(loss, tier);
    shim_.disarm();

    std::string out;
    if (read_file(stage_->in_mount("d/aside")) != aside)
      out += "files on other tiers are not served\n";
    write_file(stage_->in_mount("d/new"), "while it was away");
    ::unlink(stage_->in_mount("d/new").c_str());
    if (!eventually([&] { return have_moves_ended() || !mentions_moves(); }, seconds(120))) {
      out += "the moves do not end\n";
    }
    if (has_ended(mount_->pid())) return out + "the daemon has ended\n";
    // In half of the runs the tier is back before the daemon has noticed. (A filesystem that is
    // shut down still answers stat, so the daemon notices only when it is unmounted.)
    if (loss == Loss::Unmounted && n % 2 == 0 && !eventually([&] { return !is_online(tier); })) {
      return out + tier + " is not reported offline\n";
    }
    get_back(loss, tier);
    if (!eventually([&] { return is_online(tier); })) return out + tier + " stays offline\n";

    // A second request moves all files. The next mount repairs what was left unfinished.
    stage_->send_all();
    stage_->wait_for_moves(*mount_);
    out += stage_->not_arrived();
    mount_->remount();
    out += stage_->problems();
    mount_->umount();
    return out + stage_->problems_unmounted();
  }

  std::uint64_t calls() const { return shim_.calls(); }
  const std::string& where() const { return where_; }

 private:
  LoopFs& disk(const std::string& tier) {
    const auto& all = MoveStage::tiers();
    return *disks_[static_cast<std::size_t>(std::ranges::find(all, tier) - all.begin())];
  }

  void lose(Loss loss, const std::string& tier) {
    if (loss == Loss::ShutDown) disk(tier).shut_down();
    if (loss == Loss::Unmounted) disk(tier).vanish();
  }

  void get_back(Loss loss, const std::string& tier) {
    if (loss == Loss::ShutDown) {
      disk(tier).vanish();
      // The daemon must notice and close the filesystem first; otherwise the same dead filesystem
      // would be mounted again.
      if (!eventually([&] { return disk(tier).is_free(); }, seconds(120))) {
        throw std::runtime_error("the daemon still uses a filesystem that is gone");
      }
    }
    disk(tier).come_back();
  }

  bool is_online(const std::string& tier) {
    const nlohmann::json status = mount_->status();
    for (const nlohmann::json& each : status.at("tiers")) {
      if (each.at("name") == tier) return each.at("online").get<bool>();
    }
    return false;
  }

  // A file on a tier that is away may not be explained; then it is not moving either.
  bool have_moves_ended() const {
    return std::ranges::all_of(stage_->journeys(), [&](const Journey& journey) {
      const auto said = explain(stage_->in_mount(journey.name));
      return said && said->at("moving").is_null() && said->at("queued").is_null();
    });
  }
  bool mentions_moves() const {
    return std::ranges::any_of(stage_->journeys(), [&](const Journey& journey) {
      const auto said = explain(stage_->in_mount(journey.name));
      return said && !(said->at("moving").is_null() && said->at("queued").is_null());
    });
  }

  TempDir base_;
  std::vector<std::unique_ptr<LoopFs>> disks_;
  std::unique_ptr<MoveStage> stage_;
  FaultShim shim_{base_ / "faults"};
  std::unique_ptr<Mount> mount_;
  std::string where_;
};

struct Case {
  const char* name;
  Loss loss;
  const char* tier;
};

void PrintTo(const Case& given, std::ostream* out) { *out << given.name; }

class MoveUnplugTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    [[maybe_unused]] const bool able = require_mounts("fault") && require_loop("fault", "ext4");
  }
};

TEST_P(MoveUnplugTest, LosesNothingAtAnyCall) {
  const Case& given = GetParam();
  std::uint64_t calls = 0;
  {
    Scene whole;
    ASSERT_EQ(whole.play(given.loss, given.tier, 0), "") << "with nothing unplugged";
    calls = whole.calls();
  }
  ASSERT_GT(calls, 0u);
  const auto most = static_cast<std::uint64_t>(samples(8, 100'000));
  // Odd, so that both kinds of n are included.
  const std::uint64_t stride = std::max<std::uint64_t>(1, calls / most) | 1;
  // Most of the time is spent waiting for the daemon to notice.
  const auto wrong = in_parallel(6, calls / stride, 8, [&](std::uint64_t i) -> std::string {
    const std::uint64_t n = 1 + i * stride;
    Scene scene;
    const std::string said = scene.play(given.loss, given.tier, n);
    return said.empty() ? "" : "call " + std::to_string(n) + ", " + scene.where() + "\n" + said;
  });
  for (const auto& [i, said] : wrong) ADD_FAILURE() << said;
}

INSTANTIATE_TEST_SUITE_P(Of, MoveUnplugTest,
                         testing::Values(Case{"TheSourceUnmounted", Loss::Unmounted, "nvme"},
                                         Case{"TheDestinationUnmounted", Loss::Unmounted, "hdd"},
                                         Case{"TheSourceShutDown", Loss::ShutDown, "nvme"},
                                         Case{"TheDestinationShutDown", Loss::ShutDown, "hdd"}),
                         [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace sluice::test
