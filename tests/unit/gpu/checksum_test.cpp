// SPDX-License-Identifier: BSD-2-Clause
// Checksums of GPU memory on the fake driver. kernels_test.cpp tests the kernel itself.
#include "gpu/checksum.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tests/support/files.hpp"
#include "tests/unit/gpu/engine_fixture.hpp"

namespace sluice {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::vector<std::uint64_t> sums_of(const std::string& bytes) {
  std::vector<std::uint64_t> sums;
  for (std::size_t at = 0; at < bytes.size(); at += 4096) {
    sums.push_back(XXH3_64bits(bytes.data() + at, std::min<std::size_t>(4096, bytes.size() - at)));
  }
  return sums;
}

// The definition, in one line.
std::uint64_t checksum_of(const std::string& bytes) {
  const auto sums = sums_of(bytes);
  return XXH3_64bits(sums.data(), sums.size() * sizeof sums[0]);
}

TEST(RangeChecksumTest, HasTheDocumentedValues) {
  const auto value = [](const std::string& bytes) {
    RangeChecksum sum;
    sum.add(bytes_of(bytes));
    return sum.value();
  };
  // Computed with Python's xxhash by the definition in docs/gpu.md.
  EXPECT_EQ(value(""), 0x2d06800538d394c2);
  EXPECT_EQ(value("abc"), 0xf267cda02014e7eb);
  EXPECT_EQ(value(std::string(10'000, 'a')), 0xfe6589d5bbec4d7a);
}

TEST(RangeChecksumTest, DoesNotDependOnThePieces) {
  const std::string bytes = test::pattern(1'000'001, 3);
  RangeChecksum sum;
  std::size_t at = 0;
  for (const std::size_t blocks : {1, 2, 64, 65}) {
    sum.add(bytes_of(bytes).subspan(at, blocks * kChecksumBlock));
    at += blocks * kChecksumBlock;
  }
  const auto rest = sums_of(bytes.substr(at));
  sum.add_sums(rest);
  EXPECT_EQ(sum.value(), checksum_of(bytes));
}

class ChecksumTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    start();
  }
  Result<std::uint64_t> of(GpuChecksums& checksums, CUdeviceptr from, std::uint64_t bytes) {
    RangeChecksum sum;
    SLUICE_TRY(checksums.add(gpu(), from, bytes, sum));
    return sum.value();
  }
  std::mt19937_64 random_{1};
};

TEST_F(ChecksumTest, OfGpuMemoryIsThatOfTheSameBytesInHostMemory) {
  const std::string bytes = test::pattern(4 * kMiB, 1);
  Target target(&gpu(), bytes.size());
  target.fill(bytes);
  GpuChecksums checksums;
  for (std::size_t length = 0; length <= 5000; length += length < 300 ? 1 : 59) {
    const std::size_t offset = length % 3 == 0 ? random_() % 5000 : random_() % 300 * 16;
    const auto sum = of(checksums, (*target).address() + offset, length);
    ASSERT_TRUE(sum) << sum.error().operation;
    ASSERT_EQ(*sum, checksum_of(bytes.substr(offset, length))) << offset << " " << length;
  }
  const auto whole = of(checksums, (*target).address(), bytes.size());
  ASSERT_TRUE(whole);
  EXPECT_EQ(*whole, checksum_of(bytes));
}

TEST_F(ChecksumTest, OfALargeRangeIsCombinedFromSeveralLaunches) {
  const std::string bytes = test::pattern(7 * kMiB + 5, 1);
  Target target(&gpu(), bytes.size());
  target.fill(bytes);
  GpuChecksums checksums(4096);  // 2 MiB per launch
  const auto sum = of(checksums, (*target).address(), bytes.size());
  ASSERT_TRUE(sum);
  EXPECT_EQ(*sum, checksum_of(bytes));
}

TEST_F(ChecksumTest, VerifyCountsTheBlocksThatChanged) {
  std::string bytes = test::pattern(kMiB + 77, 1);
  Target target(&gpu(), bytes.size()), sums(&gpu(), checksum_count(bytes.size()) * 8);
  target.fill(bytes);
  auto pinned = PinnedMemory::create(gpu(), 4096);
  ASSERT_TRUE(pinned);
  Lane lane((*pinned)->bytes(), 1, Lane::Wait::Spin);
  ASSERT_TRUE(lane.enter(gpu()));
  const CUdeviceptr from = (*target).address(), stored = (*sums).address();
  ASSERT_TRUE(checksum_blocks(lane, from, bytes.size(), stored));

  auto differing = verify_blocks(lane, from, bytes.size(), stored);
  ASSERT_TRUE(differing);
  EXPECT_EQ(differing->blocks, 0u);

  for (const std::size_t at :
       {std::size_t{7 * 4096}, std::size_t{7 * 4096 + 1}, bytes.size() - 1}) {
    bytes[at] ^= 1;
  }
  target.fill(bytes);
  differing = verify_blocks(lane, from, bytes.size(), stored);
  ASSERT_TRUE(differing);
  EXPECT_EQ(differing->blocks, 2u);
  EXPECT_EQ(differing->first, 7u);
}

TEST_F(ChecksumTest, FailsWithTheErrorOfTheGpuAndWorksAfterwards) {
  const std::string bytes = test::pattern(kMiB, 1);
  Target target(&gpu(), bytes.size());
  target.fill(bytes);
  GpuChecksums checksums;
  fail("cuLaunchKernel:1:2");
  const auto failed = of(checksums, (*target).address(), bytes.size());
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ENOMEM);
  fail("");
  const auto sum = of(checksums, (*target).address(), bytes.size());
  ASSERT_TRUE(sum);
  EXPECT_EQ(*sum, checksum_of(bytes));
}

TEST_F(ChecksumTest, NeedsKernels) {
  Target target(&gpu(), kMiB);
  GpuChecksums checksums;
  fail("cuModuleLoadData:1+:801");
  const auto failed = of(checksums, (*target).address(), kMiB);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, EOPNOTSUPP);
}

}  // namespace
}  // namespace sluice
