// SPDX-License-Identifier: BSD-2-Clause
#include "fs/fuse/slow_requests.hpp"

#include <gtest/gtest.h>

#include <latch>
#include <string>

#include "base/mutex.hpp"

namespace sluice {
namespace {

constexpr uid_t kFirst = 1000, kSecond = 1001;

TEST(SlowRequestsTest, AUserWithManyRequestsLeavesThreadsToOthers) {
  std::latch others(2), go(1);
  {
    SlowRequests slow(4);
    for (int i = 0; i < 10; ++i) slow.add(kFirst, [&] { go.wait(); });
    for (int i = 0; i < 2; ++i) slow.add(kSecond, [&] { others.count_down(); });
    others.wait();  // the requests of the first user do not end meanwhile
    go.count_down();
  }
}

TEST(SlowRequestsTest, UsersTakeTurns) {
  Mutex mutex;
  std::string order;
  std::latch done(6), begun(1), go(1);
  {
    SlowRequests slow(1);
    slow.add(0, [&] {
      begun.count_down();
      go.wait();
    });
    begun.wait();
    const auto note = [&](char who) {
      return [&, who] {
        const MutexLock lock(mutex);
        order += who;
        done.count_down();
      };
    };
    for (int i = 0; i < 4; ++i) slow.add(kFirst, note('a'));
    for (int i = 0; i < 2; ++i) slow.add(kSecond, note('b'));
    go.count_down();
    done.wait();
  }
  EXPECT_EQ(order, "ababaa");
}

TEST(SlowRequestsTest, DestructionWaitsForRunningRequests) {
  bool ran = false;
  std::latch begun(1);
  {
    SlowRequests slow(1);
    slow.add(kFirst, [&] {
      begun.count_down();
      ran = true;
    });
    begun.wait();
  }
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace sluice
