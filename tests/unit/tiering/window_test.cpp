// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/window.hpp"

#include <gtest/gtest.h>

namespace sluice {
namespace {

bool open_at(const char* windows, int hour, int minute) {
  std::tm local{};
  local.tm_hour = hour;
  local.tm_min = minute;
  local.tm_sec = 59;
  return is_open(parse_windows(windows).value(), local);
}

TEST(ParseWindowsTest, ReadsOneOrMore) {
  EXPECT_EQ(parse_windows(""), Windows{});
  EXPECT_EQ(parse_windows("22:00-06:00"), (Windows{{1320, 360}}));
  EXPECT_EQ(parse_windows("22:00-6:30,12:00-13:00"), (Windows{{1320, 390}, {720, 780}}));
  EXPECT_EQ(parse_windows(" 1:00 - 2:00 , 00:00-24:00 "), (Windows{{60, 120}, {0, 1440}}));
}

TEST(ParseWindowsTest, RejectsInvalidText) {
  for (const char* text :
       {"22",          "22:00",        "22:00-",       "-06:00",         "22:00-22:00",
        "24:00-06:00", "24:01-06:00",  "22:00-24:01",  "22:60-23:00",    "2200-0600",
        "22:0-06:00",  "022:00-06:00", "22:00-06:00,", ",22:00-06:00",   "22:00-06:00;12:00-13:00",
        "22.00-06.00", "a:00-06:00",   "+1:00-02:00",  "1:00-2:00-3:00", "::-::"}) {
    EXPECT_EQ(parse_windows(text), std::nullopt) << text;
  }
}

TEST(WindowsTest, NoWindowsMeansAlwaysOpen) {
  EXPECT_TRUE(open_at("", 0, 0));
  EXPECT_TRUE(open_at("", 23, 59));
}

TEST(WindowsTest, IsOpenFromBeginToEnd) {
  EXPECT_FALSE(open_at("12:00-13:00", 11, 59));
  EXPECT_TRUE(open_at("12:00-13:00", 12, 0));
  EXPECT_TRUE(open_at("12:00-13:00", 12, 59));
  EXPECT_FALSE(open_at("12:00-13:00", 13, 0));
}

TEST(WindowsTest, MayExtendPastMidnight) {
  EXPECT_FALSE(open_at("22:00-06:00", 21, 59));
  EXPECT_TRUE(open_at("22:00-06:00", 22, 0));
  EXPECT_TRUE(open_at("22:00-06:00", 23, 59));
  EXPECT_TRUE(open_at("22:00-06:00", 0, 0));
  EXPECT_TRUE(open_at("22:00-06:00", 5, 59));
  EXPECT_FALSE(open_at("22:00-06:00", 6, 0));
  EXPECT_FALSE(open_at("22:00-00:00", 0, 0));
  EXPECT_TRUE(open_at("22:00-24:00", 23, 59));
  EXPECT_FALSE(open_at("22:00-24:00", 0, 0));
}

TEST(WindowsTest, OneOpenWindowIsEnough) {
  EXPECT_TRUE(open_at("22:00-06:00,12:00-13:00", 12, 30));
  EXPECT_TRUE(open_at("22:00-06:00,12:00-13:00", 3, 0));
  EXPECT_FALSE(open_at("22:00-06:00,12:00-13:00", 14, 0));
}

}  // namespace
}  // namespace sluice
