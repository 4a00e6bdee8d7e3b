// SPDX-License-Identifier: BSD-2-Clause
// What makes a file hot, and what does not.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/mount/tiering.hpp"

namespace sluice::test {
namespace {

class HeatTest : public TieringTest {
 protected:
  static constexpr int kMany = 1000;

  void put_many() {
    for (int i = 0; i < kMany; ++i) put("hdd", "d/" + std::to_string(i), std::to_string(i));
  }
  // find -exec cat {} +: one process reads them all.
  void walk() const {
    const CommandResult result =
        run_command({"find", *this / "d", "-type", "f", "-exec", "cat", "{}", "+"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  std::vector<double> heats() const {
    std::vector<double> all;
    for (int i = 0; i < kMany; ++i) all.push_back(heat("d/" + std::to_string(i)));
    return all;
  }
};

TEST_F(HeatTest, EachReadByAnOrdinaryProgramAddsOneToTheScore) {
  put("hdd", "f", "x");
  start();
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(run_command({"cat", *this / "f"}).ok());
    EXPECT_EQ(accesses("f"), i + 1);
  }
  EXPECT_NEAR(heat("f"), 5, 0.05);
}

TEST_F(HeatTest, OneRsyncIsOneUse) {
  start();
  write_file(base_ / "source", "content");
  ASSERT_TRUE(run_command({"rsync", "-a", base_ / "source", *this / "f"}).ok());
  EXPECT_EQ(accesses("f"), 1);
  ASSERT_TRUE(run_command({"rsync", "-a", *this / "f", base_ / "copy"}).ok());
  EXPECT_EQ(accesses("f"), 2);
}

TEST_F(HeatTest, AProgramThatReadsItsOwnFileAgainUsesIt) {
  start();
  ASSERT_TRUE(run_command({"python3", "-c",
                           "import sys\nopen(sys.argv[1], 'w').write('x')\n"
                           "for i in range(3): open(sys.argv[1]).read()",
                           *this / "f"})
                  .ok());
  EXPECT_EQ(accesses("f"), 3) << "making it, with the first look at it, and two more";
}

TEST_F(HeatTest, StatDoesNotCountAsAnAccess) {
  put("hdd", "f", "x");
  start();
  ASSERT_TRUE(run_command({"ls", "-la", root()}).ok());
  ASSERT_TRUE(run_command({"stat", *this / "f"}).ok());
  ASSERT_TRUE(sluice({"explain", *this / "f"}).ok());
  run_pass();
  EXPECT_EQ(accesses("f"), 0);
}

TEST_F(HeatTest, MoveDoesNotCountAsAnAccess) {
  put("hdd", "f", pattern(200'000, 1));
  start({"--verify"});
  move("f", "ssd");
  EXPECT_EQ(accesses("f"), 0);
}

TEST_F(HeatTest, SurvivesRenameMoveAndRemount) {
  put("hdd", "f", "x");
  start();
  read_often("f", 30);
  ASSERT_EQ(::rename((*this / "f").c_str(), (*this / "g").c_str()), 0);
  EXPECT_EQ(accesses("g"), 30);
  move("g", "nvme");
  EXPECT_EQ(accesses("g"), 30);
  mount().remount();
  EXPECT_EQ(accesses("g"), 30);
  EXPECT_NEAR(heat("g"), 30, 0.1);
  run_pass();
  EXPECT_EQ(tiers_with("g"), "ssd");
}

TEST_F(HeatTest, NewFileOfTheSameNameStartsCold) {
  put("hdd", "f", "x");
  start();
  read_often("f", 30);
  ASSERT_EQ(::unlink((*this / "f").c_str()), 0);
  write_file(*this / "f", "another");
  EXPECT_LE(accesses("f"), 1);
}

TEST_F(HeatTest, BackupProgramDoesNotCountAsAccess) {
  put("hdd", "f", "x");
  start();
  std::filesystem::copy_file("/bin/cat", base_ / "restic");
  for (int i = 0; i < 20; ++i) {
    const CommandResult result = run_command({base_ / "restic", *this / "f"});
    ASSERT_TRUE(result.ok()) << result.err;
    ASSERT_EQ(result.out, "x");
  }
  EXPECT_EQ(accesses("f"), 0);
  EXPECT_EQ(heat("f"), 0);
}

TEST_F(HeatTest, IgnoredProgramsAreConfigurable) {
  put("hdd", "f", "x");
  start({"--heat-ignore", "mytool"});
  std::filesystem::copy_file("/bin/cat", base_ / "mytool");
  std::filesystem::copy_file("/bin/cat", base_ / "restic");
  ASSERT_TRUE(run_command({base_ / "mytool", *this / "f"}).ok());
  EXPECT_EQ(accesses("f"), 0);
  ASSERT_TRUE(run_command({base_ / "restic", *this / "f"}).ok());
  EXPECT_EQ(accesses("f"), 1) << "the list replaces the built-in one";
}

TEST_F(HeatTest, WalkOverManyFilesAddsLittleHeat) {
  put_many();
  start();
  walk();
  int heated = 0;
  for (const double each : heats()) {
    EXPECT_LE(each, 1);
    if (each > 0) ++heated;
  }
  EXPECT_LT(heated, kMany / 3);
}

}  // namespace
}  // namespace sluice::test
