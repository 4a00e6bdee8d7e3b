// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/courtesy.hpp"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>

#include "tests/support/fake_clock.hpp"

namespace sluice {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Two tiers on disks of their own. Each step of the test is a quarter of a second.
class CourtesyTest : public ::testing::Test {
 protected:
  CourtesyTest() {
    system_.disks = {{makedev(8, 1), DiskCounters{}}, {makedev(8, 2), DiskCounters{}}};
    courtesy_.share(0, 1);
  }
  double step() {
    clock_.advance(milliseconds(250));
    return courtesy_.share(0, 1);
  }
  double steps(int count, const std::function<void()>& each) {
    double share = 1;
    for (int i = 0; i < count; ++i) {
      each();
      share = step();
    }
    return share;
  }
  DiskCounters& disk(std::size_t tier) { return *system_.disks[tier].counters; }
  void use(std::size_t tier, std::uint64_t requests, std::uint64_t bytes) {
    disk(tier).reads += requests;
    disk(tier).read_bytes += bytes;
  }
  void wait() { system_.waited_disk += milliseconds(200); }

  test::FakeClock clock_;
  Courtesy::Reading system_;
  Courtesy courtesy_{[this] { return system_; }, clock_};
};

TEST_F(CourtesyTest, MovesWorkAllTheTimeIfNobodyElseDoes) {
  EXPECT_EQ(steps(8, [&] { wait(); }), 1) << "it is the moves that wait for the disk";
}

TEST_F(CourtesyTest, MovesShrinkWithinASecondIfUsersSendRequestsAndSomebodyWaits) {
  EXPECT_EQ(steps(3,
                  [&] {
                    system_.requests += 1000;
                    wait();
                  }),
            Courtesy::kLeast);
  EXPECT_EQ(courtesy_.least_share(), Courtesy::kLeast);
}

TEST_F(CourtesyTest, WaitingForAProcessorCountsAsWell) {
  EXPECT_EQ(steps(3,
                  [&] {
                    system_.requests += 1000;
                    system_.waited_cpu += milliseconds(200);
                  }),
            Courtesy::kLeast);
}

TEST_F(CourtesyTest, MovesKeepHalfOfTheTimeBesideUsersIfNobodyWaits) {
  EXPECT_EQ(steps(8, [&] { system_.requests += 1000; }), 0.5);
}

TEST_F(CourtesyTest, SomebodyWhoLooksAroundIsNoWork) {
  EXPECT_EQ(steps(8,
                  [&] {
                    system_.requests += 10;
                    wait();
                  }),
            1);
}

TEST_F(CourtesyTest, MovesWorkAgainAsSoonAsTheOthersEnd) {
  steps(4, [&] {
    system_.requests += 1000;
    wait();
  });
  EXPECT_EQ(steps(4, [] {}), 1);
}

TEST_F(CourtesyTest, ManySmallReadsOfADiskCount) {
  EXPECT_EQ(steps(4,
                  [&] {
                    use(1, 30, 30 * 4096);
                    wait();
                  }),
            Courtesy::kLeast);
}

TEST_F(CourtesyTest, FewLargeReadsOfADiskCount) {
  EXPECT_EQ(steps(4,
                  [&] {
                    use(0, 8, 8 << 20);
                    wait();
                  }),
            Courtesy::kLeast);
}

TEST_F(CourtesyTest, WhatMovesDoThemselvesDoesNotCount) {
  EXPECT_EQ(steps(16,
                  [&] {
                    courtesy_.began_file(0, 1);
                    courtesy_.has_read(0, 64 << 20);
                    courtesy_.has_written(1, 64 << 20);
                    use(0, 512, 64 << 20);
                    disk(1).writes += 520;
                    disk(1).written_bytes += 65 << 20;
                    wait();
                  }),
            1);
}

TEST_F(CourtesyTest, WritesThatComeToTheDiskLaterDoNotCount) {
  courtesy_.has_written(1, 64 << 20);
  EXPECT_EQ(steps(3, [&] { wait(); }), 1);
  disk(1).writes += 100;
  disk(1).written_bytes += 16 << 20;
  wait();
  EXPECT_EQ(step(), 1);
}

TEST_F(CourtesyTest, ReadsFromThePageCacheExcuseNothingLater) {
  courtesy_.has_read(0, 1 << 30);
  steps(40, [] {});
  EXPECT_EQ(steps(4,
                  [&] {
                    use(0, 1000, 64 << 20);
                    wait();
                  }),
            Courtesy::kLeast);
}

TEST_F(CourtesyTest, OnlyTheTierWhoseDiskIsUsedIsSpared) {
  system_.disks.push_back({makedev(8, 3), DiskCounters{}});
  step();
  steps(4, [&] {
    use(2, 1000, 64 << 20);
    wait();
  });
  EXPECT_EQ(courtesy_.share(0, 1), 1);
  EXPECT_EQ(courtesy_.share(0, 2), Courtesy::kLeast);
}

TEST_F(CourtesyTest, TiersOnOneDiskAreLookedAtTogether) {
  system_.disks[1].device = system_.disks[0].device;
  step();
  EXPECT_EQ(steps(8,
                  [&] {
                    courtesy_.has_read(0, 64 << 20);
                    courtesy_.has_written(1, 64 << 20);
                    for (const std::size_t tier : {0, 1}) {
                      use(tier, 512, 64 << 20);
                      disk(tier).written_bytes += 64 << 20;
                    }
                    wait();
                  }),
            1);
}

TEST_F(CourtesyTest, WhatHappenedWhileNoMoveRanSaysNothing) {
  system_.requests += 1'000'000;
  wait();
  clock_.advance(std::chrono::seconds(60));
  EXPECT_EQ(courtesy_.share(0, 1), 1);
}

TEST(PressureTest, IsTheTotalOfTheFirstLine) {
  EXPECT_EQ(parse_pressure("some avg10=0.61 avg60=0.57 avg300=1.32 total=10101339\n"
                           "full avg10=0.00 avg60=0.22 avg300=1.16 total=9172048\n"),
            microseconds(10101339));
  for (const char* text : {"", "full avg10=0.00 total=1\n", "some avg10=0.00\n", "some total=x\n"})
    EXPECT_FALSE(parse_pressure(text)) << text;
}

}  // namespace
}  // namespace sluice
