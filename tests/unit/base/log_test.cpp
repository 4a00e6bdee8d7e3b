// SPDX-License-Identifier: BSD-2-Clause
#include "base/log.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice::log {
namespace {

TEST(EscapedTest, DoesNotChangePrintableText) {
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

TEST(EscapedTest, DifferentNamesLookDifferent) {
  std::vector<std::string> shown;
  for (int byte = 0; byte < 256; ++byte) shown.push_back(escaped(std::string(1, char(byte))));
  shown.push_back(escaped("\\x0a"));
  std::ranges::sort(shown);
  EXPECT_EQ(std::ranges::adjacent_find(shown), shown.end());
}

TEST(EscapedTest, NeverContainsANewline) {
  std::string every;
  for (int byte = 0; byte < 256; ++byte) every.push_back(char(byte));
  for (const unsigned char c : escaped(every)) EXPECT_TRUE(c >= 0x20 && c != 0x7f) << int(c);
}

TEST(LogFormatTest, TextIsTimeLevelAndMessage) {
  const std::string line =
      formatted(Format::Text, false, spdlog::level::warn, 86400, "tier is nearly full: tier=nvme");
  EXPECT_TRUE(line.ends_with(".000 warning tier is nearly full: tier=nvme\n")) << line;
}

TEST(LogFormatTest, TheJournalGetsAPriorityAndNoTime) {
  using spdlog::level::level_enum;
  const auto line = [](level_enum level) { return formatted(Format::Text, true, level, 0, "x"); };
  EXPECT_EQ(line(spdlog::level::critical), "<2>x\n");
  EXPECT_EQ(line(spdlog::level::err), "<3>x\n");
  EXPECT_EQ(line(spdlog::level::warn), "<4>x\n");
  EXPECT_EQ(line(spdlog::level::info), "<6>x\n");
  EXPECT_EQ(line(spdlog::level::debug), "<7>x\n");
}

TEST(LogFormatTest, JsonIsOneObjectPerLineWhateverTheMessageIs) {
  const auto message = [](std::string_view text) {
    const std::string line = formatted(Format::Json, false, spdlog::level::info, 86400, text);
    const auto begin = line.find("\"message\":");
    EXPECT_TRUE(line.starts_with("{\"time\":\"1970-01-0")) << line;
    EXPECT_NE(line.find("\"level\":\"info\""), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    return line.substr(begin + 10);
  };
  EXPECT_EQ(message("plain größe"), "\"plain größe\"}\n");
  EXPECT_EQ(message("a\"b\\c"), "\"a\\\"b\\\\c\"}\n");
  EXPECT_EQ(message("a\nb\x1b"), "\"a\\u000ab\\u001b\"}\n");
  EXPECT_EQ(message("a\xff\xed\xa0\x80"), "\"a\\\\xff\\\\xed\\\\xa0\\\\x80\"}\n");
}

}  // namespace
}  // namespace sluice::log
