// SPDX-License-Identifier: BSD-2-Clause
// The encoding of intents: what was written can be read, and damage is detected.
#include <gtest/gtest.h>

#include <random>

#include "tests/support/seed.hpp"
#include "tiering/move/intent.hpp"

namespace sluice {
namespace {

using Kind = Step::Kind;

std::vector<Step> sample() {
  std::vector<Step> steps;
  for (const Kind kind : {Kind::Rename, Kind::Replace, Kind::Exchange, Kind::Unlink, Kind::Rmdir,
                          Kind::Keep, Kind::MirrorDir}) {
    Step step;
    step.kind = kind;
    step.from = {1, {std::string("\x01\0\xff", 3)}, "", "name\n\0x"};
    step.to = {30, {}, "some/path", std::string(255, 'n')};
    step.subject = {InodeId{0xfedcba9876543210}, 0xffffffff};
    step.original = {7, -8, {9, -10}};
    steps.push_back(step);
  }
  steps.back().to = {};
  return steps;
}

TEST(IntentCodecTest, ReadsWhatWasWritten) {
  const auto back = decode_steps(encode_steps(sample()));
  ASSERT_TRUE(back);
  EXPECT_EQ(*back, sample());
}

TEST(IntentCodecTest, AnEmptyListIsValid) {
  const auto back = decode_steps(encode_steps({}));
  ASSERT_TRUE(back);
  EXPECT_TRUE(back->empty());
}

TEST(IntentCodecTest, EveryTruncationIsDamage) {
  const std::string whole = encode_steps(sample());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    ASSERT_TRUE(failed_with(decode_steps(std::string_view(whole).substr(0, size)), EUCLEAN))
        << size;
  }
}

TEST(IntentCodecTest, TrailingBytesAreDamage) {
  const std::string whole = encode_steps(sample());
  EXPECT_TRUE(failed_with(decode_steps(whole + '\0'), EUCLEAN));
  EXPECT_TRUE(failed_with(decode_steps(whole + whole), EUCLEAN));
}

TEST(IntentCodecTest, AnotherFormatOrKindIsDamage) {
  const std::string whole = encode_steps(sample());
  for (const int format : {0, 2, 4, 255}) {
    std::string other = whole;
    other[0] = static_cast<char>(format);
    EXPECT_TRUE(failed_with(decode_steps(other), EUCLEAN)) << format;
  }
  for (const int kind : {0, 10, 255}) {
    std::string other = whole;
    other[9] = static_cast<char>(kind);  // the first step's, after format and count
    EXPECT_TRUE(failed_with(decode_steps(other), EUCLEAN)) << kind;
  }
}

TEST(IntentCodecTest, ImpossibleCountsAndLengthsAreDamage) {
  std::string whole = encode_steps(sample());
  for (std::size_t at : {std::size_t{1}, std::size_t{18}}) {  // count; length of the first handle
    std::string other = whole;
    for (std::size_t i = 0; i < 8; ++i) other[at + i] = '\xff';
    EXPECT_TRUE(failed_with(decode_steps(other), EUCLEAN)) << at;
  }
}

TEST(IntentCodecTest, GarbageIsDamage) {
  std::mt19937_64 random(test::test_seed());
  for (int round = 0; round < 20000; ++round) {
    std::string bytes(1 + random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    bytes[0] = 3;  // otherwise decoding would stop at the first byte
    ASSERT_TRUE(failed_with(decode_steps(bytes), EUCLEAN)) << round;
  }
}

TEST(IntentCodecTest, ADamagedByteNeverCrashesAndIsReadTheSameWhenWrittenAgain) {
  const std::string whole = encode_steps(sample());
  std::mt19937_64 random(test::test_seed());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ static_cast<char>(1 + random() % 255));
    const auto steps = decode_steps(bytes);
    if (!steps) {
      EXPECT_EQ(steps.error().code, EUCLEAN) << at;
      continue;
    }
    EXPECT_EQ(*decode_steps(encode_steps(*steps)), *steps) << at;
  }
}

}  // namespace
}  // namespace sluice
