// SPDX-License-Identifier: BSD-2-Clause
// kill -9 during operations that change every tier. After the next mount, each operation has
// happened on all tiers or on none, and every acknowledged one has happened.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/child.hpp"
#include "tests/support/files.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/shared.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

constexpr int kDirectories = 6;
constexpr int kSlots = 12;  // the names that directories can have
constexpr std::array kTierNames{"nvme", "ssd", "hdd"};

std::string slot_name(int slot) { return (slot % 2 ? "a/d" : "b/d") + std::to_string(slot); }

// The state of the tree: for each name its directory (by number; -1 if none), and the mode of each
// directory.
struct World {
  std::array<int, kSlots> slots;
  std::array<mode_t, kDirectories> modes;
  bool operator==(const World&) const = default;
};

struct Step {
  enum class Kind { Move, Exchange, Chmod } kind;
  int from;
  int to;
  mode_t mode;
};

// Chooses a random next step and applies it to `world`.
Step next_step(World& world, std::mt19937_64& random) {
  int from = 0;
  do {
    from = static_cast<int>(random() % kSlots);
  } while (world.slots[from] < 0);
  if (random() % 4 == 0) {
    const mode_t mode = 0700 + random() % 64;
    world.modes[world.slots[from]] = mode;
    return {Step::Kind::Chmod, from, from, mode};
  }
  int to = from;
  while (to == from) to = static_cast<int>(random() % kSlots);
  const bool exchange = world.slots[to] >= 0;
  std::swap(world.slots[from], world.slots[to]);
  return {exchange ? Step::Kind::Exchange : Step::Kind::Move, from, to, 0};
}

int perform(const std::string& root, const Step& step) {
  const std::string from = root + "/" + slot_name(step.from);
  if (step.kind == Step::Kind::Chmod) return ::chmod(from.c_str(), step.mode);
  const unsigned flags = step.kind == Step::Kind::Exchange ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, (root + "/" + slot_name(step.to)).c_str(),
                     flags);
}

std::string shown(const World& world) {
  std::string out;
  for (int slot = 0; slot < kSlots; ++slot) {
    const int directory = world.slots[slot];
    if (directory < 0) continue;
    char line[64];
    std::snprintf(line, sizeof line, "  %s: directory %d, mode %o\n", slot_name(slot).c_str(),
                  directory, world.modes[directory]);
    out += line;
  }
  return out;
}

class KillDuringRenameTest : public testing::Test {
 protected:
  struct Progress {
    std::atomic<int> acknowledged{0};  // steps that succeeded
    std::atomic<int> error{0};         // errno of the first step that failed
  };

  void SetUp() override {
    if (!require_mounts("fault")) return;
    Pool pool{{}, base_ / "state", base_ / "mnt"};
    for (const char* tier : kTierNames) {
      pool.tiers.push_back(std::string(tier) + "=" + base_.make_dir(tier));
      base_.make_dir(std::string(tier) + "/a");
      base_.make_dir(std::string(tier) + "/b");
      for (int d = 0; d < kDirectories; ++d) {
        base_.make_file(std::string(tier) + "/" + slot_name(d) + "/on-" + tier, std::to_string(d));
      }
    }
    mount_ = std::make_unique<Mount>(pool);
  }

  // Reads the tree below `root`. Each directory must contain exactly the files of `tiers`.
  World observe(const std::string& root, const std::vector<std::string>& tiers) {
    World world{};
    world.modes.fill(0);
    for (int slot = 0; slot < kSlots; ++slot) {
      const std::string path = root + "/" + slot_name(slot);
      world.slots[slot] = -1;
      if (!exists(path)) continue;
      std::vector<std::string> expected;
      for (const std::string& tier : tiers) expected.push_back("on-" + tier);
      std::ranges::sort(expected);
      EXPECT_EQ(names_in(path), expected) << path;
      for (const std::string& name : names_in(path)) {
        const int directory = std::stoi(read_file(path + "/" + name));
        EXPECT_TRUE(world.slots[slot] < 0 || world.slots[slot] == directory)
            << path << " mixes directories " << directory << " and " << world.slots[slot];
        world.slots[slot] = directory;
        world.modes[directory] = lstat_of(path).st_mode & 07777;
      }
    }
    return world;
  }

  TempDir base_;
  std::unique_ptr<Mount> mount_;
};

TEST_F(KillDuringRenameTest, EveryStepHappensOnAllTiersOrOnNone) {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 choices(seed);
  int in_flight = 0;
  const int count = rounds(20, 400);
  for (int round = 0; round < count; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const World start = observe(mount_->path(), {"nvme", "ssd", "hdd"});
    const std::uint64_t steps_seed = choices();
    const int target = 5 + static_cast<int>(choices() % 60);
    const std::chrono::nanoseconds delay(choices() % 1'500'000);
    const Shared<Progress> progress;
    {
      Child worker([&] {
        std::mt19937_64 random(steps_seed);
        for (World world = start;;) {
          const Step step = next_step(world, random);
          if (perform(mount_->path(), step) < 0) {
            progress->error = errno;
            return;
          }
          ++progress->acknowledged;
        }
      });
      ASSERT_TRUE(
          eventually([&] { return progress->acknowledged >= target || progress->error != 0; },
                     std::chrono::seconds(60)))
          << "only " << progress->acknowledged << " steps";
      ASSERT_EQ(progress->error, 0) << errno_name(progress->error) << " before the kill";
      // Kills somewhere inside a step. A busy wait, because a step takes microseconds.
      const auto moment = std::chrono::steady_clock::now() + delay;
      while (std::chrono::steady_clock::now() < moment) {
      }
      mount_->kill_daemon();
      EXPECT_TRUE(worker.join()) << "the worker hangs on a dead mount";
    }
    mount_->detach();
    ASSERT_NO_THROW(mount_->mount());

    World before = start;
    std::mt19937_64 random(steps_seed);
    for (int step = 0; step < progress->acknowledged; ++step) next_step(before, random);
    World after = before;
    next_step(after, random);
    const World found = observe(mount_->path(), {"nvme", "ssd", "hdd"});
    in_flight += found == after;
    EXPECT_TRUE(found == before || found == after) << "acknowledged:\n"
                                                   << shown(before) << "or with one more step:\n"
                                                   << shown(after) << "found:\n"
                                                   << shown(found);
    for (const char* tier : kTierNames) {
      EXPECT_EQ(shown(observe(base_ / tier, {tier})), shown(found)) << "on tier " << tier;
    }
    if (HasFailure()) return;
  }
  mount_->umount();
  std::vector<std::string> arguments = mount_->pool().fsck_arguments();
  arguments.insert(arguments.begin(), "fsck");
  const CommandResult report = sluice(arguments);
  EXPECT_EQ(report.exit_code, 0) << report.out << report.err;
  std::printf("%d of %d kills interrupted a step that was finished by the next mount\n", in_flight,
              count);
}

}  // namespace
}  // namespace sluice::test
