// SPDX-License-Identifier: BSD-2-Clause
#include "base/units.hpp"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr std::uint64_t kKiB = 1024, kMiB = kKiB << 10, kGiB = kMiB << 10, kTiB = kGiB << 10,
                        kPiB = kTiB << 10;

TEST(ParseSizeTest, ReadsNumbersWithUnits) {
  const std::pair<const char*, std::uint64_t> cases[] = {{"0", 0},
                                                         {"1", 1},
                                                         {"4096", 4096},
                                                         {"7B", 7},
                                                         {"7 B", 7},
                                                         {"1K", kKiB},
                                                         {"1KB", kKiB},
                                                         {"1KiB", kKiB},
                                                         {"1k", kKiB},
                                                         {"64KiB", 64 * kKiB},
                                                         {"16MiB", 16 * kMiB},
                                                         {"1.5 GiB", kGiB + kGiB / 2},
                                                         {"200G", 200 * kGiB},
                                                         {"3T", 3 * kTiB},
                                                         {"2 PiB", 2 * kPiB},
                                                         {"0.5K", 512},
                                                         {"1.0009765625K", 1025},
                                                         {"1.7", 1},
                                                         {"4503599627370497", 4503599627370497}};
  for (const auto& [text, bytes] : cases) EXPECT_EQ(parse_size(text), bytes) << text;
}

TEST(ParseSizeTest, RejectsInvalidSizes) {
  for (const char* text : {"",    " ",   "K",     "B",     "GiB",  "-1",  "-1K",  "+1",  " 1",
                           "1X",  "1KX", "1KiBs", "1 K B", "1Bi",  "1i",  "0x10", "1e3", "1,5G",
                           "nan", "inf", "1 2",   "one",   "1K\n", "--5", "1..5"}) {
    EXPECT_EQ(parse_size(text), std::nullopt) << '"' << text << '"';
  }
}

TEST(ParseSizeTest, RejectsSizesBeyond64Bits) {
  for (const char* text : {"18446744073709551616", "16384P", "99999999999P", "20000000T",
                           "184467440737095516160000000000000000000"}) {
    EXPECT_EQ(parse_size(text), std::nullopt) << text;
  }
  EXPECT_EQ(parse_size("16383P"), 16383 * kPiB);
}

TEST(ParseSizeTest, IsExactForEveryNumberOfBytes) {
  EXPECT_EQ(parse_size("9007199254740993"), 9007199254740993u);  // 2^53 + 1
  EXPECT_EQ(parse_size("18446744073709551615"), 18446744073709551615u);
}

TEST(FormatSizeTest, ShowsOneDecimalOfTheLargestUnit) {
  const std::pair<std::uint64_t, const char*> cases[] = {{0, "0 B"},
                                                         {1, "1 B"},
                                                         {1023, "1023 B"},
                                                         {1024, "1.0 KiB"},
                                                         {1536, "1.5 KiB"},
                                                         {kMiB - 1, "1.0 MiB"},
                                                         {kMiB, "1.0 MiB"},
                                                         {kMiB - 100 * kKiB, "924.0 KiB"},
                                                         {3 * kGiB, "3.0 GiB"},
                                                         {kTiB + kTiB / 4, "1.2 TiB"},
                                                         {5 * kPiB, "5.0 PiB"},
                                                         {UINT64_MAX, "16.0 EiB"}};
  for (const auto& [bytes, text] : cases) EXPECT_EQ(format_size(bytes), text) << bytes;
}

TEST(FormatSizeTest, IsReadBackWithinItsPrecision) {
  for (std::uint64_t bytes = 1; bytes < kPiB; bytes = bytes * 3 + 1) {
    const auto back = parse_size(format_size(bytes));
    ASSERT_TRUE(back) << bytes;
    const double error = static_cast<double>(*back) / static_cast<double>(bytes) - 1;
    EXPECT_LE(error < 0 ? -error : error, 0.05) << bytes;
  }
}

TEST(ParseDurationTest, ReadsNumbersWithUnits) {
  const std::pair<const char*, std::int64_t> cases[] = {
      {"0s", 0},       {"30s", 30},     {"15min", 900}, {"12h", 43200},  {"7d", 604800},
      {"2w", 1209600}, {"1.5 h", 5400}, {"0.5min", 30}, {"15 min", 900}, {"52w", 31449600}};
  for (const auto& [text, seconds] : cases) {
    EXPECT_EQ(parse_duration(text), std::chrono::seconds(seconds)) << text;
  }
}

TEST(ParseDurationTest, RejectsNumbersWithoutUnitAndInvalidText) {
  for (const char* text : {"",         " ",
                           "30",       "0",
                           "min",      "-1s",
                           "-0s",      "+1s",
                           " 1s",      "1m",
                           "1M",       "1sec",
                           "1e3s",     "nand",
                           "infs",     "1 2",
                           "1s ",      "1hh",
                           "0x1s",     "1,5h",
                           "9999999w", "99999999999999999999d",
                           "never"}) {
    EXPECT_EQ(parse_duration(text), std::nullopt) << '"' << text << '"';
  }
}

TEST(FormatDurationTest, ShowsTheTwoLargestUnits) {
  const std::pair<std::int64_t, const char*> cases[] = {
      {0, "0 s"},       {59, "59 s"},        {60, "1 min"},
      {3599, "59 min"}, {3600, "1 h"},       {18720, "5 h 12 min"},
      {604800, "7 d"},  {788400, "9 d 3 h"}, {47 * 3600, "47 h"}};
  for (const auto& [seconds, text] : cases) {
    EXPECT_EQ(format_duration(std::chrono::seconds(seconds)), text) << seconds;
  }
}

}  // namespace
}  // namespace sluice
