// SPDX-License-Identifier: BSD-2-Clause
// Removing a tier from a pool, and adding one.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <map>
#include <thread>
#include <utility>

#include "base/unique_fd.hpp"
#include "tests/mount/tiering.hpp"
#include "tests/support/tree.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

class DrainTest : public TieringTest {
 protected:
  // The tree as users see it, without the link counts of directories, which depend on the tiers.
  std::map<std::string, std::string> seen() const {
    return digest(root(), {.times = false, .directory_links = false});
  }
  // Names of files on a tier; directories may stay.
  std::string files_on(const std::string& tier) const {
    return run_command({"find", on(tier, ""), "-path", on(tier, ".sluice"), "-prune", "-o", "!",
                        "-type", "d", "-print"})
        .out;
  }
};

TEST_F(DrainTest, EmptiesATierIncludingLinksAndFifosAndThePoolMountsWithoutIt) {
  put("ssd", "d/f", pattern(200'000, 1));
  put("ssd", "d/e/g", pattern(3 * kMiB, 2));
  put("ssd", "two", "names");
  ASSERT_EQ(::link(on("ssd", "two").c_str(), on("ssd", "d/names").c_str()), 0);
  ASSERT_EQ(::symlink("d/f", on("ssd", "link").c_str()), 0);
  ASSERT_EQ(::lchown(on("ssd", "link").c_str(), 12, 34), 0);
  ASSERT_EQ(::mkfifo(on("ssd", "d/fifo").c_str(), 0620), 0);
  ASSERT_EQ(::mkdir(on("ssd", "empty").c_str(), 0711), 0);
  ASSERT_EQ(::setxattr(on("ssd", "empty").c_str(), "user.k", "v", 1, 0), 0);
  put("hdd", "d/other", "o");
  start();
  const auto before = seen();
  const struct stat file_before = lstat_of(*this / "d/e/g");
  const struct stat fifo_before = lstat_of(*this / "d/fifo");

  const CommandResult result = tell({"tier", "drain", "ssd"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_NE(result.err.find("tier ssd is empty"), std::string::npos) << result.err;
  EXPECT_NE(result.out.find("name = \"ssd\""), std::string::npos) << result.out;
  EXPECT_EQ(files_on("ssd"), "");
  EXPECT_EQ(difference(before, seen()), "");

  stop();
  leave_out("ssd");
  start();
  EXPECT_EQ(difference(before, seen()), "");
  EXPECT_EQ(mount().status().at("tiers").size(), 2u);
  for (const auto& [name, then] : {std::pair("d/e/g", file_before), {"d/fifo", fifo_before}}) {
    const struct stat now = lstat_of(*this / name);
    EXPECT_EQ(now.st_mtim.tv_sec, then.st_mtim.tv_sec) << name;
    EXPECT_EQ(now.st_mtim.tv_nsec, then.st_mtim.tv_nsec) << name;
  }
  EXPECT_EQ(lstat_of(*this / "d/e/g").st_ino, file_before.st_ino);
  stop();
  const CommandResult check = fsck();
  EXPECT_EQ(check.exit_code, 0) << check.out << check.err;
}

TEST_F(DrainTest, FastestTierCanBeDrained) {
  start();
  for (int i = 0; i < 200; ++i) write_file(*this / ("f" + std::to_string(i)), std::to_string(i));
  const auto before = seen();
  const CommandResult result = tell({"tier", "drain", "nvme"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(files_on("nvme"), "");
  stop();
  leave_out("nvme");
  start();
  EXPECT_EQ(difference(before, seen()), "");
}

TEST_F(DrainTest, NoNewFileGoesToADrainedTierUntilItIsCancelled) {
  put("nvme", "f", "x");
  start();
  ASSERT_TRUE(tell({"tier", "drain", "nvme"}).ok());
  write_file(*this / "new", "n");
  EXPECT_EQ(tiers_with("new"), "ssd");
  const CommandResult cancel = tell({"tier", "drain", "nvme", "--cancel"});
  EXPECT_EQ(cancel.exit_code, 0) << cancel.err;
  write_file(*this / "newer", "n");
  EXPECT_EQ(tiers_with("newer"), "nvme");
}

TEST_F(DrainTest, ARunningDrainIsCancelled) {
  for (int i = 0; i < 6; ++i) put("ssd", "f" + std::to_string(i), pattern(5 * kMiB, 1));
  const std::string all = files_on("ssd");
  start({"--bandwidth", "5MiB"});  // so that it takes six seconds
  CommandResult drained;
  std::thread drain([&] { drained = tell({"tier", "drain", "ssd"}); });
  EXPECT_TRUE(eventually([&] { return files_on("ssd") != all; }));
  const CommandResult cancel = tell({"tier", "drain", "ssd", "--cancel"});
  EXPECT_EQ(cancel.exit_code, 0) << cancel.err;
  drain.join();
  EXPECT_EQ(drained.exit_code, 1) << drained.out;
  EXPECT_NE(drained.err.find("cancelled"), std::string::npos) << drained.err;
  EXPECT_NE(files_on("ssd"), "");
  // It is a tier as before, also for the next mount.
  stop();
  start();
  for (int i = 0; i < 6; ++i) {
    const std::string name = "f" + std::to_string(i);
    EXPECT_TRUE(sluice({"move", "--to", "ssd", "--wait", *this / name}).ok());
    EXPECT_EQ(tiers_with(name), "ssd");
    EXPECT_EQ(read_file(*this / name), pattern(5 * kMiB, 1));
  }
}

TEST_F(DrainTest, ReportsFilesThatAreLeftAndMovesThemTheNextTime) {
  put("ssd", "busy", "x");
  put("ssd", "quiet", "y");
  start();
  {
    const UniqueFd writer(::open((*this / "busy").c_str(), O_WRONLY | O_CLOEXEC));
    const CommandResult result = tell({"tier", "drain", "ssd"});
    EXPECT_EQ(result.exit_code, 1) << result.out;
    EXPECT_NE(result.err.find("1 file"), std::string::npos) << result.err;
    EXPECT_NE(result.out.find("/busy: it is open for writing"), std::string::npos) << result.out;
    EXPECT_EQ(tiers_with("busy"), "ssd");
    EXPECT_NE(tiers_with("quiet"), "ssd");
  }
  const CommandResult again = tell({"tier", "drain", "ssd"});
  EXPECT_EQ(again.exit_code, 0) << again.out << again.err;
  EXPECT_EQ(files_on("ssd"), "");
}

TEST_F(DrainTest, AMoveThatWaitsEndsWithTheDrain) {
  put("ssd", "busy", "x");
  start();
  {
    const UniqueFd writer(::open((*this / "busy").c_str(), O_WRONLY | O_CLOEXEC));
    EXPECT_EQ(tell({"tier", "drain", "ssd"}).exit_code, 1);
    EXPECT_NE(tell({"tier", "drain", "ssd", "--cancel"}).err.find("is in use again"),
              std::string::npos);
    EXPECT_EQ(mount().status().at("migration").at("pending"), 0);
  }
  std::this_thread::sleep_for(std::chrono::seconds(2));
  EXPECT_EQ(tiers_with("busy"), "ssd");
  EXPECT_NE(tell({"tier", "drain", "ssd", "--cancel"}).err.find("was not being drained"),
            std::string::npos);
}

TEST_F(DrainTest, TheLastTierThatTakesFilesIsNotMarked) {
  put("hdd", "f", "x");
  start();
  ASSERT_TRUE(tell({"tier", "drain", "nvme"}).ok());
  ASSERT_TRUE(tell({"tier", "drain", "ssd"}).ok());
  const CommandResult last = tell({"tier", "drain", "hdd"});
  EXPECT_EQ(last.exit_code, 1);
  EXPECT_NE(last.err.find("no other tier takes the files of hdd: nvme is being emptied, ssd is "
                          "being emptied"),
            std::string::npos)
      << last.err;
  write_file(*this / "new", "n");
  EXPECT_EQ(tiers_with("new"), "hdd");
}

TEST_F(DrainTest, PinnedFilesLeaveTheTierToo) {
  put("ssd", "f", "x");
  start();
  ASSERT_TRUE(sluice({"pin", "ssd", *this / "f"}).ok());
  EXPECT_TRUE(tell({"tier", "drain", "ssd"}).ok());
  EXPECT_EQ(files_on("ssd"), "");
  EXPECT_EQ(read_file(*this / "f"), "x");
}

TEST_F(DrainTest, UnknownTierIsAnError) {
  start();
  const CommandResult result = tell({"tier", "drain", "sdd"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("no tier 'sdd'"), std::string::npos) << result.err;
}

class AddTest : public TieringTest {};

TEST_F(AddTest, NewTierGetsFilesAndIsPresentAtTheNextMount) {
  put("hdd", "d/f", "x");
  LoopFs& disk = add_disk("archive", 64 * kMiB);
  leave_out("archive");
  start();
  const CommandResult added = tell({"tier", "add", "archive=" + disk.path() + ",capacity=60MiB"});
  ASSERT_EQ(added.exit_code, 0) << added.err;
  EXPECT_NE(added.out.find("name = \"archive\""), std::string::npos) << added.out;
  EXPECT_NE(added.out.find("path = \"" + disk.path() + "\"\ncapacity = \"60MiB\"\n"),
            std::string::npos)
      << added.out;
  EXPECT_EQ(mount().status().at("tiers").size(), 4u);
  move("d/f", "archive");
  EXPECT_EQ(tiers_with("d/f"), "archive");
  EXPECT_EQ(read_file(*this / "d/f"), "x");

  stop();
  Pool with = Pool{{"nvme=" + base_ / "nvme", "ssd=" + base_ / "ssd", "hdd=" + base_ / "hdd",
                    "archive=" + disk.path()},
                   base_ / "state",
                   base_ / "mnt",
                   {"--no-migrate"}};
  const Mount again(with);
  EXPECT_EQ(tier_of("d/f"), "archive");
  EXPECT_EQ(read_file(*this / "d/f"), "x");
}

TEST_F(AddTest, FilesOnTheNewTierAreVisible) {
  LoopFs& disk = add_disk("archive", 64 * kMiB);
  leave_out("archive");
  put("hdd", "d/old", "o");
  put("archive", "d/new", "n");
  put("archive", "top", "t");
  start();
  ASSERT_EQ(names_in(*this / "d"), Strings{"old"});
  ASSERT_EQ(tell({"tier", "add", "archive=" + disk.path()}).exit_code, 0);
  EXPECT_EQ(names_in(*this / "d"), (Strings{"new", "old"}));
  EXPECT_EQ(read_file(*this / "top"), "t");
}

TEST_F(AddTest, InvalidTierIsRefused) {
  start();
  for (const std::string& wrong :
       {"x=" + base_ / "missing", "hdd=" + base_ / "hdd", "x=" + base_ / "hdd" + "/below"}) {
    const CommandResult result = tell({"tier", "add", wrong});
    EXPECT_NE(result.exit_code, 0) << wrong;
    EXPECT_NE(result.err, "") << wrong;
  }
  EXPECT_EQ(mount().status().at("tiers").size(), 3u);
}

}  // namespace
}  // namespace sluice::test
