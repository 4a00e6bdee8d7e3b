// SPDX-License-Identifier: BSD-2-Clause
// Programs that report files that change during their work, on a tree whose files move all the
// time.
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <filesystem>
#include <thread>

#include "tests/mount/tiering.hpp"

namespace sluice::test {
namespace {

class ToolsTest : public TieringTest {
 protected:
  void SetUp() override {
    TieringTest::SetUp();
    if (IsSkipped()) return;
    start();
    for (const char* directory : {"tree", "tree/a", "tree/b", "tree/a/deep"})
      std::filesystem::create_directory(*this / directory);
    for (int i = 0; i < 24; ++i) {
      const std::string directory = i % 3 == 0   ? "tree/a/"
                                    : i % 3 == 1 ? "tree/b/"
                                                 : "tree/a/deep/";
      names_.push_back(directory + "f" + std::to_string(i));
      write_file(*this / names_.back(), pattern(1 + static_cast<std::size_t>(i) * 1500, 1));
    }
  }
  void TearDown() override {
    mover_ = {};  // stops it
    TieringTest::TearDown();
  }

  // From now on every file moves from tier to tier.
  void move_all_the_time() {
    const auto go = [this](const std::stop_token& stop) {
      const std::array<std::string, 3> tiers{"ssd", "hdd", "nvme"};
      for (std::size_t round = 0; !stop.stop_requested(); ++round) {
        for (std::size_t i = 0; i < names_.size() && !stop.stop_requested(); ++i) {
          const std::string& tier = tiers[(round + i) % 3];
          // May fail: the file may be there already.
          ::setxattr((*this / names_[i]).c_str(), "user.sluice.tier", tier.data(), tier.size(), 0);
        }
      }
    };
    mover_ = std::jthread(go);
    // Each has moved at least once.
    ASSERT_TRUE(eventually([&] { return moves_done() >= names_.size(); }));
  }
  std::size_t moves_done() const {
    return ask({"status"})["migration"]["moved"].get<std::size_t>();
  }
  // Runs a program that must print nothing.
  static void expect_silence(const Strings& command) {
    const CommandResult result = run_command(command);
    EXPECT_EQ(result.exit_code, 0) << command[0];
    EXPECT_EQ(result.out + result.err, "") << command[0];
  }

  static constexpr int kRuns = 5;
  Strings names_;

 private:
  std::jthread mover_;
};

TEST_F(ToolsTest, TarSeesNoFileChange) {
  move_all_the_time();
  for (int run = 0; run < kRuns; ++run)
    expect_silence({"tar", "-cf", base_ / "out.tar", "-C", root(), "tree"});
}

TEST_F(ToolsTest, RsyncFindsNothingToTransfer) {
  expect_silence({"rsync", "-a", *this / "tree/", base_ / "copy"});
  move_all_the_time();
  for (int run = 0; run < kRuns; ++run)
    expect_silence({"rsync", "-acni", "--delete", *this / "tree/", base_ / "copy"});
}

TEST_F(ToolsTest, GitReadsNoFileAgain) {
  const auto git = [&](Strings arguments) {
    Strings command{"git", "-C", *this / "tree", "-c", "user.name=a", "-c", "user.email=a@b"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  };
  if (!run_command(git({"init", "-q"})).ok()) GTEST_SKIP() << "there is no git";
  expect_silence(git({"add", "."}));
  expect_silence(git({"commit", "-qm", "x"}));
  // git cannot tell whether files as new as its index have changed.
  ASSERT_TRUE(eventually([&] {
    run_command(git({"update-index", "-q", "--really-refresh"}));
    return std::time(nullptr) > lstat_of(*this / names_.back()).st_mtim.tv_sec + 1;
  }));
  run_command(git({"update-index", "-q", "--really-refresh"}));
  move_all_the_time();
  for (int run = 0; run < kRuns; ++run) {
    // Compares attributes only.
    expect_silence(git({"diff-files", "--raw"}));
    expect_silence(git({"status", "--porcelain"}));
  }
}

}  // namespace
}  // namespace sluice::test
