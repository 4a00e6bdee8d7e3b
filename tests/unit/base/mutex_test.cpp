// SPDX-License-Identifier: BSD-2-Clause
#include "base/mutex.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace sluice {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct Counter {
  Mutex mutex;
  CondVar changed;
  StopCondVar stoppable;
  int value GUARDED_BY(mutex) = 0;

  void add() {
    const MutexLock lock(mutex);
    ++value;
    changed.notify_all();
    stoppable.notify_all();
  }
};

TEST(MutexLockTest, DoesNotHoldTheMutexBetweenUnlockAndLock) {
  Counter counter;
  MutexLock lock(counter.mutex);
  lock.unlock();
  std::thread([&] { counter.add(); }).join();
  lock.lock();
  EXPECT_EQ(counter.value, 1);
}

TEST(MutexLockTest, AdoptsAMutexThatWasLockedWithTryLock) {
  Counter counter;
  {
    if (!counter.mutex.try_lock()) FAIL();  // ASSERT_TRUE hides it from the analysis
    const MutexLock lock(counter.mutex, std::adopt_lock);
    ++counter.value;
  }
  std::thread([&] { counter.add(); }).join();
  const MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.value, 2);
}

TEST(CondVarTest, ANotificationEndsAWait) {
  Counter counter;
  std::jthread other([&] { counter.add(); });
  const MutexLock lock(counter.mutex);
  while (counter.value == 0) counter.changed.wait(counter.mutex);
  EXPECT_EQ(counter.value, 1);
}

TEST(CondVarTest, ATimeoutEndsAWait) {
  Counter counter;
  const MutexLock lock(counter.mutex);
  const auto deadline = steady_clock::now() + milliseconds(1);
  while (counter.changed.wait_until(counter.mutex, deadline)) {
  }
  EXPECT_GE(steady_clock::now(), deadline);
}

TEST(StopCondVarTest, AWaitEndsWhenItsConditionIsTrue) {
  Counter counter;
  const std::stop_source stop;
  std::jthread other([&] { counter.add(); });
  const MutexLock lock(counter.mutex);
  const auto is_one = [&]() REQUIRES(counter.mutex) { return counter.value == 1; };
  EXPECT_TRUE(counter.stoppable.wait(counter.mutex, stop.get_token(), is_one));
}

TEST(StopCondVarTest, ARequestToStopEndsAWaitAndASleep) {
  Counter counter;
  std::stop_source stop;
  std::jthread other([&] { stop.request_stop(); });
  const MutexLock lock(counter.mutex);
  EXPECT_FALSE(counter.stoppable.wait(counter.mutex, stop.get_token(), [] { return false; }));
  counter.stoppable.sleep(counter.mutex, stop.get_token(), hours(1));
}

TEST(StopCondVarTest, ANotificationDoesNotEndASleep) {
  Counter counter;
  const std::stop_source stop;
  const auto begun = steady_clock::now();
  std::jthread other([&] { counter.add(); });
  const MutexLock lock(counter.mutex);
  counter.stoppable.sleep(counter.mutex, stop.get_token(), milliseconds(20));
  EXPECT_GE(steady_clock::now() - begun, milliseconds(20));
}

}  // namespace
}  // namespace sluice
