// SPDX-License-Identifier: BSD-2-Clause
#include "fs/fuse/request_times.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

namespace sluice {
namespace {

using std::chrono::microseconds;

std::uint64_t all(const RequestTimes::Times& times) {
  return std::accumulate(times.counts.begin(), times.counts.end(), std::uint64_t{0});
}

TEST(RequestTimesTest, ATimeIsInTheFirstClassThatIsLongEnough) {
  RequestTimes times;
  for (const int took : {1, 10, 11, 100'000'000}) times.add(3, microseconds(took));
  const RequestTimes::Times of = times.of(3);
  EXPECT_EQ(of.counts.front(), 2u);
  EXPECT_EQ(of.counts[1], 1u);
  EXPECT_EQ(of.counts.back(), 1u);
  EXPECT_EQ(of.sum, microseconds(100'000'022));
  EXPECT_EQ(all(times.of(4)), 0u);
}

TEST(RequestTimesTest, AnUnknownKindIsIgnored) {
  RequestTimes times;
  times.add(4096, microseconds(1));  // CUSE
  for (std::size_t kind = 0; kind < RequestTimes::kKinds; ++kind) {
    EXPECT_EQ(all(times.of(kind)), 0u) << kind;
  }
}

TEST(RequestTimesTest, ARequestThatAnotherThreadAnswersIsCountedOnceWhenThatEnds) {
  RequestTimes times;
  std::shared_ptr<RequestTimer> taken;
  {
    const RequestTimer timer(times, 1);
    taken = RequestTimer::take_current();
    EXPECT_EQ(RequestTimer::take_current(), nullptr);
  }
  EXPECT_EQ(all(times.of(1)), 0u);
  std::thread([&] { taken.reset(); }).join();
  EXPECT_EQ(all(times.of(1)), 1u);
}

}  // namespace
}  // namespace sluice
