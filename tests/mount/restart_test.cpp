// SPDX-License-Identifier: BSD-2-Clause
// Programs with open files while the daemon ends and is started again. docs/operations.md describes
// what they see.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/support/files.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice::test {
namespace {

class RestartTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!require_mounts("mount")) return;
    mount_ = std::make_unique<Mount>(Pool{{"a=" + dir_.make_dir("a"), "b=" + dir_.make_dir("b")},
                                          dir_.make_dir("state"),
                                          dir_.make_dir("mnt")});
    const bool passthrough = mount_->status().at("features").at("passthrough").at("on").get<bool>();
    if (!require("passthrough", passthrough, "no passthrough here")) return;
  }

  // Ends the daemon with the tested signal and mounts again.
  void restart() {
    mount_->kill_daemon(GetParam());
    mount_->detach();
    mount_->mount();
  }

  // "ok", or the errno's name.
  static std::string outcome(ssize_t result) { return errno_name(result < 0 ? errno : 0); }

  TempDir dir_;
  std::unique_ptr<Mount> mount_;
};

TEST_P(RestartTest, OpenFileKeepsItsBytesAndNothingElse) {
  write_file(*mount_ / "big", pattern(1 << 20, 1));
  const UniqueFd file(::open((*mount_ / "big").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(file);

  restart();

  std::array<char, 4096> bytes{};
  EXPECT_EQ(::pread(file.get(), bytes.data(), bytes.size(), 0), 4096);
  EXPECT_EQ(std::string(bytes.data(), bytes.size()), pattern(1 << 20, 1).substr(0, 4096));
  EXPECT_EQ(::pwrite(file.get(), "new", 3, 0), 3);
  EXPECT_EQ(read_file(dir_ / "a/big").substr(0, 3), "new");
  struct stat status {};
  EXPECT_EQ(outcome(::fstat(file.get(), &status)), "ENOTCONN");
  EXPECT_EQ(outcome(::fsync(file.get())), "ENOTCONN");
  EXPECT_EQ(outcome(::ftruncate(file.get(), 0)), "ENOTCONN");
}

TEST_P(RestartTest, OpenDirectoryNoLongerAnswers) {
  const UniqueFd directory(::open(mount_->path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_TRUE(directory);

  restart();

  EXPECT_EQ(outcome(::openat(directory.get(), "any", O_RDONLY | O_CLOEXEC)), "ENOTCONN");
}

TEST_P(RestartTest, FilesCanBeOpenedAgain) {
  write_file(*mount_ / "big", pattern(1 << 20, 2));
  const UniqueFd file(::open((*mount_ / "big").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(file);
  const ino_t number = lstat_of(*mount_ / "big").st_ino;

  restart();

  ASSERT_EQ(::pwrite(file.get(), "new", 3, 0), 3);
  EXPECT_EQ(read_file(*mount_ / "big").substr(0, 3), "new");
  EXPECT_EQ(lstat_of(*mount_ / "big").st_ino, number);
}

TEST_P(RestartTest, FileWithAnOldWriterIsNotMoved) {
  write_file(*mount_ / "big", pattern(1 << 20, 3));
  UniqueFd file(::open((*mount_ / "big").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(file);

  restart();

  EXPECT_FALSE(sluice({"move", "--wait", "--to", "b", *mount_ / "big"}).ok());
  EXPECT_TRUE(exists(dir_ / "a/big"));
  file.reset();
  EXPECT_TRUE(sluice({"move", "--wait", "--to", "b", *mount_ / "big"}).ok());
  EXPECT_TRUE(exists(dir_ / "b/big"));
}

// `sluice restart` replaces the daemon. Nothing changes for programs.
class UpgradeTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!require_mounts("mount")) return;
    for (const char* tier : {"a", "b"}) dir_.make_dir(tier);
    config_ = dir_ / "pool.toml";
    configure({"a", "b"});
    mount_ = std::make_unique<Mount>(
        Pool{{}, dir_.make_dir("state"), dir_.make_dir("mnt"), {"--config", config_}});
  }
  void configure(const std::vector<std::string>& tiers) {
    std::string text = "migrate = false\n" + more_;
    for (const std::string& tier : tiers)
      text += "[[tier]]\nname = \"" + tier + "\"\npath = \"" + (dir_ / tier) + "\"\n" + each_tier_;
    write_file(config_, text);
  }
  // Restarts, which must fail with this text, and checks that the same daemon goes on.
  void expect_refusal(const std::string& why) {
    const pid_t before = mount_->status().at("pid");
    const CommandResult result = sluice({"restart", mount_->path()});
    EXPECT_FALSE(result.ok());
    EXPECT_NE(result.err.find(why), std::string::npos) << result.err;
    EXPECT_EQ(mount_->status().at("pid"), before);
    EXPECT_EQ(read_file(*mount_ / "f"), "content");
  }

  TempDir dir_;
  std::string config_, more_, each_tier_;
  std::unique_ptr<Mount> mount_;
};

TEST_F(UpgradeTest, OpenFilesAndAddedTiersComeAlong) {
  write_file(*mount_ / "f", "content");
  const UniqueFd file(::open((*mount_ / "f").c_str(), O_RDWR | O_APPEND | O_CLOEXEC));
  ASSERT_TRUE(sluice({"tier", "add", "c=" + dir_.make_dir("c"), mount_->path()}).ok());
  const pid_t before = mount_->status().at("pid");
  const CommandResult result = sluice({"restart", mount_->path()});
  ASSERT_TRUE(result.ok()) << result.err;
  EXPECT_NE(result.out.find("requests waited"), std::string::npos) << result.out;
  const nlohmann::json after = mount_->status();
  EXPECT_NE(after.at("pid"), before);
  EXPECT_EQ(after.at("tiers").size(), 3u);
  EXPECT_EQ(after.at("open_files"), 1);
  ASSERT_EQ(::write(file.get(), "!", 1), 1);
  EXPECT_EQ(read_file(*mount_ / "f"), "content!");
}

TEST_F(UpgradeTest, OptionsOfTheFileAreReadAgain) {
  write_file(*mount_ / "f", "content");
  each_tier_ = "capacity = \"50MiB\"\n";
  configure({"a", "b"});
  ASSERT_TRUE(sluice({"restart", mount_->path()}).ok());
  EXPECT_EQ(read_file(*mount_ / "f"), "content");
  EXPECT_EQ(mount_->status().at("tiers").at(0).at("capacity"), 50 << 20);
}

TEST_F(UpgradeTest, WhatCannotChangeIsRefusedAndTheOldDaemonGoesOn) {
  write_file(*mount_ / "f", "content");
  configure({"a"});
  expect_refusal("the mount has a tier b");
  more_ = "no_such_option = 1\n";
  configure({"a", "b"});
  expect_refusal("no_such_option");
}

INSTANTIATE_TEST_SUITE_P(Signals, RestartTest, testing::Values(SIGTERM, SIGKILL),
                         [](const auto& signal) {
                           return std::string(signal.param == SIGTERM ? "Ended" : "Killed");
                         });

}  // namespace
}  // namespace sluice::test
