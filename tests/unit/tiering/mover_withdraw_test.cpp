// SPDX-License-Identifier: BSD-2-Clause
// Moves that a user withdraws, at each step.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "tests/unit/tiering/movers.hpp"

namespace sluice {
namespace {

using std::chrono::hours;
using test::kMiB;
using test::MoverTest;
using Withdrawn = Mover::Withdrawn;

class MoverWithdrawTest : public MoverTest {
 protected:
  // Withdraws the move of `file` when the mover has copied (or verified) a piece of `path` for the
  // `calls`-th time.
  void withdraw_at(const std::string& path, int calls, const Move& file) {
    host_->on_piece = [this, path, calls, id = file.id](const std::string& at) {
      if (at == path && ++pieces_ == calls) was_ = mover_->withdraw(id).what;
    };
  }
  Move request(Move move) {
    move.reason = Reason::Requested;
    EXPECT_TRUE(mover_->request(move));
    return move;
  }
  bool is_kept(const Move& move) const { return *store_.has_request(move.id); }
  // The file is where it was, and nothing is left of its move, even much later.
  void expect_untouched(const Move& f) {
    finish();
    clock_.advance(hours(2));
    mover_->tick();
    mover_->file_closed(f.id);
    finish();
    EXPECT_TRUE(is_on("a", f));
    EXPECT_FALSE(is_on("b", f));
    EXPECT_TRUE(temporaries().empty());
    EXPECT_FALSE(mover_->is_waiting(f.id));
    EXPECT_FALSE(is_kept(f));
    EXPECT_EQ(mover_->progress().failed, 0u);
    EXPECT_EQ(mover_->withdraw(f.id).what, Withdrawn::Nothing);
  }

  std::atomic<int> pieces_{0};  // the mover's thread counts
  std::atomic<Withdrawn> was_{Withdrawn::Nothing};
};

TEST_F(MoverWithdrawTest, OneInTheQueueNeverBegins) {
  const Move f = make("/f", "x");
  start();
  mover_->pause();
  add({f});
  EXPECT_EQ(mover_->withdraw(f.id).what, Withdrawn::Ended);
  mover_->resume();
  expect_untouched(f);
  EXPECT_TRUE(host_->begun().empty());
  EXPECT_TRUE(receipts().empty());
}

TEST_F(MoverWithdrawTest, OneOfAnEarlierMountDoesNotComeBack) {
  const Move f = make("/f", "x");
  start();
  ASSERT_TRUE(store_.keep_requests({{f.id, {1, 0, "b", "/f"}}}));
  EXPECT_EQ(mover_->withdraw(f.id).what, Withdrawn::Ended);
  EXPECT_EQ(*mover_->resume_requests({}), 0u);
  expect_untouched(f);
}

TEST_F(MoverWithdrawTest, OneThatWaitsForAUserIsNotTriedAgain) {
  const Move f = make("/f", "x");
  host_->refuse("/f", EBUSY);
  start();
  request(f);
  finish();
  ASSERT_TRUE(mover_->is_waiting(f.id));
  host_->refuse("/f", 0);
  EXPECT_EQ(mover_->withdraw(f.id).what, Withdrawn::Ended);
  expect_untouched(f);
}

TEST_F(MoverWithdrawTest, OneThatIsBeingRefusedIsNotTriedAgain) {
  const Move f = make("/f", "x");
  host_->refuse("/f", EBUSY);
  start();
  host_->on_refusal = [&] { was_ = mover_->withdraw(f.id).what; };
  request(f);
  finish();
  host_->refuse("/f", 0);
  EXPECT_EQ(was_, Withdrawn::Ended);
  expect_untouched(f);
}

TEST_F(MoverWithdrawTest, ACopyStopsAtOnceAndLeavesAReceipt) {
  const Move f = make("/f", std::string(16 * kMiB, 'x'));
  withdraw_at("/f", 1, f);
  start();
  request(f);
  finish();
  const int then = pieces_;
  EXPECT_EQ(was_, Withdrawn::Ended);
  ASSERT_EQ(receipts().size(), 1u);
  EXPECT_EQ(receipts()[0].code, kWithdrawn);
  EXPECT_EQ(receipts()[0].reason, "the test; cancelled");
  EXPECT_LE(then, 2) << "it was copied further";
  expect_untouched(f);
}

TEST_F(MoverWithdrawTest, ACopyThatIsBeingSyncedIsRemovedAndTheRestOfItsBatchMoves) {
  const Move f = make("/f", "1"), g = make("/g", "2");
  withdraw_at("/g", 1, f);  // f is copied by then
  start();
  run_all({f, g});
  EXPECT_EQ(host_->begun().size(), 2u);
  EXPECT_EQ(was_, Withdrawn::Ended);
  EXPECT_TRUE(is_on("b", g));
  expect_untouched(f);
}

TEST_F(MoverWithdrawTest, ACopyThatIsBeingVerifiedIsRemoved) {
  const Move f = make("/f", "x");
  withdraw_at("/f", 2, f);  // the first piece is that of the copy
  start({.verify = true});
  request(f);
  finish();
  EXPECT_EQ(was_, Withdrawn::Ended);
  expect_untouched(f);
}

TEST_F(MoverWithdrawTest, AtTheSwitchItIsTooLate) {
  const Move f = make("/f", "content");
  TierIndex to = kNoTier;
  start();
  host_->on_switch = [&] {
    const auto withdrawal = mover_->withdraw(f.id);
    was_ = withdrawal.what;
    to = withdrawal.to;
  };
  request(f);
  finish();
  EXPECT_EQ(was_, Withdrawn::TooLate);
  EXPECT_EQ(to, f.to);
  EXPECT_EQ(test::read_file(at("b", "f")), "content");
  EXPECT_FALSE(is_on("a", f));
  EXPECT_FALSE(is_kept(f));
  ASSERT_EQ(receipts().size(), 1u);
  EXPECT_EQ(receipts()[0].code, 0);
  EXPECT_EQ(mover_->withdraw(f.id).what, Withdrawn::Nothing) << "it moved some time ago";
}

TEST_F(MoverWithdrawTest, ASwitchThatFailsAfterwardsIsNotTriedAgain) {
  const Move f = make("/f", "x");
  host_->refuse_copy("/f", EBUSY);
  start();
  host_->on_switch = [&] { was_ = mover_->withdraw(f.id).what; };
  request(f);
  finish();
  host_->on_switch = nullptr;
  host_->refuse_copy("/f", 0);
  EXPECT_EQ(was_, Withdrawn::TooLate);
  expect_untouched(f);
}

TEST_F(MoverWithdrawTest, ANewRequestIsMadeAfterwards) {
  const Move f = make("/f", "x");
  host_->on_piece = [&](const std::string&) {
    if (pieces_++ > 0) return;
    was_ = mover_->withdraw(f.id).what;
    request(move("/f", "a", "c"));
  };
  start();
  request(f);
  finish();
  EXPECT_EQ(was_, Withdrawn::Ended);
  EXPECT_TRUE(is_on("c", f));
  EXPECT_TRUE(temporaries().empty());
  EXPECT_FALSE(is_kept(f));
}

TEST_F(MoverWithdrawTest, APassIsTold) {
  const Move f = make("/f", "x");
  withdraw_at("/f", 1, f);
  start();
  std::atomic<int> code{0};
  std::atomic<bool> pending{true};
  const auto number = mover_->add({f}, Mover::Where::Back, [&](const Receipt& receipt, bool waits) {
    code = receipt.code;
    pending = waits;
  });
  finish();
  EXPECT_EQ(code, kWithdrawn);
  EXPECT_FALSE(pending);
  EXPECT_EQ(mover_->tally(number).moved, 0u);
  EXPECT_EQ(mover_->tally(number).failed, 0u);
  expect_untouched(f);
}

}  // namespace
}  // namespace sluice
