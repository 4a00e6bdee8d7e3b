// SPDX-License-Identifier: BSD-2-Clause
// Moves that users asked for go on after an unmount, after a crash, and for files that were renamed
// in between.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/mount/tiering.hpp"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

constexpr int kDirectories = 15, kFilesEach = 1000;
constexpr std::size_t kFiles = std::size_t{kDirectories} * kFilesEach;
// So slow that nearly everything is still queued when the mount ends.
const std::vector<std::string> kSlowly{"--bandwidth", "1KiB"};

class MoveRequestsTest : public TieringTest {
 protected:
  static std::string name(int directory, int file) {
    return "d" + std::to_string(directory) + "/f" + std::to_string(file);
  }
  void make_files() {
    for (int d = 0; d < kDirectories; ++d) {
      for (int f = 0; f < kFilesEach; ++f) put("ssd", name(d, f), "0123456789");
    }
  }
  std::size_t files_on(const std::string& tier) const {
    std::size_t count = 0;
    for (fs::recursive_directory_iterator at(base_ / tier), last; at != last; ++at) {
      // What is hidden in there comes and goes while files move.
      if (at->path().filename() == ".sluice")
        at.disable_recursion_pending();
      else if (at->is_regular_file())
        ++count;
    }
    return count;
  }
  // Moves that are queued or running.
  std::size_t in_queue() {
    const Json migration = mount().status().at("migration");
    return migration.at("queued").get<std::size_t>() + migration.at("active").get<std::size_t>();
  }
};

TEST_F(MoveRequestsTest, FifteenThousandGoOnAfterUnmountCrashAndRenames) {
  make_files();
  start(kSlowly);
  const CommandResult asked = sluice({"move", "--to", "hdd", root()});
  ASSERT_EQ(asked.exit_code, 0) << asked.err;
  ASSERT_NE(asked.err.find("15,000 files"), std::string::npos) << asked.err;

  start(kSlowly);  // unmounts first
  ASSERT_TRUE(eventually([&] { return in_queue() > kFiles / 2; }, seconds(60))) << in_queue();
  // While they are queued: a directory, a file, and a file that goes.
  fs::rename(*this / "d0", *this / "renamed");
  fs::rename(*this / name(1, 999), *this / "d2/moved");
  fs::remove(*this / name(3, 999));

  mount().kill_daemon();
  mount().detach();
  start({"--no-twins"});
  EXPECT_TRUE(eventually([&] { return files_on("hdd") == kFiles - 1; }, seconds(180)))
      << files_on("hdd") << " moved, " << in_queue() << " in the queue" << mount().log();
  // The originals go after their copies have got the names.
  EXPECT_TRUE(eventually([&] { return files_on("ssd") == 0; })) << files_on("ssd");
  EXPECT_EQ(tiers_with("renamed/f0"), "hdd");
  EXPECT_EQ(tiers_with("d2/moved"), "hdd");
  EXPECT_TRUE(eventually([&] { return in_queue() == 0; }));

  // What is done does not come back.
  const auto resumed = [&] {
    const std::string log = mount().log();
    std::size_t count = 0;
    for (auto at = log.find("continuing the moves"); at != std::string::npos;
         at = log.find("continuing the moves", at + 1))
      ++count;
    return count;
  };
  EXPECT_GE(resumed(), 2u);
  const std::size_t before = resumed();
  move("d4/f0", "nvme");
  start();
  move("d4/f1", "nvme");
  EXPECT_EQ(tier_of("d4/f0"), "nvme");
  EXPECT_EQ(resumed(), before);
}

TEST_F(MoveRequestsTest, AFileRenamedInTheQueueIsFoundAgain) {
  for (int f = 0; f < 200; ++f) put("ssd", name(0, f), std::string(100, 'x'));
  start(kSlowly);
  ASSERT_EQ(sluice({"move", "--to", "hdd", root()}).exit_code, 0);
  start({"--bandwidth", "20KiB"});  // the kernel knows none of the files now
  ASSERT_TRUE(eventually([&] { return in_queue() > 0; }, seconds(60)));
  fs::rename(*this / "d0", *this / "renamed");
  EXPECT_TRUE(eventually([&] { return files_on("hdd") == 200; }, seconds(60)))
      << files_on("hdd") << " moved, " << in_queue() << " in the queue" << mount().log();
}

TEST_F(MoveRequestsTest, AFileOnATierThatIsAwayWaitsForTheTier) {
  put("ssd", "f", std::string(64 << 10, 'x'));
  put("hdd", "g", "x");
  start(kSlowly);
  // The first move uses up a minute of the limit.
  write_file(*this / "large", std::string(64 << 10, 'x'));
  ASSERT_EQ(sluice({"move", "--to", "hdd", *this / "large", *this / "f"}).exit_code, 0);
  stop();
  disk("ssd").vanish();
  start({"--degraded"});
  ASSERT_TRUE(eventually([&] { return tier_of("large") == "hdd"; }));
  disk("ssd").come_back();
  EXPECT_TRUE(eventually([&] { return tiers_with("f") == "hdd"; }, seconds(30))) << mount().log();
}

TEST_F(MoveRequestsTest, AskingForTheTierThatAFileIsOnWithdrawsTheRequest) {
  set_options("ssd", "moves=1");
  put("ssd", "f", std::string(64 << 10, 'x'));
  put("ssd", "g", "x");
  start(kSlowly);
  ASSERT_EQ(sluice({"move", "--to", "hdd", *this / "f"}).exit_code, 0);
  ASSERT_TRUE(eventually([&] { return in_queue() == 1; }));
  ASSERT_EQ(sluice({"move", "--to", "hdd", *this / "g"}).exit_code, 0);
  ASSERT_EQ(in_queue(), 2u);
  ASSERT_EQ(sluice({"move", "--to", "ssd", *this / "g"}).exit_code, 0);
  EXPECT_EQ(in_queue(), 1u);
  start();
  EXPECT_TRUE(eventually([&] { return tier_of("f") == "hdd"; }));
  EXPECT_EQ(tier_of("g"), "ssd");
}

}  // namespace
}  // namespace sluice::test
