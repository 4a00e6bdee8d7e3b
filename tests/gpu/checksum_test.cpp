// SPDX-License-Identifier: BSD-2-Clause
// The checksum kernel on a real GPU. Rates are printed, not checked.
#include "gpu/checksum.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <random>
#include <string>

#include "tests/support/files.hpp"
#include "tests/support/requirement.hpp"

namespace sluice::test {
namespace {

using Clock = std::chrono::steady_clock;

class RealChecksumTest : public testing::Test {
 protected:
  void SetUp() override {
    const bool there = ::access("/proc/driver/nvidia/version", R_OK) == 0;
    if (!require("gpu", there, "no NVIDIA driver on this machine")) return;
    ASSERT_FALSE(devices_.all().empty()) << devices_.why_none();
    ASSERT_TRUE(gpu().enter());
    ASSERT_NE(gpu().kernels(), nullptr) << "the PTX can't be loaded";
  }
  void TearDown() override {
    if (memory_ != 0) gpu().api().cuMemFree(memory_);
    if (sums_ != 0) gpu().api().cuMemFree(sums_);
  }

  Device& gpu() { return *devices_.all()[0]; }
  // GPU memory that begins with `content`.
  void allocate(std::uint64_t bytes, const std::string& content) {
    ASSERT_EQ(gpu().api().cuMemAlloc(&memory_, bytes), CUDA_SUCCESS);
    ASSERT_EQ(gpu().api().cuMemAlloc(&sums_, checksum_count(bytes) * 8), CUDA_SUCCESS);
    put(0, content);
  }
  void put(std::uint64_t at, const std::string& content) {
    ASSERT_EQ(gpu().api().cuMemcpyHtoD(memory_ + at, content.data(), content.size()), CUDA_SUCCESS);
    ASSERT_EQ(gpu().api().cuCtxSynchronize(), CUDA_SUCCESS);
  }
  std::uint64_t by_gpu(std::uint64_t offset, std::uint64_t bytes) {
    RangeChecksum sum;
    const auto added = checksums_.add(gpu(), memory_ + offset, bytes, sum);
    EXPECT_TRUE(added) << added.error().operation;
    return sum.value();
  }
  static std::uint64_t by_cpu(const std::string& content, std::uint64_t offset,
                              std::uint64_t bytes) {
    RangeChecksum sum;
    sum.add(std::as_bytes(std::span(content)).subspan(offset, bytes));
    return sum.value();
  }

  Devices devices_;
  GpuChecksums checksums_;
  CUdeviceptr memory_ = 0, sums_ = 0;
};

TEST_F(RealChecksumTest, IsThatOfTheCpuForAllLengthsAndAddresses) {
  const std::string content = pattern(40 << 20, 3);
  ASSERT_NO_FATAL_FAILURE(allocate(content.size(), content));
  std::mt19937_64 random(1);
  for (std::uint64_t length = 0; length <= 5000; ++length) {
    const std::uint64_t offset = length % 2 == 0 ? random() % 5000 : random() % 300 * 16;
    ASSERT_EQ(by_gpu(offset, length), by_cpu(content, offset, length)) << offset << " " << length;
  }
  for (int round = 0; round < 200; ++round) {
    const std::uint64_t offset = round % 2 == 0 ? random() % 100'000 : random() % 6000 * 16;
    const std::uint64_t length = random() % (content.size() - offset);
    ASSERT_EQ(by_gpu(offset, length), by_cpu(content, offset, length)) << offset << " " << length;
  }
}

TEST_F(RealChecksumTest, VerifyFindsOneChangedBit) {
  const std::string content = pattern((64 << 20) + 100, 3);
  ASSERT_NO_FATAL_FAILURE(allocate(content.size(), content));
  const auto pinned = PinnedMemory::create(gpu(), 4096);
  ASSERT_TRUE(pinned);
  Lane lane((*pinned)->bytes(), 1, Lane::Wait::Spin);
  ASSERT_TRUE(lane.enter(gpu()));
  ASSERT_TRUE(checksum_blocks(lane, memory_, content.size(), sums_));
  const auto same = verify_blocks(lane, memory_, content.size(), sums_);
  ASSERT_TRUE(same);
  EXPECT_EQ(same->blocks, 0u);
  for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{12'345'678}, content.size() - 1}) {
    put(at, std::string(1, static_cast<char>(content[at] ^ 4)));
    const auto differing = verify_blocks(lane, memory_, content.size(), sums_);
    ASSERT_TRUE(differing);
    EXPECT_EQ(differing->blocks, 1u);
    EXPECT_EQ(differing->first, at / kChecksumBlock);
    put(at, content.substr(at, 1));
  }
}

TEST_F(RealChecksumTest, Rates) {
  constexpr std::uint64_t kBytes = std::uint64_t{8} << 30;
  ASSERT_NO_FATAL_FAILURE(allocate(kBytes + 16, pattern(1 << 20, 3)));
  const auto pinned = PinnedMemory::create(gpu(), 4096);
  ASSERT_TRUE(pinned);
  Lane lane((*pinned)->bytes(), 1, Lane::Wait::Spin);
  ASSERT_TRUE(lane.enter(gpu()));
  const auto print = [](const char* what, std::uint64_t bytes, const auto& work) {
    double best = 1e9;
    for (int i = 0; i < 6; ++i) {
      const auto begin = Clock::now();
      work();
      best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
    }
    std::printf("checksum, %-34s %7.0f MiB: %8.3f ms, %7.1f GB/s\n", what,
                static_cast<double>(bytes >> 20), best * 1e3,
                1e-9 * static_cast<double>(bytes) / best);
  };
  for (const std::uint64_t bytes : {kBytes, std::uint64_t{256} << 20, std::uint64_t{16} << 20}) {
    print("sums stay on the GPU,", bytes, [&] {
      ASSERT_TRUE(checksum_blocks(lane, memory_, bytes, sums_));
      ASSERT_TRUE(lane.synchronize());
    });
    print("compared with sums on the GPU,", bytes, [&] {
      const auto differing = verify_blocks(lane, memory_, bytes, sums_);
      ASSERT_TRUE(differing);
      ASSERT_EQ(differing->blocks, 0u);
    });
    print("combined by the CPU,", bytes, [&] { by_gpu(0, bytes); });
  }
  print("unaligned, sums stay on the GPU,", kBytes, [&] {
    ASSERT_TRUE(checksum_blocks(lane, memory_ + 1, kBytes, sums_));
    ASSERT_TRUE(lane.synchronize());
  });
}

}  // namespace
}  // namespace sluice::test
