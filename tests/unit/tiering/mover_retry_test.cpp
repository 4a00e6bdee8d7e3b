// SPDX-License-Identifier: BSD-2-Clause
// Moves that cannot be made now: what they wait for and when they are retried.
#include <sys/vfs.h>

#include <chrono>

#include "tests/support/loop_fs.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/tiering/movers.hpp"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::eventually;
using test::kMiB;
using test::MoverTest;
using Paths = std::vector<std::string>;

class MoverRetryTest : public MoverTest {};

TEST_F(MoverRetryTest, AFileInUseMovesWhenItIsClosed) {
  const Move f = make("/f", "x");
  host_->refuse("/f", EBUSY);
  start();
  run_all({f});
  EXPECT_EQ(code_of(f), EBUSY);
  EXPECT_TRUE(mover_->is_waiting(f.id));
  host_->refuse("/f", 0);
  mover_->file_closed(f.id);
  finish();
  EXPECT_TRUE(is_on("b", f));
  EXPECT_FALSE(mover_->is_waiting(f.id));
}

TEST_F(MoverRetryTest, AFileClosedDuringTheRefusalMovesAtTheNextTick) {
  const Move f = make("/f", "x");
  host_->refuse("/f", EBUSY);
  host_->on_refusal = [&] {
    host_->refuse("/f", 0);
    mover_->file_closed(f.id);
  };
  start();
  run_all({f});
  EXPECT_EQ(code_of(f), EBUSY);
  mover_->tick();
  finish();
  EXPECT_TRUE(is_on("b", f));
}

TEST_F(MoverRetryTest, AUsersRequestIsNotReplacedByTheRetryOfAnOlderMove) {
  const Move f = make("/f", "x");
  Move request = move("/f", "a", "c");
  request.reason = Reason::Requested;
  host_->refuse("/f", EBUSY);
  int refusals = 0;
  host_->on_refusal = [&] {
    if (++refusals == 1) {
      ASSERT_TRUE(mover_->request(request));
      mover_->file_closed(f.id);
    } else {
      host_->refuse("/f", 0);
      mover_->tick();
    }
  };
  start();
  run_all({f});
  EXPECT_EQ(refusals, 2);
  mover_->file_closed(f.id);
  finish();
  EXPECT_TRUE(is_on("c", f));
  EXPECT_FALSE(mover_->is_waiting(f.id));
}

TEST_F(MoverRetryTest, ClosingAFileThatWaitsForAnotherCauseChangesNothing) {
  const Move f = make("/f", "x");
  host_->refuse("/f", EPERM);
  start();
  run_all({f});
  mover_->file_closed(f.id);
  finish();
  EXPECT_EQ(host_->begun().size(), 1u);
  EXPECT_EQ(code_of(f), EPERM);
}

TEST_F(MoverRetryTest, AFailedMoveIsRetriedAfterADelay) {
  const Move f = make("/f", "x");
  host_->refuse_copy("/f", EIO);
  start();
  run_all({f});
  EXPECT_EQ(code_of(f), EIO);
  for (int i = 0; i < 20; ++i) {
    mover_->tick();
    finish();
  }
  EXPECT_EQ(host_->begun().size(), 1u);
  host_->refuse_copy("/f", 0);
  clock_.advance(seconds(10));
  mover_->tick();
  finish();
  EXPECT_TRUE(is_on("b", f));
}

TEST_F(MoverRetryTest, MovesAreRetriedAtOnceWhenATierComesBack) {
  const Move f = make("/f", "x");
  start();
  ASSERT_EQ(::rename((dir_ / "b").c_str(), (dir_ / "away").c_str()), 0);
  ASSERT_TRUE((*pool_)[1].check_presence());
  run_all({f});
  EXPECT_EQ(code_of(f), EIO);
  mover_->tick();
  EXPECT_EQ(mover_->progress().queued, 0u);
  ASSERT_EQ(::rename((dir_ / "away").c_str(), (dir_ / "b").c_str()), 0);
  ASSERT_TRUE((*pool_)[1].check_presence());
  (*pool_)[1].admit();
  mover_->tick();
  finish();
  EXPECT_TRUE(is_on("b", f));
}

TEST_F(MoverRetryTest, AFailureLeavesTheFileAndAReceipt) {
  const Move f = make("/f", "content");
  host_->refuse_copy("/f", EIO);
  start();
  run_all({f});
  EXPECT_EQ(test::read_file(at("a", "f")), "content");
  EXPECT_TRUE(temporaries().empty());
  ASSERT_EQ(receipts().size(), 1u);
  EXPECT_EQ(receipts()[0].code, EIO);
  EXPECT_NE(receipts()[0].reason.find("told to fail"), std::string::npos);
  EXPECT_EQ(mover_->progress().failed, 1u);
}

TEST_F(MoverRetryTest, AFailureDoesNotStopTheRestOfTheBatch) {
  const std::vector<Move> moves{make("/f", "1"), make("/g", "2"), make("/h", "3"), make("/i", "4")};
  host_->refuse("/f", EBUSY);
  host_->refuse_copy("/h", EIO);
  start();
  run_all(moves);
  EXPECT_EQ(shown(), "a/f 644 \"1\"\na/h 644 \"3\"\nb/g 644 \"2\"\nb/i 644 \"4\"\n");
  EXPECT_TRUE(temporaries().empty());
}

TEST_F(MoverRetryTest, MovesOfMissingOrAlreadyMovedFilesAreDropped) {
  const Move f = make("/f", "x"), g = make("/g", "x"), h = make("/h", "x");
  host_->refuse("/f", EALREADY);
  host_->refuse("/g", ESTALE);
  host_->refuse("/h", ENOENT);
  start();
  run_all({f, g, h});
  EXPECT_TRUE(mover_->pending().empty());
  EXPECT_TRUE(receipts().empty());
  EXPECT_EQ(mover_->progress().failed, 0u);
}

TEST_F(MoverRetryTest, APendingMoveCanBeCancelled) {
  const Move f = make("/f", "x");
  host_->refuse("/f", EBUSY);
  start();
  run_all({f});
  mover_->cancel(f.id);
  mover_->file_closed(f.id);
  finish();
  EXPECT_EQ(host_->begun().size(), 1u);
  EXPECT_TRUE(mover_->pending().empty());
}

// Uses its own filesystem, so that it can be full.
class FullTierTest : public MoverTest {
 protected:
  void prepare() override {
    if (!test::require_loop("unit", "ext4")) return;
    disk_ = std::make_unique<test::LoopFs>(dir_ / "b", "ext4", 32 * kMiB);
    use({tier("a", dir_.make_dir("a")), tier("b", disk_->path())});
  }
  void TearDown() override {
    mover_.reset();
    pool_.reset();
  }
  void leave(std::uint64_t bytes) const {
    const std::string path = at("b", "ballast");
    test::write_file(path, "");
    struct statfs fs {};
    ASSERT_EQ(::statfs(disk_->path().c_str(), &fs), 0);
    const std::uint64_t free = fs.f_bavail * static_cast<std::uint64_t>(fs.f_bsize);
    ASSERT_EQ(::posix_fallocate(test::open_file(path).get(), 0, static_cast<off_t>(free - bytes)),
              0);
  }

  std::unique_ptr<test::LoopFs> disk_;
};

TEST_F(FullTierTest, MovesAreNotRetriedWithoutMoreRoom) {
  const Move f = make("/f", test::pattern(4 * kMiB, 1));
  leave(2 * kMiB);
  start();
  run_all({f});
  EXPECT_EQ(code_of(f), ENOSPC);
  for (int i = 0; i < 20; ++i) {
    mover_->tick();
    finish();
  }
  EXPECT_EQ(host_->begun().size(), 1u);
  EXPECT_EQ(receipts().size(), 1u);
  EXPECT_EQ(code_of(f), ENOSPC);
}

TEST_F(FullTierTest, MovesAreRetriedWhenThereIsMoreRoom) {
  const Move f = make("/f", test::pattern(4 * kMiB, 1));
  leave(2 * kMiB);
  start();
  run_all({f});
  ASSERT_EQ(::unlink(at("b", "ballast").c_str()), 0);
  EXPECT_TRUE(eventually([&] {
    mover_->tick();
    return is_on("b", f);
  }));
  finish();
  EXPECT_FALSE(is_on("a", f));
}

TEST_F(FullTierTest, ACopyThatDoesNotFitIsRemoved) {
  Move f = make("/f", test::pattern(4 * kMiB, 1));
  f.bytes = 4096;  // the file grew after the plan was made
  leave(2 * kMiB);
  start();
  run_all({f});
  EXPECT_EQ(code_of(f), ENOSPC);
  EXPECT_TRUE(temporaries().empty());
  for (int i = 0; i < 20; ++i) {
    mover_->tick();
    finish();
  }
  EXPECT_EQ(host_->begun().size(), 1u);
}

TEST_F(FullTierTest, RoomIsNotPromisedTwice) {
  const Move f = make("/f", test::pattern(2 * kMiB, 1)), g = make("/g", test::pattern(2 * kMiB, 2));
  leave(4 * kMiB);
  start();
  run_all({f, g});  // one batch: both are copied before the switch
  EXPECT_EQ(code_of(f), 0);
  EXPECT_EQ(code_of(g), ENOSPC);
}

}  // namespace
}  // namespace sluice
