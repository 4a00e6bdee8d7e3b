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

constexpr Heat kSample{.score = 1.5,
                       .last_access = 0x0102030405060708,
                       .opens = 9,
                       .gpu_bytes = 1,
                       .recent = 1.5,
                       .since = 0x0102030405060707};

TEST(CodecTest, HeatHasTheDocumentedBytes) {
  const std::string expected(
      "\x02"
      "\x00\x00\x00\x00\x00\x00\xf8\x3f"  // 1.5
      "\x08\x07\x06\x05\x04\x03\x02\x01"
      "\x09\x00\x00\x00\x00\x00\x00\x00"
      "\x01\x00\x00\x00\x00\x00\x00\x00"
      "\x00\x00\x00\x00\x00\x00\xf8\x3f"
      "\x07\x07\x06\x05\x04\x03\x02\x01",
      49);
  EXPECT_EQ(text(encode_heat(kSample)), expected);
}

TEST(CodecTest, HeatSurvivesEncoding) {
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  for (const Heat& heat : {Heat{}, kSample, Heat{1e308, kLeast, kMost, kMost}, Heat{5e-324, -1}}) {
    auto back = decode_heat(text(encode_heat(heat)));
    ASSERT_TRUE(back);
    EXPECT_EQ(*back, heat);
  }
}

TEST(CodecTest, HeatOfWrongLengthIsRejected) {
  const std::string whole = text(encode_heat(kSample));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    // On the heap with exactly this length, so that ASan detects a read past the end.
    const std::string cut(whole.data(), length);
    EXPECT_TRUE(failed_with(decode_heat(cut), EUCLEAN)) << length;
  }
  EXPECT_TRUE(failed_with(decode_heat(whole + '\0'), EUCLEAN));
}

TEST(CodecTest, HeatOfUnknownVersionIsRejected) {
  std::string bytes = text(encode_heat(kSample));
  for (int version = 0; version < 256; ++version) {
    bytes[0] = static_cast<char>(version);
    EXPECT_EQ(decode_heat(bytes).has_value(), version == kHeatVersion) << version;
  }
}

TEST(CodecTest, ImpossibleScoresAreRejected) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double score : {-1.0, kInfinity, -kInfinity, std::nan("")}) {
    EXPECT_TRUE(failed_with(decode_heat(text(encode_heat({.score = score}))), EUCLEAN)) << score;
    EXPECT_TRUE(failed_with(decode_heat(text(encode_heat({.recent = score}))), EUCLEAN)) << score;
  }
}

TEST(CodecTest, RandomBytesNeverDecodeToAnImpossibleHeat) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 100'000; ++round) {
    std::string bytes(random() % 60, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (!bytes.empty() && round % 2 == 0) bytes[0] = static_cast<char>(kHeatVersion);
    auto heat = decode_heat(bytes);
    EXPECT_TRUE(!heat || heat->score >= 0);
  }
}

Receipt sample_receipt() {
  return {.time = 0x0102030405060708,
          .id = InodeId{7},
          .path = "/a",
          .from = "ssd",
          .to = "",
          .bytes = 9,
          .hash = 0x1122334455667788,
          .milliseconds = 0x0a0b0c0d,
          .code = -2,
          .reason = "x"};
}

TEST(CodecTest, AReceiptHasTheDocumentedBytes) {
  const std::string expected(
      "\x01"
      "\x08\x07\x06\x05\x04\x03\x02\x01"
      "\x07\x00\x00\x00\x00\x00\x00\x00"
      "\x09\x00\x00\x00\x00\x00\x00\x00"
      "\x88\x77\x66\x55\x44\x33\x22\x11"
      "\x0d\x0c\x0b\x0a"
      "\xfe\xff\xff\xff"
      "\x02\x00\x00\x00/a"
      "\x03\x00\x00\x00ssd"
      "\x00\x00\x00\x00"
      "\x01\x00\x00\x00x",
      63);
  EXPECT_EQ(encode_receipt(sample_receipt()), expected);
}

TEST(CodecTest, AReceiptSurvivesEncoding) {
  Receipt odd = sample_receipt();
  odd.path = std::string("/\0\xff\n", 4) + std::string(70'000, 'p');
  odd.time = std::numeric_limits<std::int64_t>::min();
  odd.bytes = odd.hash = std::numeric_limits<std::uint64_t>::max();
  for (const Receipt& receipt : {Receipt{}, sample_receipt(), odd}) {
    const auto back = decode_receipt(encode_receipt(receipt));
    ASSERT_TRUE(back);
    EXPECT_EQ(*back, receipt);
  }
}

TEST(CodecTest, AReceiptOfWrongLengthIsRejected) {
  const std::string whole = encode_receipt(sample_receipt());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const std::string cut(whole.data(), length);
    EXPECT_TRUE(failed_with(decode_receipt(cut), EUCLEAN)) << length;
  }
  EXPECT_TRUE(failed_with(decode_receipt(whole + '\0'), EUCLEAN));
}

TEST(CodecTest, ReceiptsAndGhostsOfUnknownVersionAreRejected) {
  std::string receipt = encode_receipt(sample_receipt());
  std::string ghost = text(encode_ghost({100, 1}));
  for (int version = 0; version < 256; ++version) {
    receipt[0] = ghost[0] = static_cast<char>(version);
    EXPECT_EQ(decode_receipt(receipt).has_value(), version == kReceiptVersion) << version;
    EXPECT_EQ(decode_ghost(ghost).has_value(), version == kGhostVersion) << version;
  }
}

TEST(CodecTest, DamagedReceiptsNeverReadPastTheirEnd) {
  // Flips bits of a good receipt, on the heap with exactly its length, so that ASan detects a read
  // past the end. If the result can be decoded, it must encode to the same bytes.
  std::mt19937_64 random(3);
  const std::string whole = encode_receipt(sample_receipt());
  for (int round = 0; round < 100'000; ++round) {
    std::string bytes = whole.substr(0, random() % 8 == 0 ? random() % whole.size() : whole.size());
    for (std::uint64_t flips = random() % 4; flips > 0 && !bytes.empty(); --flips) {
      bytes[random() % bytes.size()] ^= static_cast<char>(1u << random() % 8);
    }
    bytes.shrink_to_fit();
    const auto receipt = decode_receipt(bytes);
    EXPECT_TRUE(!receipt || encode_receipt(*receipt) == bytes);
  }
}

TEST(CodecTest, AGhostHasTheDocumentedBytesAndSurvivesEncoding) {
  const Ghost ghost{.left_at = 0x0102030405060708, .slot = 255};
  const std::string bytes = text(encode_ghost(ghost));
  EXPECT_EQ(bytes, "\x01\x08\x07\x06\x05\x04\x03\x02\x01\xff");
  EXPECT_EQ(*decode_ghost(bytes), ghost);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_TRUE(failed_with(decode_ghost(bytes.substr(0, length)), EUCLEAN)) << length;
  }
  EXPECT_TRUE(failed_with(decode_ghost(bytes + '\0'), EUCLEAN));
}

TEST(CodecTest, KeptTimesHaveTheDocumentedBytesAndSurviveEncoding) {
  const KeptTimes file{.is_directory = false, .copies = {{3, 0x0102030405060708, -2, 0x0a}}};
  const std::string bytes = encode_times(file);
  EXPECT_EQ(bytes, std::string("\x01\x01\x03\x08\x07\x06\x05\x04\x03\x02\x01"
                               "\xfe\xff\xff\xff\xff\xff\xff\xff\x0a\0\0\0\0\0\0\0",
                               kTimesBytes + kCopyTimesBytes));
  EXPECT_EQ(*decode_times(bytes), file);
  const KeptTimes directory{.is_directory = true, .copies = {{1, 2, 3, 0}, {30, 5, 6, 7}}};
  EXPECT_EQ(*decode_times(encode_times(directory)), directory);
  const KeptTimes changing{.is_directory = true,
                           .copies = {{1, 2, 3, 0}, {30, 5, 6, 7, true, -8, 0x0900}}};
  const std::string longer = encode_times(changing);
  EXPECT_EQ(longer[0], 2);
  EXPECT_EQ(longer.substr(kTimesBytes + 2 * kChangingCopyTimesBytes - 17),
            std::string("\x01\xf8\xff\xff\xff\xff\xff\xff\xff\0\x09\0\0\0\0\0\0", 17));
  EXPECT_EQ(*decode_times(longer), changing);
  EXPECT_TRUE(failed_with(decode_times(longer.substr(0, longer.size() - 1)), EUCLEAN));
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const bool is_whole = length == kTimesBytes;  // a record without copies
    EXPECT_EQ(decode_times(bytes.substr(0, length)).has_value(), is_whole) << length;
  }
  EXPECT_TRUE(failed_with(decode_times(bytes + '\0'), EUCLEAN));
  for (int other = 0; other < 256; ++other) {
    std::string version = bytes, kind = bytes;
    version[0] = kind[1] = static_cast<char>(other);
    EXPECT_EQ(decode_times(version).has_value(), other == kTimesVersion) << other;
    EXPECT_EQ(decode_times(kind).has_value(), other == 1 || other == 2) << other;
  }
}

TEST(CodecTest, ARequestHasTheDocumentedBytesAndSurvivesEncoding) {
  const MoveRequest request{.number = 0x0102030405060708, .user = 1000, .to = "hdd", .path = "/a"};
  const std::string bytes = encode_request(request);
  EXPECT_EQ(bytes, std::string("\x01\x08\x07\x06\x05\x04\x03\x02\x01\xe8\x03\0\0"
                               "\x03\0\0\0hdd\x02\0\0\0/a",
                               26));
  EXPECT_EQ(*decode_request(bytes), request);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_TRUE(failed_with(decode_request(bytes.substr(0, length)), EUCLEAN)) << length;
  EXPECT_TRUE(failed_with(decode_request(bytes + '\0'), EUCLEAN));
  EXPECT_TRUE(failed_with(decode_request("\x02" + bytes.substr(1)), EUCLEAN));
}

TEST(CodecTest, KeysSortByNumber) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 10'000; ++round) {
    const std::uint64_t a = random() >> (random() % 64);
    const std::uint64_t b = random() >> (random() % 64);
    EXPECT_EQ(text(encode_key(a)) < text(encode_key(b)), a < b);
    EXPECT_EQ(*decode_key(text(encode_key(a))), a);
  }
}

TEST(CodecTest, KeysOfWrongLengthAreRejected) {
  EXPECT_TRUE(failed_with(decode_key(""), EUCLEAN));
  EXPECT_TRUE(failed_with(decode_key("1234567"), EUCLEAN));
  EXPECT_TRUE(failed_with(decode_key("123456789"), EUCLEAN));
}

TEST(CodecTest, SchemaVersionsSurviveEncodingAndZeroIsInvalid) {
  EXPECT_EQ(*decode_schema(text(encode_schema(0x01020304))), 0x01020304u);
  EXPECT_EQ(text(encode_schema(1)), std::string("\x01\0\0\0", 4));
  EXPECT_TRUE(failed_with(decode_schema(text(encode_schema(0))), EUCLEAN));
  EXPECT_TRUE(failed_with(decode_schema("123"), EUCLEAN));
  EXPECT_TRUE(failed_with(decode_schema("12345"), EUCLEAN));
}

}  // namespace
}  // namespace sluice
