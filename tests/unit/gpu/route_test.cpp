// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/route.hpp"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(TransferTest, SumTellsTheRouteAndTheReasonOfItsLargestPart) {
  Transfer sum;
  sum.add({0, Route::Pageable, Why::Small});
  EXPECT_EQ(sum.route, Route::Pageable) << "nothing was larger";
  sum.add({100, Route::Mapped, Why::Registered});
  sum.add({300, Route::Staged, Why::NotCached});
  sum.add({200, Route::Mapped, Why::Registered});
  sum.add({0, Route::Pageable, Why::Small});
  EXPECT_EQ(sum.bytes, 600u);
  EXPECT_EQ(sum.route, Route::Staged);
  EXPECT_EQ(sum.why, Why::NotCached);
  sum.add({300, Route::Staged, Why::Cached});
  EXPECT_EQ(sum.why, Why::Cached) << "the last one of equal size";
}

TEST(TransferTest, SumIsOnePartOfAnotherSum) {
  Transfer half, sum;
  half.add({20, Route::Staged, Why::Cached});
  half.add({20, Route::Staged, Why::Cached});
  sum.add({30, Route::Gds, Why::Fastest});
  sum.add(half);
  EXPECT_EQ(sum.bytes, 70u);
  EXPECT_EQ(sum.route, Route::Staged);
}

}  // namespace
}  // namespace sluice
