// SPDX-License-Identifier: BSD-2-Clause
#include "metadata/codec.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace sluice {
namespace {

std::string text(const auto& bytes) { return {bytes.data(), bytes.size()}; }

constexpr Heat kSample{.score = 1.5, .last_access = 0x0102030405060708, .opens = 9, .gpu_bytes = 1};

TEST(CodecTest, HeatHasTheDocumentedBytes) {
  const std::string expected(
      "\x01"
      "\x00\x00\x00\x00\x00\x00\xf8\x3f"  // 1.5
      "\x08\x07\x06\x05\x04\x03\x02\x01"
      "\x09\x00\x00\x00\x00\x00\x00\x00"
      "\x01\x00\x00\x00\x00\x00\x00\x00",
      33);
  EXPECT_EQ(text(encode_heat(kSample)), expected);
}

TEST(CodecTest, HeatComesBackAsItWas) {
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  for (const Heat& heat : {Heat{}, kSample, Heat{1e308, kLeast, kMost, kMost}, Heat{5e-324, -1}}) {
    auto back = decode_heat(text(encode_heat(heat)));
    ASSERT_TRUE(back);
    EXPECT_EQ(*back, heat);
  }
}

TEST(CodecTest, HeatOfAnyOtherLengthIsRefused) {
  const std::string whole = text(encode_heat(kSample));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    // On the heap and exactly as long, so that a read past the end is ASan's to see.
    const std::string cut(whole.data(), length);
    EXPECT_TRUE(failed_with(decode_heat(cut), EUCLEAN)) << length;
  }
  EXPECT_TRUE(failed_with(decode_heat(whole + '\0'), EUCLEAN));
}

TEST(CodecTest, HeatOfAnyOtherVersionIsRefused) {
  std::string bytes = text(encode_heat(kSample));
  for (int version = 0; version < 256; ++version) {
    bytes[0] = static_cast<char>(version);
    EXPECT_EQ(decode_heat(bytes).has_value(), version == kHeatVersion) << version;
  }
}

TEST(CodecTest, ImpossibleScoresAreRefused) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double score : {-1.0, kInfinity, -kInfinity, std::nan("")}) {
    EXPECT_TRUE(failed_with(decode_heat(text(encode_heat({.score = score}))), EUCLEAN)) << score;
  }
}

TEST(CodecTest, RandomBytesNeverDecodeToAnImpossibleHeat) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 100'000; ++round) {
    std::string bytes(random() % 40, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (!bytes.empty() && round % 2 == 0) bytes[0] = static_cast<char>(kHeatVersion);
    auto heat = decode_heat(bytes);
    EXPECT_TRUE(!heat || heat->score >= 0);
  }
}

TEST(CodecTest, KeysSortAsTheirNumbers) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 10'000; ++round) {
    const std::uint64_t a = random() >> (random() % 64);
    const std::uint64_t b = random() >> (random() % 64);
    EXPECT_EQ(text(encode_key(a)) < text(encode_key(b)), a < b);
    EXPECT_EQ(*decode_key(text(encode_key(a))), a);
  }
}

TEST(CodecTest, KeysOfAnyOtherLengthAreRefused) {
  EXPECT_TRUE(failed_with(decode_key(""), EUCLEAN));
  EXPECT_TRUE(failed_with(decode_key("1234567"), EUCLEAN));
  EXPECT_TRUE(failed_with(decode_key("123456789"), EUCLEAN));
}

TEST(CodecTest, SchemaVersionsComeBackAndZeroIsNone) {
  EXPECT_EQ(*decode_schema(text(encode_schema(0x01020304))), 0x01020304u);
  EXPECT_EQ(text(encode_schema(1)), std::string("\x01\0\0\0", 4));
  EXPECT_TRUE(failed_with(decode_schema(text(encode_schema(0))), EUCLEAN));
  EXPECT_TRUE(failed_with(decode_schema("123"), EUCLEAN));
  EXPECT_TRUE(failed_with(decode_schema("12345"), EUCLEAN));
}

}  // namespace
}  // namespace sluice
