// SPDX-License-Identifier: BSD-2-Clause
#include "fs/gpu/request_turn.hpp"

#include <gtest/gtest.h>

namespace sluice {
namespace {

using std::chrono::milliseconds;

class RequestTurnTest : public testing::Test {
 protected:
  RequestTurn make() {
    return RequestTurn([this] { return others_; }, [this] { return now_; });
  }
  // Simulates a disk that transfers `speed` bytes in a millisecond.
  void work(std::uint64_t bytes, std::uint64_t speed) { now_ += milliseconds(bytes / speed); }

  unsigned others_ = 0;
  std::chrono::steady_clock::time_point now_{};
};

TEST_F(RequestTurnTest, ContinuesWhileNoOtherRequestWaits) {
  RequestTurn turn = make();
  for (int i = 0; i < 100; ++i) {
    now_ += milliseconds(50);
    EXPECT_FALSE(turn.is_over(turn.slice()));
  }
}

TEST_F(RequestTurnTest, SlicesMatchTheSpeedOfTheDisk) {
  for (const std::uint64_t speed : {1u << 17, 1u << 20, 1u << 23}) {  // 128 MB/s to 8 GB/s
    RequestTurn turn = make();
    for (int i = 0; i < 10; ++i) {
      const std::uint64_t bytes = turn.slice();
      if (i > 3) {
        EXPECT_LE(bytes / speed, 21u) << "milliseconds, at " << speed;
      }
      work(bytes, speed);
      turn.is_over(bytes);
    }
    EXPECT_GE(turn.slice() / speed, 15u) << speed;
  }
}

TEST_F(RequestTurnTest, AllWaitingRequestsShareOneTurn) {
  for (const unsigned others : {1u, 10u, 100u}) {
    others_ = others;
    const auto begin = now_;
    RequestTurn turn = make();
    for (bool is_over = false; !is_over;) {
      const std::uint64_t bytes = turn.slice();
      now_ += std::chrono::microseconds(bytes / 1000);  // 1 GB/s
      is_over = turn.is_over(bytes);
    }
    EXPECT_LE((now_ - begin) * (others + 1), milliseconds(100)) << others;
  }
}

TEST_F(RequestTurnTest, SliceGrowsOnlyGradually) {
  RequestTurn turn = make();
  const std::uint64_t first = turn.slice();
  now_ += std::chrono::microseconds(1);  // takes almost no time
  turn.is_over(first);
  EXPECT_LE(turn.slice(), first * RequestTurn::kGrowth);
}

}  // namespace
}  // namespace sluice
