// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/heat.hpp"

#include <gtest/gtest.h>

#include <ctime>
#include <thread>

#include "tests/support/memory_store.hpp"

namespace sluice {
namespace {

constexpr InodeId kFile{7}, kOther{8};

class HeatRecorderTest : public testing::Test {
 protected:
  test::MemoryStore store_;
  HeatRecorder recorder_{store_};
};

TEST_F(HeatRecorderTest, CountsWithoutTouchingTheStore) {
  const std::time_t before = std::time(nullptr);
  store_.fail_call(0);
  recorder_.count_opens(kFile, 1);
  recorder_.count_opens(kFile, 1);
  recorder_.count_opens(kOther, 1);
  EXPECT_EQ(store_.calls(), 0u);
  const auto heat = recorder_.heat(kFile);
  ASSERT_TRUE(heat);
  EXPECT_EQ(heat->opens, 2u);
  EXPECT_EQ(heat->score, 2);
  EXPECT_GE(heat->last_access, before);
  EXPECT_EQ(recorder_.heat(kOther)->opens, 1u);
  EXPECT_EQ(*recorder_.heat(InodeId{9}), Heat{});
  EXPECT_EQ(store_.heat(kFile)->opens, 0u);
}

TEST_F(HeatRecorderTest, FlushHandsEverythingToTheStoreOnce) {
  recorder_.count_opens(kFile, 1);
  recorder_.count_opens(kFile, 4);
  for (std::uint64_t id = 100; id < 200; ++id) recorder_.count_opens(InodeId{id}, 1);
  ASSERT_TRUE(recorder_.flush());
  EXPECT_EQ(store_.heat(kFile)->opens, 5u);
  for (std::uint64_t id = 100; id < 200; ++id) EXPECT_EQ(store_.heat(InodeId{id})->opens, 1u);
  ASSERT_TRUE(recorder_.flush());
  EXPECT_EQ(store_.heat(kFile)->opens, 5u);
  EXPECT_EQ(recorder_.heat(kFile)->opens, 5u);
}

TEST_F(HeatRecorderTest, AddsWhatTheStoreKnowsToWhatItDoesNot) {
  ASSERT_TRUE(store_.add_heat({{kFile, {3, 100, 3, 50}}}));
  recorder_.count_opens(kFile, 1);
  const auto heat = recorder_.heat(kFile);
  EXPECT_EQ(heat->opens, 4u);
  EXPECT_EQ(heat->score, 4);
  EXPECT_EQ(heat->gpu_bytes, 50u);
  EXPECT_GT(heat->last_access, 100);
}

TEST_F(HeatRecorderTest, NothingToFlushAsksNothingOfTheStore) {
  store_.fail_call(1);
  EXPECT_TRUE(recorder_.flush());
  EXPECT_FALSE(store_.has_failed());
}

TEST_F(HeatRecorderTest, AFailedFlushKeepsTheCounts) {
  recorder_.count_opens(kFile, 1);
  recorder_.count_opens(kOther, 1);
  const std::int64_t accessed = recorder_.heat(kFile)->last_access;
  store_.fail_call(1, ENOSPC);
  EXPECT_TRUE(failed_with(recorder_.flush(), ENOSPC));
  recorder_.count_opens(kFile, 1);
  EXPECT_EQ(recorder_.heat(kFile)->opens, 2u);
  EXPECT_EQ(store_.heat(kFile)->opens, 0u);
  ASSERT_TRUE(recorder_.flush());
  EXPECT_EQ(store_.heat(kFile)->opens, 2u);
  EXPECT_EQ(store_.heat(kFile)->score, 2);
  EXPECT_GE(store_.heat(kFile)->last_access, accessed);
  EXPECT_EQ(store_.heat(kOther)->opens, 1u);
}

TEST_F(HeatRecorderTest, AStoreThatCannotBeReadIsReported) {
  recorder_.count_opens(kFile, 1);
  store_.fail_call(1, EUCLEAN);
  EXPECT_TRUE(failed_with(recorder_.heat(kFile), EUCLEAN));
}

TEST_F(HeatRecorderTest, NoCountIsLostBetweenThreads) {
  constexpr int kThreads = 4, kOpens = 2000;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kOpens; ++i) {
          recorder_.count_opens(kFile, 1);
          recorder_.count_opens(InodeId{static_cast<std::uint64_t>(100 + i % 50)}, 1);
          if (t == 0 && i % 100 == 0) {
            EXPECT_TRUE(recorder_.flush());
          }
        }
      });
    }
  }
  ASSERT_TRUE(recorder_.flush());
  EXPECT_EQ(store_.heat(kFile)->opens, static_cast<std::uint64_t>(kThreads * kOpens));
  std::uint64_t others = 0;
  for (std::uint64_t id = 100; id < 150; ++id) others += store_.heat(InodeId{id})->opens;
  EXPECT_EQ(others, static_cast<std::uint64_t>(kThreads * kOpens));
}

}  // namespace
}  // namespace sluice
