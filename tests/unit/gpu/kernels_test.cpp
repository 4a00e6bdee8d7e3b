// SPDX-License-Identifier: BSD-2-Clause
// The source of the kernels, compiled for the CPU: a warp is 32 threads that exchange values as
// lanes do. tests/gpu/gather_test.cpp tests what only a GPU can show.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tests/support/files.hpp"

namespace sluice::emulated {

struct Coordinate {
  unsigned x;
};
thread_local Coordinate threadIdx;
Coordinate blockIdx, blockDim{32}, gridDim;
std::unique_ptr<std::barrier<>> g_warp;
unsigned long long g_lanes[32];

unsigned long long __shfl_sync(unsigned, unsigned long long value, unsigned lane) {
  g_lanes[threadIdx.x] = value;
  g_warp->arrive_and_wait();
  const unsigned long long other = g_lanes[lane];
  g_warp->arrive_and_wait();
  return other;
}

unsigned long long __shfl_xor_sync(unsigned all, unsigned long long value, unsigned mask) {
  return __shfl_sync(all, value, threadIdx.x ^ mask);
}

unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>(static_cast<Wide>(a) * b >> 64);
}

void atomicAdd(unsigned long long* to, unsigned long long value) { std::atomic_ref(*to) += value; }

void atomicMin(unsigned long long* to, unsigned long long value) {
  std::atomic_ref target(*to);
  auto now = target.load();
  while (value < now && !target.compare_exchange_weak(now, value)) {
  }
}

#define __constant__ const
#define __device__
#define __forceinline__
#define __global__
#define __launch_bounds__(...)
#pragma push_macro("__noinline__")
#define __noinline__
#include "gpu/kernels/gather.cu"

namespace checksum {
#include "gpu/kernels/checksum.cu"
}
#pragma pop_macro("__noinline__")

}  // namespace sluice::emulated

namespace sluice {
namespace {

// Runs `kernel` with this many blocks of one warp each.
template <typename Kernel>
void launch(unsigned blocks, const Kernel& kernel) {
  using namespace emulated;
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    g_warp = std::make_unique<std::barrier<>>(32);
    std::vector<std::jthread> lanes;
    for (unsigned lane = 0; lane < 32; ++lane) {
      lanes.emplace_back([&, lane] {
        threadIdx.x = lane;
        kernel();
      });
    }
  }
}

class KernelsTest : public testing::Test {
 protected:
  std::mt19937_64 random_{1};
  const std::string source_ = test::pattern(1 << 20, 1);
};

TEST_F(KernelsTest, PiecesOfAnyLengthAndAlignmentAreCopied) {
  for (int round = 0; round < 40; ++round) {
    std::string target(1 << 20, 'x'), expected = target;
    std::vector<emulated::Piece> pieces;
    std::uint64_t at = random_() % 40, longest = 0;
    for (int i = 0; i < 60; ++i) {
      const std::uint64_t length = 1 + random_() % (i % 5 == 0 ? 40'000 : i % 2 ? 5'000 : 50);
      const std::uint64_t any = random_() % (source_.size() - length);
      const std::uint64_t from = i % 3 ? any : any / 16 * 16;
      if (at + length > target.size()) break;
      pieces.push_back({reinterpret_cast<std::uint64_t>(target.data() + at),
                        reinterpret_cast<std::uint64_t>(source_.data() + from), length});
      source_.copy(expected.data() + at, length, from);
      at += length + random_() % 20;
      longest = std::max(longest, length);
    }
    const auto parts = static_cast<unsigned>((longest + 4095) / 4096);
    const auto part = static_cast<unsigned>(((longest + parts - 1) / parts + 15) / 16 * 16);
    launch(3, [&] {
      emulated::sluice_copy(pieces.data(), static_cast<unsigned>(pieces.size()), parts, part);
    });
    ASSERT_TRUE(target == expected) << "round " << round;
  }
}

TEST_F(KernelsTest, RecordsOfAnySizeAreGatheredAndBadNumbersSkipped) {
  for (const unsigned size : {1, 2, 3, 4, 8, 12, 16, 24, 100, 512, 513, 1000, 4096, 4097, 9000}) {
    for (const unsigned tile : {1, 5, 32}) {
      const unsigned count = std::clamp(20'000 / size, 3U, 150U);
      const std::uint64_t from = size % 3 == 0 ? 0 : random_() % 33;
      const std::uint64_t to = tile == 5 ? random_() % 33 : 16;
      const unsigned long long records = (source_.size() - from) / size;
      std::vector<unsigned long long> index(count);
      for (auto& number : index) number = random_() % records;
      const bool has_bad = tile != 1;
      // Only one bad number: with two, lanes would set the word at the same time, which is correct
      // but a data race.
      if (has_bad) index[count / 2] = tile == 5 ? records : ~0ULL;
      std::string target(to + std::size_t{count} * size + 64, 'x'), expected = target;
      for (unsigned i = 0; i < count; ++i) {
        if (index[i] < records) {
          source_.copy(expected.data() + to + std::size_t{i} * size, size, from + index[i] * size);
        }
      }
      const auto address = [](const char* at) { return reinterpret_cast<std::uint64_t>(at); };
      const unsigned unit = 1U << std::min(std::countr_zero(address(target.data() + to) |
                                                            address(source_.data() + from) | size),
                                           4);
      unsigned bad = 0;
      launch(2, [&] {
        emulated::sluice_gather(target.data() + to, source_.data() + from, index.data(), count,
                                records, size, tile, unit, &bad);
      });
      EXPECT_TRUE(target == expected) << "size " << size << " tile " << tile << " unit " << unit;
      EXPECT_EQ(bad != 0, has_bad);
    }
  }
}

// The checksums of a range, as the GPU computes them.
class ChecksumKernelTest : public KernelsTest {
 protected:
  using Word = unsigned long long;
  using Sums = std::vector<Word>;

  static constexpr std::size_t kBytes = 4096;

  // As Kernels::checksum() launches them.
  void run(const char* from, Word bytes, Sums& sums, Word* differing, unsigned tile = 1) {
    const auto address = reinterpret_cast<std::uintptr_t>(from);
    const Word fast = address % 16 == 0 ? bytes / kBytes : 0;
    const Word all = (bytes + kBytes - 1) / kBytes;
    emulated::checksum::ChecksumRange range{from, bytes, 0, fast, sums.data(), differing, tile};
    if (fast > 0) launch(2, [&] { emulated::checksum::sluice_checksum_blocks(range); });
    range.begin = fast;
    range.end = all;
    if (fast < all) launch(2, [&] { emulated::checksum::sluice_checksum_odd_blocks(range); });
  }

  Sums expected(const char* from, std::size_t bytes) {
    Sums sums;
    for (std::size_t at = 0; at < bytes; at += kBytes) {
      sums.push_back(XXH3_64bits(from + at, std::min(kBytes, bytes - at)));
    }
    return sums;
  }

  const char* aligned() const {
    return source_.data() + (-reinterpret_cast<std::uintptr_t>(source_.data()) & 15);
  }
};

// All lengths with a path of their own, and the edges of stripes and KiBs.
TEST_F(ChecksumKernelTest, BlocksOfAnyLengthHaveTheChecksumOfLibxxhash) {
  std::vector<std::size_t> lengths;
  for (std::size_t length = 1; length <= 260; ++length) lengths.push_back(length);
  for (std::size_t edge = 320; edge <= kBytes; edge += 64) {
    lengths.insert(lengths.end(), {edge - 1, edge, edge + 1});
  }
  for (const std::size_t length : lengths) {
    Sums sums((length + kBytes - 1) / kBytes, 0);
    run(aligned() + length * 16, length, sums, nullptr);
    ASSERT_EQ(sums, expected(aligned() + length * 16, length)) << length;
  }
}

TEST_F(ChecksumKernelTest, RangesAtAnyAddressHaveTheChecksumsOfLibxxhash) {
  for (std::size_t offset = 0; offset < 17; ++offset) {
    for (const unsigned tile : {1U, 3U, 32U}) {
      const std::size_t length = 3 * kBytes + random_() % (2 * kBytes);
      Sums sums((length + kBytes - 1) / kBytes, 0);
      run(aligned() + offset, length, sums, nullptr, tile);
      ASSERT_EQ(sums, expected(aligned() + offset, length)) << offset << " " << length;
    }
  }
}

TEST_F(ChecksumKernelTest, BlocksThatDifferAreCounted) {
  std::string bytes(aligned(), 8 * kBytes + 100);
  for (const std::size_t offset : {0, 1}) {
    const char* from = bytes.data() + offset;
    const std::size_t length = bytes.size() - offset;
    Sums sums = expected(from, length);
    std::array<Word, 2> differing{0, ~0ULL};
    run(from, length, sums, differing.data(), 2);
    EXPECT_EQ(differing, (std::array<Word, 2>{0, ~0ULL}));

    for (const std::size_t block : {2, 5, 8}) bytes[block * kBytes + 50] ^= 1;
    run(from, length, sums, differing.data(), 2);
    EXPECT_EQ(differing, (std::array<Word, 2>{3, 2}));
  }
}

}  // namespace
}  // namespace sluice
