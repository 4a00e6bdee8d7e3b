// SPDX-License-Identifier: BSD-2-Clause
// Tests of logged disks with an ordinary filesystem on them: fsynced data survives every cut, other
// data may be lost.
#include "tests/support/logged_disk.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <random>
#include <system_error>

#include "base/unique_fd.hpp"
#include "tests/support/command.hpp"
#include "tests/support/files.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice::test {
namespace {

constexpr std::uint64_t kBytes = 64u << 20;
using Survivors = PowerCut::Survivors;

void write_and_sync(const std::string& path, const std::string& content) {
  write_file(path, content);
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::fsync(fd.get()), 0);
}

class LoggedDiskTest : public testing::TestWithParam<const char*> {
 protected:
  struct Synced {
    std::string disk;
    std::string name;
    std::string content;
    std::uint64_t position;  // of the log when its fsync returned
  };

  void SetUp() override {
    if (!require_mounts("fault") || !require_loop("fault", GetParam())) return;
    disks_ = std::make_unique<LoggedDisks>(
        base_.path(),
        std::vector<LoggedDisks::Disk>{{"a", GetParam(), kBytes}, {"b", GetParam(), kBytes}});
  }

  // Writes files to both disks in turn and fsyncs every other file.
  void write_files(int count) {
    for (int i = 0; i < count; ++i) {
      const std::string disk = i % 2 ? "b" : "a";
      const std::string content = pattern(20'000 + 1000u * static_cast<unsigned>(i), i);
      const std::uint64_t flushes = disks_->flushes(disk);
      const std::string name = "synced" + std::to_string(i);
      write_and_sync(disks_->disk(disk).path() + "/" + name, content);
      EXPECT_GT(disks_->flushes(disk), flushes) << "an fsync did not flush the disk";
      synced_.push_back({disk, name, content, disks_->position()});
      write_file(disks_->disk(disk).path() + "/unsynced" + std::to_string(i), content);
    }
  }

  void expect_synced_files(const PowerCut& cut) {
    for (const Synced& file : synced_) {
      if (file.position > cut.at) continue;
      const std::string path = disks_->disk(file.disk).path() + "/" + file.name;
      ASSERT_TRUE(exists(path)) << path << " is lost after a cut at " << cut.at;
      EXPECT_TRUE(read_file(path) == file.content) << path << " after a cut at " << cut.at;
    }
  }

  int unsynced_files() {
    int found = 0;
    for (const std::string disk : {"a", "b"}) {
      for (const std::string& name : names_in(disks_->disk(disk).path())) {
        found += name.starts_with("unsynced");
      }
    }
    return found;
  }

  TempDir base_;
  std::unique_ptr<LoggedDisks> disks_;
  std::vector<Synced> synced_;
};

TEST_P(LoggedDiskTest, SyncedDataSurvivesEveryCut) {
  std::mt19937_64 random(test_seed());
  write_files(12);
  const std::uint64_t written = disks_->position();
  disks_->stop();
  const std::vector<std::uint64_t> flushes = disks_->flush_positions();
  ASSERT_GE(flushes.size(), 12u);
  for (int i = 0; i < rounds(10, 200); ++i) {
    const auto survivors = static_cast<Survivors>(i % 3);
    // Half of the cuts are right after a flush, which would show a flush that came too early.
    const std::uint64_t at = i % 2 ? flushes[random() % flushes.size()] : random() % written;
    const PowerCut cut{at, survivors, random()};
    disks_->mount_after(cut);
    expect_synced_files(cut);
    disks_->unmount();
    if (std::string(GetParam()) == "ext4") {
      const CommandResult check = run_command({"e2fsck", "-fn", disks_->image_after_cut("a")});
      EXPECT_EQ(check.exit_code, 0) << check.out;
    }
  }
}

TEST_P(LoggedDiskTest, UnsyncedDataIsLostWithTheCache) {
  for (int i = 0; i < 3; ++i) write_file(disks_->disk("a").path() + "/unsynced", "x");
  const std::uint64_t before = disks_->position();
  disks_->stop();
  disks_->mount_after({before, Survivors::None});
  EXPECT_EQ(unsynced_files(), 0);
  disks_->mount_after({~0ull, Survivors::All});
  EXPECT_EQ(unsynced_files(), 1) << "after an orderly unmount";
}

TEST_P(LoggedDiskTest, AFailedDiskComesBackWithSyncedData) {
  write_files(2);
  disks_->set_mode("a", DiskMode::Fails);
  EXPECT_ANY_THROW({
    write_file(disks_->disk("a").path() + "/late", "x");
    const UniqueFd fd(::open((disks_->disk("a").path() + "/late").c_str(), O_RDONLY | O_CLOEXEC));
    if (::fsync(fd.get()) < 0) throw std::system_error(errno, std::generic_category(), "fsync");
  });
  disks_->disk("a").vanish();
  ASSERT_TRUE(disks_->disk("a").is_free());
  disks_->set_mode("a", DiskMode::Works);
  disks_->disk("a").come_back();
  expect_synced_files({~0ull});
}

INSTANTIATE_TEST_SUITE_P(On, LoggedDiskTest, testing::Values("ext4", "xfs"),
                         [](const auto& type) { return std::string(type.param); });

}  // namespace
}  // namespace sluice::test
