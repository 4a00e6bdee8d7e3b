// SPDX-License-Identifier: BSD-2-Clause
// kill -9 during writes, also while files spill to the next tier. Data that was fsynced and
// acknowledged must exist afterwards.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/support/child.hpp"
#include "tests/support/files.hpp"
#include "tests/support/loop_fs.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/shared.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

constexpr int kWriters = 3;
constexpr int kKept = 4;  // files that a writer keeps; it unlinks older ones
constexpr std::size_t kBlock = 64 << 10;
constexpr std::array kTiers{"nvme", "ssd", "hdd"};

std::string content_of(int writer, int number) {
  const auto seed =
      static_cast<std::uint64_t>(writer) * 1'000'000 + static_cast<std::uint64_t>(number);
  return pattern(kBlock * (1 + seed * 7 % 40), seed);
}

struct Progress {
  struct Writer {
    std::atomic<int> written{0};  // files 0 .. written-1 were fsynced and renamed into place
    std::atomic<int> removed{0};  // files 0 .. removed-1 were unlinked, or are about to be
    std::atomic<int> error{0};
  };
  std::array<Writer, kWriters> writers;

  int total() const {
    int sum = 0;
    for (const Writer& writer : writers) sum += writer.written;
    return sum;
  }
};

bool write_durably(const std::string& path, const std::string& content) {
  const UniqueFd fd(
      ::open((path + ".tmp").c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644));
  if (!fd) return false;
  for (std::size_t at = 0; at < content.size(); at += kBlock) {
    if (::write(fd.get(), content.data() + at, kBlock) != static_cast<ssize_t>(kBlock))
      return false;
  }
  return ::fsync(fd.get()) == 0 && ::rename((path + ".tmp").c_str(), path.c_str()) == 0;
}

// Writes until a call fails, at the latest when the mount dies.
void write_until_it_fails(const std::string& directory, int writer, Progress::Writer& progress) {
  for (int number = progress.written;; ++number) {
    if (!write_durably(directory + "/f" + std::to_string(number), content_of(writer, number))) {
      break;
    }
    progress.written = number + 1;
    if (number < kKept) continue;
    progress.removed = number - kKept + 1;
    if (::unlink((directory + "/f" + std::to_string(number - kKept)).c_str()) < 0) break;
  }
  progress.error = errno;
}

class KillDuringWriteTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!require_mounts("fault") || !require_loop("fault", "ext4")) return;
    // The first two tiers are too small for the files that the writers keep, so files spill all the
    // time.
    const std::array<std::uint64_t, 3> sizes{12u << 20, 16u << 20, 256u << 20};
    Pool pool{{}, base_ / "state", base_ / "mnt"};
    for (std::size_t i = 0; i < kTiers.size(); ++i) {
      disks_.push_back(std::make_unique<LoopFs>(base_ / kTiers[i], "ext4", sizes[i]));
      pool.tiers.push_back(std::string(kTiers[i]) + "=" + disks_.back()->path() +
                           ",reserve=1GiB,high_watermark=100");
    }
    mount_ = std::make_unique<Mount>(pool);
  }

  std::string directory(int writer) const { return *mount_ / ("w" + std::to_string(writer)); }

  void expect_acknowledged_files(int writer, const Progress::Writer& progress) {
    for (int number = progress.removed; number < progress.written; ++number) {
      const std::string path = directory(writer) + "/f" + std::to_string(number);
      ASSERT_TRUE(exists(path)) << path << " was fsynced and is missing";
      EXPECT_TRUE(read_file(path) == content_of(writer, number)) << path << " has wrong bytes";
    }
    // The file in progress: if it was renamed, it had been fsynced.
    const std::string next = directory(writer) + "/f" + std::to_string(progress.written);
    if (exists(next)) {
      EXPECT_TRUE(read_file(next) == content_of(writer, progress.written)) << next;
    }
  }

  // Each name in the mount is on exactly one tier, and each file on a tier has a name in the mount.
  void expect_each_file_once(int writer) {
    std::vector<std::string> on_tiers;
    for (const char* tier : kTiers) {
      const std::string path = base_ / tier + "/w" + std::to_string(writer);
      if (!exists(path)) continue;
      for (const std::string& name : names_in(path)) on_tiers.push_back(name);
    }
    std::ranges::sort(on_tiers);
    EXPECT_EQ(names_in(directory(writer)), on_tiers);
  }

  TempDir base_;
  std::vector<std::unique_ptr<LoopFs>> disks_;
  std::unique_ptr<Mount> mount_;
};

TEST_F(KillDuringWriteTest, AcknowledgedSyncedDataSurvives) {
  std::mt19937_64 choices(test_seed());
  int spilled = 0;
  const int count = rounds(20, 300);
  for (int writer = 0; writer < kWriters; ++writer) {
    ASSERT_EQ(::mkdir(directory(writer).c_str(), 0755), 0);
  }
  const Shared<Progress> progress;
  for (int round = 0; round < count; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const int target = progress->total() + 3 + static_cast<int>(choices() % 25);
    const std::chrono::nanoseconds delay(choices() % 5'000'000);
    for (Progress::Writer& writer : progress->writers) writer.error = 0;
    {
      Child worker([&] {
        std::vector<std::jthread> threads;
        for (int writer = 0; writer < kWriters; ++writer) {
          threads.emplace_back([&, writer] {
            write_until_it_fails(directory(writer), writer, progress->writers[writer]);
          });
        }
      });
      ASSERT_TRUE(eventually(
          [&] {
            return progress->total() >= target ||
                   std::ranges::any_of(progress->writers, [](auto& w) { return w.error != 0; });
          },
          std::chrono::seconds(30)))
          << "the writers make no progress";
      for (const Progress::Writer& writer : progress->writers) {
        ASSERT_EQ(writer.error, 0) << errno_name(writer.error) << " before the kill; the log:\n"
                                   << mount_->log();
      }
      const auto moment = std::chrono::steady_clock::now() + delay;
      while (std::chrono::steady_clock::now() < moment) {
      }
      mount_->kill_daemon();
      EXPECT_TRUE(worker.join()) << "the writers hang on a dead mount";
    }
    mount_->detach();
    ASSERT_NO_THROW(mount_->mount());

    for (int writer = 0; writer < kWriters; ++writer) {
      expect_acknowledged_files(writer, progress->writers[writer]);
      expect_each_file_once(writer);
      spilled += exists(base_ / "ssd/w" + std::to_string(writer)) &&
                 !names_in(base_ / "ssd/w" + std::to_string(writer)).empty();
      // Removes the file that was in progress.
      const int next = progress->writers[writer].written;
      for (const std::string& name : names_in(directory(writer))) {
        const int number = std::stoi(name.substr(1));
        if (name.ends_with(".tmp") || number >= next ||
            number < progress->writers[writer].removed) {
          EXPECT_EQ(::unlink((directory(writer) + "/" + name).c_str()), 0) << name;
        }
      }
    }
    if (HasFailure()) return;
  }
  mount_->umount();
  std::vector<std::string> arguments = mount_->pool().fsck_arguments();
  arguments.insert(arguments.begin(), "fsck");
  const CommandResult report = sluice(arguments);
  EXPECT_EQ(report.exit_code, 0) << report.out << report.err;
  std::printf("%d kills; writers that had spilled files at a kill: %d\n", count, spilled);
  EXPECT_GT(spilled, 0) << "no file ever spilled, so the test tests nothing";
}

}  // namespace
}  // namespace sluice::test
