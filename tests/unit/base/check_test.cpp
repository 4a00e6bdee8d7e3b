// SPDX-License-Identifier: BSD-2-Clause
#include "base/check.hpp"

#include <gtest/gtest.h>

#include <csignal>

#include "base/mutex.hpp"
#include "base/sanitizers.hpp"

namespace sluice {
namespace {

class CheckDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "a sanitizer's threads do not survive the fork";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

TEST_F(CheckDeathTest, BrokenContractAbortsWithItsSentence) {
  EXPECT_EXIT(SLUICE_CHECK(1 + 1 == 3, "the sum is three"), testing::KilledBySignal(SIGABRT),
              "broken contract: the sum is three \\(.*check_test.cpp:");
}

TEST(CheckTest, KeptContractCostsNothingElse) {
  int asked = 0;
  SLUICE_CHECK(++asked == 1, "the condition is evaluated once");
  EXPECT_EQ(asked, 1);
}

TEST_F(CheckDeathTest, LockThatNobodyHoldsIsFound) {
  Mutex mutex;
  SharedMutex shared;
  EXPECT_EXIT(mutex.assert_held(), testing::KilledBySignal(SIGABRT), "the mutex is locked");
  EXPECT_EXIT(shared.assert_held_shared(), testing::KilledBySignal(SIGABRT), "the lock is held");
  EXPECT_EXIT(shared.assert_held(), testing::KilledBySignal(SIGABRT), "held exclusively");
}

TEST_F(CheckDeathTest, SharedLockIsNotAnExclusiveOne) {
  SharedMutex shared;
  {
    const ExclusiveLock lock(shared);
    shared.assert_held();
    shared.assert_held_shared();
  }
  const SharedLock lock(shared);
  shared.assert_held_shared();
  EXPECT_EXIT(shared.assert_held(), testing::KilledBySignal(SIGABRT), "held exclusively");
}

TEST(CheckTest, LockedMutexIsHeld) {
  Mutex mutex;
  const MutexLock lock(mutex);
  mutex.assert_held();
}

}  // namespace
}  // namespace sluice
