// SPDX-License-Identifier: BSD-2-Clause
// Moves that are cancelled, and what `sluice move` and `sluice moves` say about moves on the way.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <thread>

#include "base/unique_fd.hpp"
#include "tests/mount/tiering.hpp"
#include "tests/support/tree.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {
namespace {

// So slow that a move of kLargeSize takes minutes.
const std::vector<std::string> kForMinutes{"--bandwidth", "64KiB"};
constexpr std::size_t kLargeSize = 12 << 20;

class MoveCancelTest : public TieringTest {
 protected:
  // Asks for the move of "f", and waits until a part is copied.
  void begin_move() {
    const CommandResult asked = sluice({"move", "--to", "hdd", *this / "f"});
    ASSERT_EQ(asked.exit_code, 0) << asked.err;
    ASSERT_TRUE(eventually([&] {
      const Json moving = explain("f").at("moving");
      return moving.is_object() && moving.at("bytes") > 0;
    })) << explain("f");
  }
  void expect_untouched(const std::string& content) {
    EXPECT_TRUE(eventually([&] { return left_overs().empty(); }));
    EXPECT_EQ(tiers_with("f"), "ssd");
    EXPECT_EQ(read_file(*this / "f"), content);
    const Json story = explain("f");
    EXPECT_TRUE(story.at("moving").is_null() && story.at("queued").is_null() &&
                story.at("pending").is_null())
        << story;
    const Json migration = mount().status().at("migration");
    EXPECT_EQ(migration.at("queued"), 0) << migration;
  }
};

TEST_F(MoveCancelTest, ACopyStopsAndTheFileStaysWithItsBytes) {
  const std::string content = pattern(kLargeSize, 1);
  put("ssd", "f", content);
  start(kForMinutes);
  begin_move();
  const CommandResult cancelled = sluice({"move", "--cancel", *this / "f"});
  EXPECT_EQ(cancelled.exit_code, 0) << cancelled.err;
  EXPECT_NE(cancelled.err.find("cancelled the move of " + *this / "f" + ", which stays on ssd"),
            std::string::npos)
      << cancelled.err;
  expect_untouched(content);
  EXPECT_TRUE(eventually([&] { return receipts().size() == 1; }));
  EXPECT_EQ(receipts()[0].at("result"), "cancelled") << receipts();

  const CommandResult again = sluice({"move", "--cancel", *this / "f"});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_NE(again.err.find("no move of it runs or waits"), std::string::npos) << again.err;

  start();  // mounts again, without the limit
  ASSERT_TRUE(eventually([&] { return !mount().status().at("migration").at("resuming"); }));
  expect_untouched(content);
  stop();
  EXPECT_EQ(fsck().exit_code, 0);
}

TEST_F(MoveCancelTest, AMoveToTheTierOfTheFileEndsOneThatRuns) {
  const std::string content = pattern(kLargeSize, 1);
  put("ssd", "f", content);
  start(kForMinutes);
  begin_move();
  const CommandResult back = sluice({"move", "--to", "ssd", "--wait", *this / "f"});
  EXPECT_EQ(back.exit_code, 0) << back.err;
  EXPECT_NE(back.err.find("cancelled the move of"), std::string::npos) << back.err;
  EXPECT_EQ(back.out, "");
  expect_untouched(content);
}

TEST_F(MoveCancelTest, TheListShowsProgressAndTheQueueInItsOrder) {
  set_options("ssd", "moves=1");
  put("ssd", "f", pattern(kLargeSize, 1));
  put("ssd", "g", "second");
  put("ssd", "h", "third");
  start(kForMinutes);
  begin_move();
  ASSERT_EQ(sluice({"move", "--to", "hdd", *this / "g"}).exit_code, 0);
  ASSERT_EQ(sluice({"move", "--to", "nvme", *this / "h"}).exit_code, 0);
  const Json moves = ask({"moves"});
  ASSERT_EQ(moves.at("running").size(), 1u) << moves;
  const Json running = moves.at("running")[0];
  EXPECT_EQ(running.at("path"), "/f");
  EXPECT_EQ(running.at("total"), kLargeSize);
  EXPECT_GT(running.at("bytes"), 0);
  EXPECT_LT(running.at("bytes"), kLargeSize);
  EXPECT_EQ(moves.at("queued"), 2) << moves;
  ASSERT_EQ(moves.at("queue").size(), 2u) << moves;
  EXPECT_EQ(moves.at("queue")[0].at("path"), "/g");
  EXPECT_EQ(moves.at("queue")[1].at("path"), "/h");
  const CommandResult list = sluice({"moves", root()});
  EXPECT_NE(list.out.find("1 file moving"), std::string::npos) << list.out;
  EXPECT_NE(list.out.find("2 files queued"), std::string::npos) << list.out;
  // A directory: everything below it.
  const CommandResult cancelled = sluice({"move", "--cancel", root()});
  EXPECT_EQ(cancelled.exit_code, 0) << cancelled.err;
  EXPECT_NE(cancelled.err.find("cancelled the moves of 3 files"), std::string::npos)
      << cancelled.err;
  EXPECT_TRUE(eventually([&] {
    const Json now = ask({"moves"});
    return now.at("running").empty() && now.at("queued") == 0;
  }));
}

TEST_F(MoveCancelTest, WhoMayWriteToTheFileMayCancelItsMove) {
  put("ssd", "f", pattern(kLargeSize, 1));
  start(kForMinutes);
  ASSERT_EQ(::chown((*this / "f").c_str(), kBob.uid, kBob.gid), 0);
  begin_move();
  const auto cancel_as = [&](const User& user) {
    return as_user(user, [&] {
      return errno_name(::removexattr((*this / "f").c_str(), "user.sluice.tier") == 0 ? 0 : errno);
    });
  };
  EXPECT_EQ(cancel_as(kAlice), "EACCES");
  EXPECT_EQ(cancel_as(kBob), "ok");
  EXPECT_EQ(cancel_as(kBob), "ENODATA");
}

TEST_F(MoveCancelTest, AFileThatIsThereAlreadyIsNotMoved) {
  put("hdd", "d/f", "content");
  ASSERT_EQ(::link(on("hdd", "d/f").c_str(), on("hdd", "d/name").c_str()), 0);
  put("hdd", "d/g", "content");
  start();
  const CommandResult one = sluice({"move", "--to", "hdd", "--wait", *this / "d/f"});
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.out, "");
  EXPECT_NE(one.err.find(*this / "d/f" + " is already on hdd"), std::string::npos) << one.err;
  const CommandResult all = sluice({"move", "--to", "hdd", *this / "d"});
  EXPECT_NE(all.err.find("2 files are already on hdd"), std::string::npos) << all.err;
  EXPECT_EQ(all.err.find("requested"), std::string::npos) << all.err;
  // One file with two names is one file.
  const CommandResult moved = sluice({"move", "--to", "ssd", "--wait", *this / "d"});
  EXPECT_NE(moved.out.find("moved 2 files, 14 B"), std::string::npos) << moved.out;
}

TEST_F(MoveCancelTest, TheMoveOfAPinnedFileSaysThatItComesBack) {
  put("ssd", "f", "x");
  start();
  ASSERT_EQ(sluice({"pin", "ssd", root()}).exit_code, 0);
  const CommandResult moved = sluice({"move", "--to", "hdd", "--wait", *this / "f"});
  EXPECT_EQ(moved.exit_code, 0) << moved.err;
  EXPECT_NE(moved.err.find("is pinned to ssd"), std::string::npos) << moved.err;
  EXPECT_EQ(tier_of("f"), "hdd");
  const CommandResult again = sluice({"move", "--to", "hdd", *this / "f"});
  EXPECT_NE(again.err.find("is already on hdd"), std::string::npos) << again.err;
  EXPECT_NE(again.err.find("is pinned to ssd, and the next pass moves it there"), std::string::npos)
      << again.err;
}

TEST_F(MoveCancelTest, AFileThatIsLargerThanTheTierDoesNotWaitForRoom) {
  set_options("nvme", "capacity=8MiB");
  put("ssd", "f", pattern(kLargeSize, 1));
  start();
  const CommandResult moved = sluice({"move", "--to", "nvme", *this / "f"});
  EXPECT_EQ(moved.exit_code, 1);
  EXPECT_NE(moved.err.find("more than all of nvme, which has 8.0 MiB"), std::string::npos)
      << moved.err;
  EXPECT_TRUE(explain("f").at("pending").is_null());
  ASSERT_TRUE(sluice({"pin", "nvme", *this / "f"}).ok());
  EXPECT_EQ(explain("f").at("hold"), "too_large");
}

TEST_F(MoveCancelTest, AListWithoutALimitHasAllAndAMountThatIsNotThereIsNone) {
  put("ssd", "f", "x");
  start();
  ASSERT_TRUE(sluice({"move", "--to", "hdd", "--wait", *this / "f"}).ok());
  const CommandResult all = sluice({"moves", "--limit", "0", root()});
  EXPECT_NE(all.out.find("/f"), std::string::npos) << all.out;
  for (const char* verb : {"status", "restart", "plan"}) {
    const CommandResult wrong = sluice({verb, *this / "nothing"});
    EXPECT_EQ(wrong.exit_code, 1) << verb;
    EXPECT_NE(wrong.err.find("nothing: No such file or directory"), std::string::npos) << wrong.err;
  }
}

TEST_F(MoveCancelTest, SomebodyWhoWaitsIsToldOfTheCancelAndAnInterruptSaysWhatGoesOn) {
  put("ssd", "f", pattern(kLargeSize, 1));
  put("ssd", "g", pattern(kLargeSize, 1));
  start(kForMinutes);
  CommandResult waited;
  std::thread waiter([&] { waited = sluice({"move", "--to", "hdd", "--wait", *this / "f"}); });
  const auto is_copied = [&](const char* name) {
    const Json moving = explain(name).at("moving");
    return moving.is_object() && moving.at("bytes") > 0;
  };
  EXPECT_TRUE(eventually([&] { return is_copied("f"); }));
  EXPECT_EQ(sluice({"move", "--cancel", *this / "f"}).exit_code, 0);
  waiter.join();
  EXPECT_EQ(waited.exit_code, 1) << waited.err;
  EXPECT_NE(waited.err.find("the move was cancelled"), std::string::npos) << waited.err;

  const std::string pid = base_ / "pid";
  CommandResult interrupted;
  std::thread shell([&] {
    interrupted = run_command({"sh", "-c",
                               sluice_binary() + " move --to hdd --wait " + *this / "g" +
                                   " & echo $! > " + pid + "; wait $!; echo $?"});
  });
  EXPECT_TRUE(eventually([&] { return is_copied("g"); }));
  ::kill(std::stoi(read_file(pid)), SIGTERM);
  shell.join();
  EXPECT_NE(interrupted.err.find("interrupted; the moves of 1 file go on"), std::string::npos)
      << interrupted.err;
  EXPECT_EQ(interrupted.out, "143\n");
  EXPECT_TRUE(explain("g").at("moving").is_object());
}

TEST_F(MoveCancelTest, ADrainWithoutRoomNamesTheFilesThatAreLeftAndNoOthers) {
  set_options("nvme", "capacity=20MiB");
  set_options("hdd", "capacity=20MiB");
  put("nvme", "a", pattern(14 << 20, 1));
  put("hdd", "b", pattern(14 << 20, 2));
  put("ssd", "d/large", pattern(kLargeSize, 3));
  put("ssd", "gone", "x");
  start();
  {
    // Its move waits, and then it is deleted.
    const UniqueFd held(::open((*this / "gone").c_str(), O_RDWR));
    ASSERT_EQ(sluice({"move", "--to", "hdd", *this / "gone"}).exit_code, 0);
    ASSERT_TRUE(eventually([&] { return explain("gone").at("pending").is_object(); }));
    ASSERT_EQ(::unlink(on("ssd", "gone").c_str()), 0);
  }
  const CommandResult drained = tell({"tier", "drain", "ssd"});
  EXPECT_EQ(drained.exit_code, 1);
  EXPECT_NE(drained.out.find("/d/large: no other tier has room for its 12.0 MiB"),
            std::string::npos)
      << drained.out << drained.err;
  EXPECT_NE(drained.err.find("1 file, 12.0 MiB, is left on ssd"), std::string::npos) << drained.err;
  EXPECT_NE(drained.err.find("sluice tier add"), std::string::npos) << drained.err;
  EXPECT_EQ(drained.out.find("gone"), std::string::npos) << drained.out;
  EXPECT_EQ(drained.err.find("gone"), std::string::npos) << drained.err;
}

}  // namespace
}  // namespace sluice::test
