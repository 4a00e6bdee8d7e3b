// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/heat/heat.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <thread>
#include <vector>

#include "tests/support/fake_clock.hpp"
#include "tests/support/memory_store.hpp"

namespace sluice {
namespace {

constexpr InodeId kFile{7}, kOther{8};

class HeatRecorderTest : public testing::Test {
 protected:
  static constexpr std::chrono::seconds kHalfLife{10};

  test::FakeClock clock_{1000};
  test::MemoryStore store_{kHalfLife};
  HeatRecorder recorder_{store_, kHalfLife, clock_};
};

// The recent count hardly decays in the seconds of a test.
void expect_counts(Heat found, const Heat& expected) {
  EXPECT_NEAR(found.recent, expected.recent, 0.01);
  found.recent = expected.recent;
  EXPECT_EQ(found, expected);
}

TEST_F(HeatRecorderTest, CountsWithoutTouchingTheStore) {
  store_.fail_call(0);
  recorder_.record(kFile, {.opens = 1});
  recorder_.record(kFile, {.opens = 1});
  recorder_.record(kOther, {.opens = 1});
  EXPECT_EQ(store_.calls(), 0u);
  const auto heat = recorder_.heat(kFile);
  ASSERT_TRUE(heat);
  EXPECT_EQ(heat->opens, 2u);
  EXPECT_EQ(heat->score, 2);
  EXPECT_EQ(heat->last_access, 1000);
  EXPECT_EQ(recorder_.heat(kOther)->opens, 1u);
  EXPECT_EQ(*recorder_.heat(InodeId{9}), Heat{});
  EXPECT_EQ(store_.heat(kFile)->opens, 0u);
}

TEST_F(HeatRecorderTest, FlushWritesEverythingToTheStoreOnce) {
  recorder_.record(kFile, {.opens = 1});
  recorder_.record(kFile, {.opens = 4});
  for (std::uint64_t id = 100; id < 200; ++id) recorder_.record(InodeId{id}, {.opens = 1});
  ASSERT_TRUE(recorder_.flush());
  EXPECT_EQ(store_.heat(kFile)->opens, 5u);
  for (std::uint64_t id = 100; id < 200; ++id) EXPECT_EQ(store_.heat(InodeId{id})->opens, 1u);
  ASSERT_TRUE(recorder_.flush());
  EXPECT_EQ(store_.heat(kFile)->opens, 5u);
  EXPECT_EQ(recorder_.heat(kFile)->opens, 5u);
}

TEST_F(HeatRecorderTest, UsesTheRealClockByDefault) {
  const std::time_t before = std::time(nullptr);
  HeatRecorder recorder(store_, kHalfLife);
  recorder.record(kFile, {.opens = 1});
  EXPECT_GE(recorder.heat(kFile)->last_access, before);
}

TEST_F(HeatRecorderTest, AReadIntoAGpuCountsLikeAnOpen) {
  recorder_.record(kFile, {.gpu_bytes = 4096});
  recorder_.record(kFile, {.gpu_bytes = 1});
  recorder_.record(kFile, {.opens = 2});
  EXPECT_EQ(*recorder_.heat(kFile), (Heat{4, 1000, 2, 4097, 4, 1000}));
  ASSERT_TRUE(recorder_.flush());
  EXPECT_EQ(*recorder_.heat(kFile), (Heat{4, 1000, 2, 4097, 4, 1000}));
}

TEST_F(HeatRecorderTest, AddsPendingCountsToTheDecayedStoredHeat) {
  ASSERT_TRUE(store_.add_heat({{kFile, {8, 990, 3, 50}}}));
  recorder_.record(kFile, {.opens = 1});
  expect_counts(*recorder_.heat(kFile), {5, 1000, 4, 50, 1, 0});
}

TEST_F(HeatRecorderTest, CountsOlderThanTheStoredOnesAreDecayed) {
  ASSERT_TRUE(store_.add_heat({{kFile, {8, 1010, 3, 0}}}));
  recorder_.record(kFile, {.opens = 2});
  expect_counts(*recorder_.heat(kFile), {9, 1010, 5, 0, 2, 0});
}

TEST_F(HeatRecorderTest, PendingCountsDecayToo) {
  recorder_.record(kFile, {.opens = 8});
  clock_.advance(std::chrono::seconds(10));
  recorder_.record(kFile, {.opens = 1});
  expect_counts(*recorder_.heat(kFile), {5, 1010, 9, 0, 9, 1000});
  ASSERT_TRUE(recorder_.flush());
  expect_counts(*store_.heat(kFile), {5, 1010, 9, 0, 9, 1000});
}

TEST_F(HeatRecorderTest, AClockSetBackDoesNotReduceHeat) {
  recorder_.record(kFile, {.opens = 2});
  clock_.advance(-std::chrono::seconds(990));
  recorder_.record(kFile, {.opens = 1});
  const auto heat = recorder_.heat(kFile);
  EXPECT_EQ(heat->opens, 3u);
  EXPECT_EQ(heat->last_access, 1000);
  EXPECT_GE(heat->score, 2);
}

TEST_F(HeatRecorderTest, ManyFilesAreWrittenInBatchesAndWrittenOnesAreNotRepeated) {
  constexpr std::uint64_t kFiles = 50'000;
  for (std::uint64_t id = 1; id <= kFiles; ++id) recorder_.record(InodeId{id}, {.opens = 1});
  store_.fail_call(3, ENOSPC);
  EXPECT_TRUE(failed_with(recorder_.flush(), ENOSPC));
  const auto stored = [&] {
    std::uint64_t opens = 0;
    EXPECT_TRUE(store_.each_heat([&](InodeId, const Heat& heat) { return opens += heat.opens; }));
    return opens;
  };
  EXPECT_GT(stored(), 0u);
  EXPECT_LT(stored(), kFiles);
  for (std::uint64_t id = 1; id <= kFiles; ++id) {
    ASSERT_EQ(recorder_.heat(InodeId{id})->opens, 1u) << id;
  }
  ASSERT_TRUE(recorder_.flush());
  EXPECT_EQ(stored(), kFiles);
}

TEST_F(HeatRecorderTest, AReaderSeesEveryCountDuringAFlush) {
  recorder_.record(kFile, {.opens = 1});
  std::uint64_t expected = 1;
  std::jthread flusher([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) EXPECT_TRUE(recorder_.flush());
  });
  for (int i = 0; i < 2000; ++i) {
    ASSERT_EQ(recorder_.heat(kFile)->opens, expected);
    recorder_.record(kFile, {.opens = 1});
    ++expected;
  }
}

TEST_F(HeatRecorderTest, AnEmptyFlushDoesNotCallTheStore) {
  store_.fail_call(1);
  EXPECT_TRUE(recorder_.flush());
  EXPECT_FALSE(store_.has_failed());
}

TEST_F(HeatRecorderTest, AFailedFlushKeepsTheCounts) {
  recorder_.record(kFile, {.opens = 1});
  recorder_.record(kOther, {.opens = 1});
  store_.fail_call(1, ENOSPC);
  EXPECT_TRUE(failed_with(recorder_.flush(), ENOSPC));
  recorder_.record(kFile, {.opens = 1});
  EXPECT_EQ(recorder_.heat(kFile)->opens, 2u);
  EXPECT_EQ(store_.heat(kFile)->opens, 0u);
  ASSERT_TRUE(recorder_.flush());
  EXPECT_EQ(store_.heat(kFile)->opens, 2u);
  EXPECT_EQ(store_.heat(kFile)->score, 2);
  EXPECT_EQ(store_.heat(kFile)->last_access, 1000);
  EXPECT_EQ(store_.heat(kOther)->opens, 1u);
}

TEST_F(HeatRecorderTest, AStoreThatCannotBeReadIsReported) {
  recorder_.record(kFile, {.opens = 1});
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
          recorder_.record(kFile, {.opens = 1});
          recorder_.record(InodeId{static_cast<std::uint64_t>(100 + i % 50)}, {.opens = 1});
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

TEST_F(HeatRecorderTest, WhatIsNotStoredIsBounded) {
  for (std::uint64_t id = 1; id <= 2 * HeatRecorder::kMostPending; ++id)
    recorder_.record(InodeId{id}, {.opens = 1});
  EXPECT_LE(recorder_.pending(), HeatRecorder::kMostPending);
  // Files that are counted already still are.
  recorder_.record(InodeId{1}, {.opens = 1});
  EXPECT_EQ(recorder_.heat(InodeId{1})->opens, 2u);
}

}  // namespace
}  // namespace sluice
