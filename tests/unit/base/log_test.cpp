// SPDX-License-Identifier: BSD-2-Clause
#include "base/log.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice::log {
namespace {

TEST(EscapedTest, LeavesPrintableTextAlone) {
  EXPECT_EQ(escaped(""), "");
  EXPECT_EQ(escaped("model-7 (final).bin"), "model-7 (final).bin");
  EXPECT_EQ(escaped("größe/日本"), "größe/日本");
}

TEST(EscapedTest, ShowsControlBytesAndBackslashesInHex) {
  EXPECT_EQ(escaped("a\nb"), "a\\x0ab");
  EXPECT_EQ(escaped("\t\r"), "\\x09\\x0d");
  EXPECT_EQ(escaped("\x1b[31mred"), "\\x1b[31mred");
  EXPECT_EQ(escaped("\x7f"), "\\x7f");
  EXPECT_EQ(escaped("a\\b"), "a\\x5cb");
  EXPECT_EQ(escaped(std::string_view("\0", 1)), "\\x00");
}

TEST(EscapedTest, NoByteMakesTwoNamesLookTheSame) {
  std::vector<std::string> shown;
  for (int byte = 0; byte < 256; ++byte) shown.push_back(escaped(std::string(1, char(byte))));
  shown.push_back(escaped("\\x0a"));
  std::ranges::sort(shown);
  EXPECT_EQ(std::ranges::adjacent_find(shown), shown.end());
}

TEST(EscapedTest, NothingItReturnsEndsALine) {
  std::string every;
  for (int byte = 0; byte < 256; ++byte) every.push_back(char(byte));
  for (const unsigned char c : escaped(every)) EXPECT_TRUE(c >= 0x20 && c != 0x7f) << int(c);
}

}  // namespace
}  // namespace sluice::log
