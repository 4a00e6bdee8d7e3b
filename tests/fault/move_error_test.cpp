// SPDX-License-Identifier: BSD-2-Clause
// An error at every step of the mover: its 1st call on a tier fails, its 2nd, ... up to the last;
// once, or from then on. The file stays intact, the reason is reported, and nothing spins. Data
// written to the file afterwards is not lost to a copy that the failed move left behind. After the
// fault is gone, the move succeeds.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <ostream>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/unique_fd.hpp"
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

struct Case {
  const char* name;
  const char*
      where;  // below the base directory: the source, the destination or the state directory
  int error;
  std::uint32_t kinds;
  bool for_good;
};

void PrintTo(const Case& given, std::ostream* out) { *out << given.name; }

struct Outcome {
  bool reached = false;
  std::uint64_t calls = 0;
  std::string where;
  std::string problems;
};

// A separate pool for each fault.
class Scene {
 public:
  explicit Scene(const Case& given) : given_(given) { stage_.lay_out_few(); }

  // Runs the moves with a fault in call `n` (0: no fault). `usual` is the number of calls without a
  // fault.
  Outcome play(std::uint64_t n, std::uint64_t usual) {
    Pool pool = stage_.pool();
    for (const std::string& each : shim_.environment()) pool.environment.push_back(each);
    Mount mount(pool);
    stage_.remember();
    shim_.arm({.at = n,
               .error = given_.error,
               .for_good = given_.for_good,
               .kinds = given_.kinds,
               .thread = kMoverThread,
               .path = base_ / given_.where});
    stage_.send_all();
    if (!stage_.wait_for_moves(mount)) return {false, 0, shim_.where(), "the moves do not end\n"};
    Outcome outcome{shim_.reached(), shim_.calls(), shim_.where(), ""};
    if (n == 0) {
      outcome.problems = stage_.not_arrived() + stage_.problems();
      return outcome;
    }
    outcome.problems = look_at_failure(n, usual);
    shim_.disarm();

    write_to_each();
    // If the store failed, only a new mount uses it again.
    if (n % 2 == 0 || given_.where == std::string("state")) {
      mount.remount();
      outcome.problems += title("after a remount", stage_.problems_at_rest(mount));
    }
    stage_.send_all();
    stage_.wait_for_moves(mount);
    // A file that could not be removed is removed within about a second.
    std::string left;
    eventually(
        [&] {
          left = stage_.not_arrived() + stage_.problems();
          return left.empty();
        },
        std::chrono::seconds(10));
    outcome.problems += title("after the fault was gone", left);
    mount.remount();  // finishes intents and removes temporaries that could not be removed before
    mount.umount();
    outcome.problems += title("at the end", stage_.problems_unmounted());
    return outcome;
  }

 private:
  static std::string title(const std::string& when, const std::string& found) {
    return found.empty() ? "" : when + ":\n" + found;
  }

  std::string look_at_failure(std::uint64_t n, std::uint64_t usual) {
    std::string out;
    const std::uint64_t calls = shim_.calls();
    // Cleaning up after an error may take some more calls than success.
    if (calls > 2 * usual + 40) out += std::to_string(calls) + " calls: does it spin?\n";
    if (n % 8 == 1) {
      std::this_thread::sleep_for(
          std::chrono::milliseconds(300));  // time in which a spin would make calls
      if (shim_.calls() > calls + usual) out += "it spins\n";
    }
    for (const Journey& journey : stage_.journeys()) {
      const std::string tier = tier_of(stage_.in_mount(journey.name));
      if (tier == journey.to) continue;
      const auto said = explain(stage_.in_mount(journey.name));
      if (tier.empty() || !said) {
        out += journey.name + " cannot be explained\n";
      } else if (said->at("pending").is_null() || said->at("pending").at("why") == "") {
        out += journey.name + " has no reason why it did not move: " + said->dump() + "\n";
      }
    }
    // With a permanent fault, a second copy may stay because it cannot be removed.
    if (given_.for_good) return out;
    // The move may be tried again at this moment, and then a file has both names for a while.
    std::string found;
    eventually([&] { return (found = stage_.problems()).empty(); }, std::chrono::seconds(30));
    return out + title("right after the fault", found);
  }

  // Writes to each file, as a user would.
  void write_to_each() {
    for (const Journey& journey : stage_.journeys()) {
      const std::string path = stage_.in_mount(journey.name);
      const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
      if (::write(fd.get(), "written later", 13) != 13) throw std::runtime_error("write " + path);
    }
    stage_.remember();
  }

  Case given_;
  TempDir base_;
  MoveStage stage_{base_.path()};
  FaultShim shim_{base_ / "faults"};
};

class MoveErrorTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { [[maybe_unused]] const bool able = require_mounts("fault"); }
};

TEST_P(MoveErrorTest, AnErrorAtAnyCallFailsOnlyTheMove) {
  const Outcome whole = Scene(GetParam()).play(0, 0);
  ASSERT_EQ(whole.problems, "") << "without a fault";
  ASSERT_GT(whole.calls, 0u) << "no call of a thread named " << kMoverThread << " was seen";

  const auto most = static_cast<std::uint64_t>(samples(12, 100'000));
  // Odd, so that both kinds of runs are included.
  const std::uint64_t stride = std::max<std::uint64_t>(1, whole.calls / most) | 1;
  const Shared<std::atomic<int>> failed;
  const auto wrong = in_parallel(4, whole.calls / stride, 12, [&](std::uint64_t i) -> std::string {
    const std::uint64_t n = 1 + i * stride;
    const Outcome outcome = Scene(GetParam()).play(n, whole.calls);
    *failed += outcome.reached;
    if (outcome.problems.empty()) return "";
    return "call " + std::to_string(n) + ": " + outcome.where + "\n" + outcome.problems;
  });
  for (const auto& [i, said] : wrong) ADD_FAILURE() << said;
  std::printf("%d calls failed, one in %llu of %llu\n", failed->load(),
              static_cast<unsigned long long>(stride),
              static_cast<unsigned long long>(whole.calls));
}

// The files of lay_out_few() move from nvme to hdd and from ssd to nvme.
INSTANTIATE_TEST_SUITE_P(Of, MoveErrorTest,
                         testing::Values(Case{"NoRoomOnce", "hdd", ENOSPC, kEffects, false},
                                         Case{"NoRoom", "hdd", ENOSPC, kEffects, true},
                                         Case{"NoRoomForLinks", "nvme", ENOSPC, kEffects, true},
                                         Case{"QuotaOnce", "nvme", EDQUOT, kEffects, false},
                                         Case{"DestinationIo", "hdd", EIO, kAllCalls, true},
                                         Case{"DestinationIoOnce", "hdd", EIO, kAllCalls, false},
                                         Case{"SourceIo", "ssd", EIO, kAllCalls, true},
                                         Case{"SourceIoOnce", "ssd", EIO, kAllCalls, false},
                                         Case{"SourceReadOnly", "ssd", EROFS, kEffects, true},
                                         Case{"DestinationReadOnly", "hdd", EROFS, kEffects, true},
                                         Case{"Store", "state", EIO, kEffects, true}),
                         [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace sluice::test
