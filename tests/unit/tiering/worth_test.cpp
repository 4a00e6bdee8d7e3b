// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/choose/worth.hpp"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(WorthTest, IsATimeThatPeopleCanImagine) {
  EXPECT_EQ(value_text(0.001, Objective::Time), "0 s of waiting");
  EXPECT_EQ(value_text(0.456, Objective::Time), "0.46 s of waiting");
  EXPECT_EQ(value_text(14.2, Objective::Time), "14 s of waiting");
  EXPECT_EQ(value_text(600, Objective::Time), "10 min of waiting");
  EXPECT_EQ(value_text(90'000, Objective::Time), "25 h of waiting");
  EXPECT_EQ(value_text(1, Objective::Hits), "1 hit");
  EXPECT_EQ(value_text(1234, Objective::Hits), "1234 hits");
}

TEST(WorthTest, PricesAreByGigabyteAndDay) {
  EXPECT_EQ(price_text(0.2, Objective::Time), "0.2 s/GB a day");
  EXPECT_EQ(price_text(0, Objective::Time), "0 s/GB a day");
  EXPECT_EQ(price_text(2.5e-7, Objective::Time), "0 s/GB a day");
  EXPECT_EQ(price_text(120.4, Objective::Hits), "120 hits/GB a day");
}

}  // namespace
}  // namespace sluice
