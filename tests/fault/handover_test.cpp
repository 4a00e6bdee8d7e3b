// SPDX-License-Identifier: BSD-2-Clause
// kill -9 of the daemon while programs use the mount: a successor takes over, and no program sees
// an error, a wrong byte or a hang.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>

#include "tests/fault/daemon_killer.hpp"
#include "tests/fault/handover_loads.hpp"
#include "tests/fault/tree_stage.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

std::int64_t nanoseconds(steady_clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

// How long the mount does not answer after a kill or during an upgrade.
struct Pauses {
  std::atomic<std::int64_t> killed{0};  // 0: a request has been answered since
  std::atomic<std::uint64_t> asked{0};
  std::atomic<std::int64_t> longest{0};  // of the answers since it was set to 0; nanoseconds
  std::atomic<std::size_t> count{0};
  std::array<std::int64_t, 20'000> lengths{};  // nanoseconds

  void add(std::int64_t length) { lengths[count++ % lengths.size()] = length; }
};

// Asks for names that do not exist, so that every question is a request.
void ask(Load& load, Pauses& pauses) {
  while (load.next()) {
    const std::string path = load.directory + "/" + std::to_string(load.random());
    const std::int64_t began = nanoseconds(steady_clock::now());
    struct stat st {};
    Load::expect(::lstat(path.c_str(), &st) < 0 && errno == ENOENT, "lstat " + path);
    const std::int64_t took = nanoseconds(steady_clock::now()) - began;
    if (took > pauses.longest) pauses.longest = took;
    ++pauses.asked;
    std::int64_t killed = pauses.killed;
    if (killed != 0 && began >= killed) {
      const std::int64_t length = nanoseconds(steady_clock::now()) - killed;
      if (pauses.killed.compare_exchange_strong(killed, 0)) pauses.add(length);
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void print_pauses(const Pauses& pauses, const char* when) {
  std::vector<std::int64_t> lengths(pauses.lengths.begin(),
                                    pauses.lengths.begin() + static_cast<long>(pauses.count));
  if (lengths.empty()) return;
  std::sort(lengths.begin(), lengths.end());
  const auto at = [&](double part) {
    const auto index = static_cast<std::size_t>(part * static_cast<double>(lengths.size() - 1));
    return static_cast<double>(lengths[index]) / 1e6;
  };
  std::printf("no answer %s, in ms: p50 %.1f, p90 %.1f, p99 %.1f, worst %.1f (%zu times)\n", when,
              at(0.5), at(0.9), at(0.99), at(1), lengths.size());
}

std::string last_part(const std::string& text) {
  constexpr std::size_t kMost = 3000;
  return text.substr(text.size() > kMost ? text.size() - kMost : 0);
}

struct NamedLoad {
  std::string name;
  std::function<void(Load&)> work;
};

std::vector<NamedLoad> byte_loads() {
  return {{"small", [](Load& load) { change_bytes(load, 30'000); }},
          {"large", [](Load& load) { change_bytes(load, 3'000'000); }},
          {"nameless", change_nameless_files},
          {"append", append_together}};
}

std::vector<NamedLoad> name_loads() {
  return {{"names1", change_names},
          {"names2", change_names},
          {"tree", [](Load& load) { storm_on_tree(load, MoveStage::tiers()); }},
          {"listing", list_names}};
}

std::vector<NamedLoad> program_loads() {
  return {
      {"xattrs", change_xattrs}, {"locks", hold_locks}, {"sqlite", use_sqlite}, {"git", use_git}};
}

// $SLUICE_LOADS, a list of names separated by commas, chooses among the loads.
bool is_chosen(const std::string& name) {
  const char* chosen = std::getenv("SLUICE_LOADS");
  return chosen == nullptr ||
         ("," + std::string(chosen) + ",").find("," + name + ",") != std::string::npos;
}

struct HandoverCase {
  const char* name;
  std::vector<NamedLoad> (*loads)();
  std::vector<std::string> flags;
};

void PrintTo(const HandoverCase& given, std::ostream* out) { *out << given.name; }

class HandoverTest : public testing::TestWithParam<HandoverCase> {
 protected:
  void SetUp() override {
    ::umask(0);
    [[maybe_unused]] const bool able = require_mounts("fault");
  }

  // Waits until a request was answered after the last kill, or a load has failed. Returns the
  // problem. On a slow disk, a request may take longer than the time between two kills and would
  // never be answered, so this also waits for loads that are held up.
  static std::string wait_for_answer(LoadGroup& loads, const Pauses& pauses) {
    std::string problem;
    const bool answered = eventually(
        [&] {
          problem = loads.problem();
          return (pauses.killed == 0 && !loads.is_held_up()) || !problem.empty();
        },
        seconds(90));
    return answered || !problem.empty() ? problem : "the mount does not answer";
  }

  // Runs the loads of the case. `disturb` is called as long as kills or upgrades are left; it
  // counts them down and returns the problem that it saw.
  using Disturb =
      std::function<std::string(Mount& mount, LoadGroup& loads, Pauses& pauses, int& left)>;
  static void run_loads(int left, const char* when, const Disturb& disturb) {
    std::vector<std::string> flags = GetParam().flags;
    flags.insert(flags.end(), {"--debug=crash_limit=0", "--no-migrate"});
    const TreeStage stage(flags, FaultShim::Afterwards::Successor);
    Mount mount(stage.pool());
    const Shared<Pauses> pauses;
    std::string problem;
    {
      LoadGroup loads(mount.path(), test_seed());
      for (const NamedLoad& load : GetParam().loads()) {
        if (is_chosen(load.name)) loads.add(load.name, load.work);
      }
      loads.add("ask", [&](Load& load) { ask(load, *pauses); });
      if (is_chosen("move"))
        loads.add("move", [&](Load& load) { move_files(load, mount.path(), MoveStage::tiers()); });
      // A load that begins with thousands of files needs minutes with a sanitizer on a busy
      // machine.
      const bool started = eventually([&] { return loads.least_steps() > 0; }, seconds(300));
      problem = started ? loads.problem() : "a load does not start: " + loads.progress();
      while (problem.empty() && left > 0) problem = disturb(mount, loads, *pauses, left);
      if (problem.empty()) problem = loads.stop();
      std::printf("steps: %s\n", loads.progress().c_str());
      print_pauses(*pauses, when);
      if (!problem.empty()) problem += "the log ends:\n" + last_part(mount.log());
    }
    ASSERT_TRUE(no_problem(problem));
    mount.umount();
    EXPECT_TRUE(no_problem(stage.problems_unmounted()));
  }
};

TEST_P(HandoverTest, NoProgramNoticesThatTheDaemonIsKilled) {
  std::mt19937_64 random(test_seed());
  run_loads(samples(25, 1000), "after a kill",
            [&](Mount& mount, LoadGroup& loads, Pauses& pauses, int& left) {
              DaemonKiller killer(mount.keeper());
              // Waits for nothing: the moment of the kill is random. A fifth of them come while a
              // successor starts, some within milliseconds.
              std::this_thread::sleep_for(milliseconds(random() % 1200));
              const int burst = random() % 5 == 0 ? 1 + static_cast<int>(random() % 4) : 1;
              for (int i = 0; i < burst && left > 0; ++i, --left) {
                if (i > 0) std::this_thread::sleep_for(milliseconds(random() % 60));
                pauses.killed = 0;
                pauses.killed = nanoseconds(killer.kill());
              }
              return wait_for_answer(loads, pauses);
            });
}

TEST_P(HandoverTest, NoProgramNoticesAnUpgrade) {
  run_loads(samples(5, 100), "in an upgrade",
            [&](Mount& mount, LoadGroup& loads, Pauses& pauses, int& left) {
              pauses.longest = 0;
              --left;
              const CommandResult result = sluice({"restart", mount.path()});
              if (!result.ok()) return "sluice restart: " + result.err;
              // The question that waited has been answered when two more have been.
              const std::uint64_t asked = pauses.asked;
              const bool answered =
                  eventually([&] { return pauses.asked > asked + 1 || !loads.problem().empty(); },
                             seconds(60));
              pauses.add(pauses.longest);
              return answered ? loads.problem() : "the mount does not answer after an upgrade";
            });
}

INSTANTIATE_TEST_SUITE_P(
    With, HandoverTest,
    testing::Values(HandoverCase{"Bytes", byte_loads, {}},
                    HandoverCase{"BytesServed", byte_loads, {"--debug=passthrough=off"}},
                    HandoverCase{"Names", name_loads, {}},
                    HandoverCase{"NamesServed", name_loads, {"--debug=passthrough=off"}},
                    HandoverCase{"Programs", program_loads, {}},
                    HandoverCase{"ProgramsServed", program_loads, {"--debug=passthrough=off"}}),
    [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace sluice::test
