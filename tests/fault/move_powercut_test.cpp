// SPDX-License-Identifier: BSD-2-Clause
// Power cuts while files are written, fsynced, moved, and moved back with their twins. Tiers and
// state are on logged disks, so that one run can be cut at many instants. Everything fsynced before
// the cut must exist after it: intact, once, with its inode number.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
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

// One content of a file. All contents of a file have the same size.
struct Version {
  std::string content;
  std::uint64_t begun, synced;  // positions of the log before the write and after its fsync
  std::string times;            // of the file, after the fsync
};

struct Synced {
  std::string name;
  ino_t inode;
  std::vector<Version> versions;

  std::uint64_t position() const { return versions[0].synced; }
};

// Ctime and time of birth.
std::string times_of(const std::string& path) {
  struct statx st {};
  if (::statx(AT_FDCWD, path.c_str(), 0, STATX_CTIME | STATX_BTIME, &st) < 0)
    return errno_name(errno);
  const auto text = [](const statx_timestamp& time) {
    return std::to_string(time.tv_sec) + "s " + std::to_string(time.tv_nsec) + "ns";
  };
  return "ctime " + text(st.stx_ctime) + ", born " + text(st.stx_btime);
}

// What may be in the file after a cut at `at`: the last version that was synced before, and later
// ones.
std::vector<const Version*> possible_versions(const Synced& file, std::uint64_t at) {
  std::vector<const Version*> possible;
  for (const Version& each : file.versions) {
    if (each.synced <= at) possible.clear();
    if (each.begun <= at) possible.push_back(&each);
  }
  return possible;
}

// What is wrong with `found` after a cut at `at`: a block may be of any possible version.
std::string compare(const Synced& file, const std::string& found, std::uint64_t at) {
  const std::vector<const Version*> possible = possible_versions(file, at);
  if (found.size() != file.versions[0].content.size())
    return "has " + std::to_string(found.size()) + " bytes";
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool is_known = std::ranges::any_of(
        possible, [&](const Version* version) { return version->content[i] == found[i]; });
    if (is_known) continue;
    const bool is_old = std::ranges::any_of(
        file.versions, [&](const Version& version) { return version.content[i] == found[i]; });
    return (is_old ? "has bytes of another version at " : "has wrong bytes at ") +
           std::to_string(i);
  }
  return "";
}

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
    const std::uint64_t begun = disks_->position();
    write_file(stage_->in_mount(name), content);
    const UniqueFd fd(::open(stage_->in_mount(name).c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(::fsync(fd.get()), 0);
    const ino_t inode = lstat_of(stage_->in_mount(name)).st_ino;
    const std::uint64_t synced = disks_->position();
    synced_.push_back({name, inode, {{content, begun, synced, times_of(stage_->in_mount(name))}}});
  }

  // Writes a piece of the file anew, sometimes with the mtime of before.
  void rewrite(Synced& file, std::mt19937_64& random) {
    std::string content = file.versions.back().content;
    if (content.empty()) return;
    const std::size_t at = random() % content.size();
    const std::string piece =
        pattern(std::min<std::size_t>(content.size() - at, 1 + random() % 20'000), random());
    content.replace(at, piece.size(), piece);
    const std::uint64_t begun = disks_->position();
    const UniqueFd fd(::open(stage_->in_mount(file.name).c_str(), O_RDWR | O_CLOEXEC));
    struct stat st {};
    ASSERT_EQ(::fstat(fd.get(), &st), 0);
    ASSERT_EQ(::pwrite(fd.get(), piece.data(), piece.size(), static_cast<off_t>(at)),
              static_cast<ssize_t>(piece.size()));
    const std::array<timespec, 2> times{st.st_atim, st.st_mtim};
    const bool restore = random() % 2;
    ASSERT_EQ(restore ? ::futimens(fd.get(), times.data()) : 0, 0);
    ASSERT_EQ(::fsync(fd.get()), 0);
    const std::uint64_t synced = disks_->position();
    file.versions.push_back({content, begun, synced, times_of(stage_->in_mount(file.name))});
  }

  // Moves files down, up, where they leave twins, and down again, some of them written in between.
  void go_up_and_down(const Mount& mount, std::mt19937_64& random) {
    const auto send_all = [&](const std::string& tier) {
      for (const Synced& file : synced_) EXPECT_EQ(send_to(stage_->in_mount(file.name), tier), 0);
      wait_for_moves(mount);
    };
    const std::string low = random() % 2 ? "ssd" : "hdd";
    send_all(low);
    // No twin is kept of a file that was written a moment ago.
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    send_all("nvme");
    for (Synced& file : synced_) {
      if (random() % 3 == 0) rewrite(file, random);
    }
    send_all(low);
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
      if (i % 6 == 5) go_up_and_down(mount, random);
    }
    wait_for_moves(mount);
    const auto twins = mount.status().at("migration").at("twins").at("used").get<int>();
    EXPECT_GT(twins, 5) << "almost no file went back with its twin, so the test tests nothing";
    std::printf("%d moves with a twin\n", twins);
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
        if (file.position() <= cut.at) out += judge(file, cut.at);
      }
      out += move_anew(mount, cut.at);
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

  // What is left of a twin must not replace a file that was changed.
  std::string move_anew(const Mount& mount, std::uint64_t at) {
    std::vector<std::string> names, contents;
    for (const Synced& file : synced_) {
      if (file.position() > at || !exists(stage_->in_mount(file.name))) continue;
      names.push_back(file.name);
      contents.push_back(read_file(stage_->in_mount(file.name)));
    }
    std::string out;
    for (const char* tier : {"hdd", "ssd"}) {
      for (const std::string& name : names) send_to(stage_->in_mount(name), tier);
      if (!stage_->wait_for_moves(mount, names)) out += "the moves after the cut do not end\n";
      for (std::size_t i = 0; i < names.size(); ++i) {
        if (read_file(stage_->in_mount(names[i])) != contents[i])
          out += names[i] + " was changed by a move to " + tier + " after the cut\n";
      }
    }
    twins_after_cuts_ += mount.status().at("migration").at("twins").at("used").get<int>();
    return out;
  }

  std::string judge(const Synced& file, std::uint64_t at) const {
    const std::string path = stage_->in_mount(file.name);
    if (!exists(path)) return file.name + " is lost\n";
    std::string out;
    const std::string wrong = compare(file, read_file(path), at);
    if (!wrong.empty()) out += file.name + " " + wrong + ", on " + tier_of(path) + "\n";
    if (lstat_of(path).st_ino != file.inode) out += file.name + " has a different inode number\n";
    const auto possible = possible_versions(file, at);
    if (possible.size() == 1 && times_of(path) != possible[0]->times)
      out += file.name + " has " + times_of(path) + " instead of " + possible[0]->times + "\n";
    return out;
  }

  TempDir base_;
  std::unique_ptr<LoggedDisks> disks_;
  std::unique_ptr<MoveStage> stage_;
  std::vector<Synced> synced_;
  std::uint64_t begin_ = 0, end_ = 0;  // positions at the beginning and the end of the work
  int twins_after_cuts_ = 0;
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
  std::printf("%d cuts of %llu records; %d moves with a twin after them\n", cuts,
              static_cast<unsigned long long>(end_ - begin_), twins_after_cuts_);
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
