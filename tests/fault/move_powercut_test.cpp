// SPDX-License-Identifier: BSD-2-Clause
// Power cuts while files are written, fsynced and moved. Tiers and state are on logged disks, so
// that one run can be cut at many instants. Everything fsynced before the cut must exist after it:
// intact, once, with its inode number.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/fault/move_stage.hpp"
#include "tests/support/fault_shim.hpp"
#include "tests/support/files.hpp"
#include "tests/support/logged_disk.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice::test {
namespace {

constexpr int kFiles = 18;
constexpr int kDirectories = 3;

struct Synced {
  std::string name;
  std::string content;
  ino_t inode;
  std::uint64_t position;  // of the log when its fsync returned
};

class MovePowercutTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string type = GetParam();
    if (!require_mounts("fault") || !require_loop("fault", "ext4") ||
        !require_loop("fault", type)) {
      return;
    }
    constexpr std::uint64_t kMiB = 1 << 20;
    disks_ = std::make_unique<LoggedDisks>(
        base_.path(), std::vector<LoggedDisks::Disk>{{"nvme", type, 64 * kMiB},
                                                     {"ssd", type, 64 * kMiB},
                                                     {"hdd", "ext4", 64 * kMiB},
                                                     {"state", "ext4", 64 * kMiB}});
    stage_ = std::make_unique<MoveStage>(base_.path());
  }

  void create(int i, std::mt19937_64& random) {
    const std::string directory = "d" + std::to_string(i % kDirectories);
    const std::string name = directory + "/f" + std::to_string(i);
    ::mkdir(stage_->in_mount(directory).c_str(), 0755);
    // Small files move in batches; a few are larger than a chunk of the copy.
    const std::size_t size = i % 6 == 5 ? 1'500'000 + random() % 1'000'000 : random() % 60'000;
    const std::string content = pattern(size, static_cast<std::uint64_t>(i));
    write_file(stage_->in_mount(name), content);
    const UniqueFd fd(::open(stage_->in_mount(name).c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(::fsync(fd.get()), 0);
    const ino_t inode = lstat_of(stage_->in_mount(name)).st_ino;
    synced_.push_back({name, content, inode, disks_->position()});
  }

  // Creates files and moves them at the same time. `lie`: the mover's syncs do nothing.
  void work(bool lie) {
    std::mt19937_64 random(test_seed());
    FaultShim shim(base_ / "faults");
    Pool pool = stage_->pool();
    for (const std::string& each : shim.environment()) pool.environment.push_back(each);
    Mount mount(pool);
    if (lie) {
      shim.arm({.action = FaultAction::Skip,
                .for_good = true,
                .kinds = static_cast<std::uint32_t>(CallKind::Sync),
                .thread = kMoverThread});
    }
    begin_ = disks_->position();
    for (int i = 0; i < kFiles; ++i) {
      create(i, random);
      // Moves each file to the next tier and then to the one after that, at different times.
      for (int k = 0; k < 2; ++k) {
        const Synced& file = synced_[random() % synced_.size()];
        EXPECT_EQ(send_to(stage_->in_mount(file.name), MoveStage::tiers()[random() % 3]), 0);
      }
      if (i % 4 == 3) wait_for_moves(mount);
    }
    wait_for_moves(mount);
    std::size_t moved = 0;
    for (const Synced& file : synced_) moved += tier_of(stage_->in_mount(file.name)) != "nvme";
    EXPECT_GT(moved, 0u) << "no file was moved, so the test tests nothing";
    end_ = disks_->position();
    mount.umount();
    disks_->stop();
  }

  void wait_for_moves(const Mount& mount) {
    std::vector<std::string> names;
    for (const Synced& file : synced_) names.push_back(file.name);
    EXPECT_TRUE(stage_->wait_for_moves(mount, names));
  }

  // Half of the cuts are at random instants, half next to a flush, which would show a missing
  // flush.
  PowerCut any_cut(std::mt19937_64& random) const {
    std::vector<std::uint64_t> flushes = disks_->flush_positions();
    std::erase_if(flushes, [&](std::uint64_t at) { return at < begin_ || at > end_; });
    PowerCut cut;
    cut.at = begin_ + random() % (end_ - begin_ + 1);
    if (random() % 2 && !flushes.empty())
      cut.at = flushes[random() % flushes.size()] - random() % 2;
    cut.survivors = static_cast<PowerCut::Survivors>(random() % 3);
    cut.seed = random();
    return cut;
  }

  // Returns what is wrong with the pool after a cut.
  std::string judge(const PowerCut& cut) {
    disks_->mount_after(cut);
    std::string out;
    const std::string before = listing() + fsck(stage_->pool()).out;
    std::string recovery;
    {
      Mount mount(stage_->pool());
      for (const Synced& file : synced_) {
        if (file.position <= cut.at) out += judge(file);
      }
      recovery = mount.log();
      mount.umount();
    }
    std::map<std::string, std::string> where;
    for (const std::string& tier : MoveStage::tiers()) {
      for (int d = 0; d < kDirectories; ++d) {
        const std::string directory = "d" + std::to_string(d);
        if (!exists(stage_->on(tier, directory))) continue;
        for (const std::string& name : names_in(stage_->on(tier, directory))) {
          const auto [at, is_first] = where.try_emplace(name, tier);
          if (!is_first) out += name + " is on " + at->second + " and on " + tier + "\n";
        }
      }
      for (const std::string& name : names_in(stage_->on(tier, ".sluice/tmp"))) {
        out += ".sluice/tmp/" + name + " is left on " + tier + "\n";
      }
    }
    const CommandResult report = fsck(stage_->pool());
    if (!report.ok()) out += "fsck: " + report.out + report.err;
    disks_->unmount();
    if (!out.empty()) out += "--- before the mount:\n" + before + "--- its log:\n" + recovery;
    return out;
  }

  // Lists the files on the disks.
  std::string listing() const {
    std::string out;
    for (const std::string& tier : MoveStage::tiers()) {
      for (const char* directory : {"d0", "d1", "d2", ".sluice/tmp"}) {
        const std::string path = stage_->on(tier, directory);
        if (!exists(path)) continue;
        out += tier + "/" + directory + ":";
        for (const std::string& name : names_in(path)) out += " " + name;
        out += "\n";
      }
    }
    return out;
  }

  std::string judge(const Synced& file) const {
    const std::string path = stage_->in_mount(file.name);
    if (!exists(path)) return file.name + " is lost\n";
    std::string out;
    const std::string content = read_file(path);
    if (content != file.content) {
      out += file.name + " has wrong bytes: " + std::to_string(content.size()) + " of " +
             std::to_string(file.content.size()) + ", on " + tier_of(path) + "\n";
    }
    if (lstat_of(path).st_ino != file.inode) out += file.name + " has a different inode number\n";
    return out;
  }

  TempDir base_;
  std::unique_ptr<LoggedDisks> disks_;
  std::unique_ptr<MoveStage> stage_;
  std::vector<Synced> synced_;
  std::uint64_t begin_ = 0, end_ = 0;  // positions at the beginning and the end of the work
};

TEST_P(MovePowercutTest, SyncedFilesAreIntactAndExistOnce) {
  work(false);
  if (HasFailure()) return;
  std::mt19937_64 random(test_seed() + 1);
  const int cuts = samples(24, 600);
  int wrong = 0;
  for (int i = 0; i < cuts && wrong < 5; ++i) {
    const PowerCut cut = any_cut(random);
    const std::string found = judge(cut);
    wrong += !found.empty();
    EXPECT_EQ(found, "") << "after a cut at " << cut.at << " of " << begin_ << ".." << end_
                         << ", survivors " << static_cast<int>(cut.survivors) << ", seed "
                         << cut.seed;
  }
  std::printf("%d cuts of %llu records\n", cuts, static_cast<unsigned long long>(end_ - begin_));
}

INSTANTIATE_TEST_SUITE_P(On, MovePowercutTest, testing::Values("ext4", "xfs"),
                         [](const auto& type) { return std::string(type.param); });

// Checks the test itself: it must detect a mover that does not sync.
class MoveWithoutSyncTest : public MovePowercutTest {};

TEST_P(MoveWithoutSyncTest, IsDetected) {
  work(true);
  if (HasFailure()) return;
  std::mt19937_64 random(test_seed() + 1);
  for (int i = 0; i < rounds(60, 600); ++i) {
    PowerCut cut = any_cut(random);
    cut.survivors = PowerCut::Survivors::None;
    std::string found;
    try {
      found = judge(cut);
    } catch (const std::exception& error) {
      found = error.what();
    }
    if (found.empty()) continue;
    std::printf("detected at cut %d: %s", i, found.c_str());
    return;
  }
  ADD_FAILURE() << "no cut detected the missing syncs";
}

INSTANTIATE_TEST_SUITE_P(On, MoveWithoutSyncTest, testing::Values("ext4"),
                         [](const auto& type) { return std::string(type.param); });

}  // namespace
}  // namespace sluice::test
