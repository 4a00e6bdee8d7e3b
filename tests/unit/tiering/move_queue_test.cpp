// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/move_queue.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace sluice {
namespace {

using Place = MoveQueue::Place;

class MoveQueueTest : public testing::Test {
 protected:
  Move requested(std::uint64_t id, uid_t user) const {
    Move move;
    move.id = InodeId{id};
    move.from = 0;
    move.to = 1;
    move.bytes = 10;
    move.user = user;
    return move;
  }
  Move planned(std::uint64_t id, TierIndex to = 1) const {
    Move move = requested(id, 0);
    move.reason = Reason::Hot;
    move.to = to;
    return move;
  }
  void ask(std::uint64_t id, uid_t user) { queue_.put({requested(id, user), 0}, Place::Asked); }
  void plan(std::uint64_t id, TierIndex to = 1) { queue_.put({planned(id, to), 0}, Place::Last); }

  using Ids = std::vector<std::uint64_t>;
  static Ids ids_of(const std::vector<MoveQueue::Job>& jobs) {
    Ids out;
    for (const auto& job : jobs) out.push_back(to_number(job.move.id));
    return out;
  }
  Ids take(std::size_t most = 1) {
    std::size_t count = 1;
    return ids_of(queue_.take(choice_, [&](const Move&, const Move&) { return count++ < most; }));
  }
  Ids take_all() {
    Ids out;
    while (!queue_.empty()) out.push_back(take().at(0));
    return out;
  }

  MoveQueue queue_;
  MoveQueue::Choice choice_{.can_go = [](TierIndex, TierIndex) { return true; },
                            .is_moving = [](InodeId) { return false; },
                            .only_requested = false};
};

TEST_F(MoveQueueTest, PlannedMovesKeepTheirOrder) {
  for (const std::uint64_t id : {5, 3, 9}) plan(id);
  EXPECT_EQ(take_all(), (Ids{5, 3, 9}));
}

TEST_F(MoveQueueTest, RequestedMovesGoBeforePlannedMoves) {
  plan(1);
  ask(2, 1000);
  plan(3);
  EXPECT_EQ(take_all(), (Ids{2, 1, 3}));
}

TEST_F(MoveQueueTest, UsersTakeTurns) {
  for (std::uint64_t id = 1; id <= 4; ++id) ask(id, 1000);
  EXPECT_EQ(take(), Ids{1});
  ask(11, 1001);
  ask(12, 1001);
  EXPECT_EQ(take_all(), (Ids{2, 11, 3, 12, 4}));
}

TEST_F(MoveQueueTest, AFileIsQueuedOnce) {
  plan(1, 1);
  plan(1, 2);
  ask(7, 1000);
  ask(7, 1001);
  EXPECT_EQ(queue_.size(), 2u);
  EXPECT_EQ(queue_.bytes(), 20u);
  EXPECT_EQ(queue_.count_of(1000), 0u);
  EXPECT_EQ(queue_.count_of(1001), 1u);
  ASSERT_NE(queue_.find(InodeId{1}), nullptr);
  EXPECT_EQ(queue_.find(InodeId{1})->to, 2);
  EXPECT_EQ(take_all(), (Ids{7, 1}));
  EXPECT_EQ(queue_.bytes(), 0u);
  EXPECT_EQ(queue_.count_of(1001), 0u);
}

TEST_F(MoveQueueTest, MovesThatCannotStartAreSkipped) {
  plan(1, 2);
  plan(2, 1);
  choice_.can_go = [](TierIndex, TierIndex to) { return to != 2; };
  EXPECT_EQ(take(), Ids{2});
  EXPECT_EQ(take(), Ids{});
  EXPECT_EQ(queue_.size(), 1u);
}

TEST_F(MoveQueueTest, FilesThatAreMovingAreSkipped) {
  plan(1);
  plan(2);
  choice_.is_moving = [](InodeId id) { return id == InodeId{1}; };
  EXPECT_EQ(take(2), Ids{2});
}

TEST_F(MoveQueueTest, ABatchEndsBeforeAPlannedMoveOfAnotherLane) {
  plan(1);
  plan(2);
  plan(3, 2);
  plan(4);
  EXPECT_EQ(take(10), (Ids{1, 2}));
  EXPECT_EQ(take(10), (Ids{3}));
  EXPECT_EQ(take(10), (Ids{4}));
}

TEST_F(MoveQueueTest, OnlyRequestedMovesAreTakenWhilePaused) {
  plan(1);
  ask(2, 1000);
  choice_.only_requested = true;
  EXPECT_EQ(take(10), Ids{2});
  EXPECT_EQ(take(10), Ids{});
}

TEST_F(MoveQueueTest, MovesWithAListenerCanBeRemoved) {
  plan(1);
  queue_.put({planned(2), 5}, Place::Last);
  EXPECT_TRUE(queue_.erase_reported());
  EXPECT_FALSE(queue_.erase_reported());
  EXPECT_EQ(take_all(), Ids{1});
}

TEST_F(MoveQueueTest, AVisitInPiecesSeesAllMovesInTheirOrder) {
  plan(1, 2);
  plan(2, 1);
  plan(3, 2);
  ask(4, 1000);
  ask(5, 1000);
  ask(6, 1001);
  Ids seen;
  std::optional<MoveQueue::Key> after;
  const auto visit_two = [&] {
    std::size_t left = 2;
    return queue_.visit(after, [&](const Move& move) {
      seen.push_back(to_number(move.id));
      return --left > 0;
    });
  };
  EXPECT_TRUE(visit_two());
  EXPECT_TRUE(visit_two());
  queue_.erase(InodeId{2});  // what is gone or new in between does no harm
  plan(7);
  EXPECT_TRUE(visit_two());
  EXPECT_FALSE(visit_two());
  EXPECT_EQ(seen, (Ids{4, 6, 5, 1, 3, 7}));
  EXPECT_EQ(take_all(), seen);
}

// This took seconds when each operation searched all moves.
TEST_F(MoveQueueTest, AMillionMovesAreFast) {
  for (std::uint64_t id = 1; id <= 1'000'000; ++id) ask(id, 1000);
  ask(2'000'000, 1001);
  EXPECT_EQ(take(2), (Ids{1, 2'000'000}));
}

}  // namespace
}  // namespace sluice
