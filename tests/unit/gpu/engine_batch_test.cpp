// SPDX-License-Identifier: BSD-2-Clause
// Many small segments at once.
#include <unistd.h>

#include <random>
#include <thread>

#include "base/log.hpp"
#include "tests/support/files.hpp"
#include "tests/support/seed.hpp"
#include "tests/unit/gpu/engine_fixture.hpp"

namespace sluice {
namespace {

using test::FakeCount;
using test::pattern;

class EngineBatchTest : public EngineTest {
 protected:
  static constexpr std::uint64_t kSize = 17 * kMiB + 321;  // large enough to be registered

  // Segments with these lengths in turn, from random file offsets, `gap` bytes apart in memory.
  static std::vector<Segment> some(std::size_t count, const std::vector<std::uint64_t>& lengths,
                                   std::uint64_t gap, std::uint64_t file = kSize) {
    std::mt19937_64 random(count);
    std::vector<Segment> segments;
    std::uint64_t at = 3;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t length = lengths[i % lengths.size()];
      segments.push_back({at, random() % (file - length), length});
      at += length + gap;
    }
    return segments;
  }

  Transfer expect_batch(const UniqueFd& fd, const std::string& content,
                        const std::vector<Segment>& segments, Route wanted = Route::Auto) {
    Target target(&gpu(), segments.back().memory_offset + segments.back().length + 50);
    std::string expected = target.bytes();
    std::uint64_t bytes = 0;
    for (const auto& [to, from, length] : segments) {
      if (from < content.size()) bytes += content.copy(expected.data() + to, length, from);
    }
    const auto launches = count(FakeCount::Launches), copies = count(FakeCount::Copies);
    const auto went = engine->read({fd.get()}, *target, segments, wanted);
    launches_ = count(FakeCount::Launches) - launches;
    copies_ = count(FakeCount::Copies) - copies;
    if (!went) {
      ADD_FAILURE() << went.error().operation;
      return {};
    }
    EXPECT_EQ(went->bytes, bytes);
    EXPECT_TRUE(target.bytes() == expected);
    return *went;
  }

  const std::string content_ = pattern(kSize, 5);
  std::uint64_t launches_ = 0, copies_ = 0;  // of the last batch
};

TEST_F(EngineBatchTest, BatchOfPagesNeedsOneLaunchAndNoCopy) {
  const UniqueFd fd = make_file("f", content_);
  expect_batch(fd, content_, some(128, {4096}, 512));
  EXPECT_EQ(launches_, 1u);
  EXPECT_EQ(copies_, 0u);
  expect_batch(fd, content_, some(9, {4096}, 512));
  EXPECT_EQ(launches_, 1u);
  EXPECT_EQ(copies_, 0u);
}

TEST_F(EngineBatchTest, AdjacentSegmentsNeedOneCopy) {
  const UniqueFd fd = make_file("f", content_);
  expect_batch(fd, content_, some(100, {4096}, 0));
  EXPECT_EQ(launches_, 0u);
  EXPECT_EQ(copies_, 1u);
}

TEST_F(EngineBatchTest, SingleSmallReadUsesNoKernel) {
  const UniqueFd fd = make_file("f", content_);
  expect_batch(fd, content_, {{3, 5, 4096}});
  EXPECT_EQ(launches_, 0u);
  EXPECT_EQ(copies_, 1u);
}

TEST_F(EngineBatchTest, AnyLengthsAndOffsetsAreCorrect) {
  const UniqueFd fd = make_file("f", content_);
  for (const std::uint64_t gap : {0, 1, 13, 4096}) {
    expect_batch(fd, content_, some(300, {1, 3, 512, 4097, 65536, 17, 4096}, gap));
    expect_batch(fd, content_, some(2, {65536, 65536}, gap));
    expect_batch(fd, content_, some(16, {65536}, gap));
    expect_batch(fd, content_, some(2'000, {33}, gap));
    expect_batch(fd, content_, some(1'500, {5'000, 100'000, 10}, gap));
  }
}

TEST_F(EngineBatchTest, LargerRequestsNeedOneLaunchPerSlotOfTheWorkers) {
  const UniqueFd fd = make_file("f", content_);
  expect_batch(fd, content_, some(2'000, {4096}, 512));
  EXPECT_GT(launches_, 10u);
  EXPECT_LT(launches_, 200u);
  EXPECT_EQ(copies_, 0u);
}

TEST_F(EngineBatchTest, RegisteredFileIsReadOnlyByTheKernel) {
  const UniqueFd fd = make_file("f", content_);
  wait_until_registrable(fd);
  Target target(&gpu(), kSize);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(engine->read({fd.get()}, *target, one({0, 0, kSize})));
  ASSERT_EQ(engine->mapped_bytes(), kSize);
  EXPECT_EQ(expect_batch(fd, content_, some(128, {4096}, 512)).route, Route::Mapped);
  EXPECT_EQ(launches_, 1u);
  EXPECT_EQ(copies_, 0u);
  EXPECT_EQ(expect_batch(fd, content_, some(1'000, {4096, 17, 3}, 5)).route, Route::Mapped);
  EXPECT_EQ(launches_, 1u);
  // Large segments are copied, the kernel copies the rest.
  EXPECT_EQ(expect_batch(fd, content_, some(20, {400'000, 100, 30}, 5)).route, Route::Mapped);
  EXPECT_EQ(launches_, 1u);
  EXPECT_EQ(copies_, 7u);
  expect_batch(fd, content_, some(20'000, {700}, 4), Route::Mapped);
  EXPECT_LT(launches_, 5u);
}

TEST_F(EngineBatchTest, BatchesCountAsReadingTheFile) {
  const UniqueFd fd = make_file("f", content_);
  wait_until_registrable(fd);
  Transfer went;
  for (int i = 0; i < 40 && went.route != Route::Mapped; ++i) {
    went = expect_batch(fd, content_, some(128, {4096}, 512));
  }
  EXPECT_EQ(went.route, Route::Mapped);
}

TEST_F(EngineBatchTest, UncachedSegmentsAreRead) {
  const UniqueFd fd = make_file("f", content_);
  for (const std::size_t size : {9, 128}) {
    if (!drop_cache(fd)) GTEST_SKIP() << "the page cache can't be dropped here";
    expect_batch(fd, content_, some(size, {4096}, 512));
  }
}

TEST_F(EngineBatchTest, PartlyCachedBatchNeedsOneLaunch) {
  const UniqueFd fd = make_file("f", content_);
  if (!drop_cache(fd)) GTEST_SKIP() << "the page cache can't be dropped here";
  std::string half(kSize / 2, 0);
  ASSERT_GT(::pread(fd.get(), half.data(), half.size(), 0), 0);
  auto segments = some(128, {4090, 4096, 7}, 512);
  segments[100].file_offset = kSize - 5;
  expect_batch(fd, content_, segments);
  EXPECT_EQ(launches_, 1u);
  EXPECT_EQ(copies_, 0u);
}

TEST_F(EngineBatchTest, SegmentsAreShortAtTheEndOfTheFile) {
  const UniqueFd fd = make_file("f", content_);
  for (const std::size_t size : {9, 128, 2'000}) {
    auto segments = some(size, {4096}, 512);
    segments[2].file_offset = kSize - 100;
    segments[3].file_offset = kSize;
    segments[4].file_offset = kSize + 5'000;
    expect_batch(fd, content_, segments);
  }
}

TEST_F(EngineBatchTest, HostMemoryIsFilledOnTheCallingThread) {
  const UniqueFd fd = make_file("f", content_);
  const auto threads = [] { return test::names_in("/proc/self/task").size(); };
  const auto before = threads();
  for (const bool cold : {false, true}) {
    if (cold && !drop_cache(fd)) GTEST_SKIP() << "the page cache can't be dropped here";
    auto segments = some(200, {4096, 17, 1}, 5);
    segments[100].file_offset = kSize - 9;
    Target target(nullptr, 700'000);
    std::string expected = target.bytes();
    std::uint64_t bytes = 0;
    for (const auto& [to, from, length] : segments) {
      bytes += content_.copy(expected.data() + to, length, from);
    }
    const auto went = engine->read({fd.get()}, *target, segments);
    ASSERT_TRUE(went);
    EXPECT_EQ(went->bytes, bytes);
    EXPECT_TRUE(target.bytes() == expected);
  }
  EXPECT_EQ(threads(), before) << "the workers were not needed";
}

TEST_F(EngineBatchTest, ResultIsTheSameWithoutKernels) {
  const UniqueFd fd = make_file("f", content_);
  log::get().set_level(spdlog::level::off);
  fail("cuModuleLoadData:1+:801");
  expect_batch(fd, content_, some(128, {4096}, 512));
  EXPECT_EQ(launches_, 0u);
  EXPECT_EQ(copies_, 128u);
  expect_batch(fd, content_, some(2'000, {4096, 7}, 512));
  wait_until_registrable(fd);
  expect_batch(fd, content_, some(128, {4096}, 512), Route::Mapped);
  EXPECT_EQ(copies_, 128u);
  log::get().set_level(spdlog::level::warn);
}

TEST_F(EngineBatchTest, ManyThreadsReadBatchesAtOnce) {
  const UniqueFd fd = make_file("f", content_);
  std::vector<std::jthread> threads;
  for (std::uint64_t i = 0; i < 24; ++i) {
    threads.emplace_back([&, i] {
      Target target(&gpu(i % 2), 100'000);
      for (std::uint64_t round = 0; round < 10; ++round) {
        std::vector<Segment> segments;
        for (std::uint64_t s = 0; s < 16; ++s) {
          segments.push_back(
              {s * 5'000, (i * 1'000'003 + round * 7'919 + s * 65'537) % kMiB, 4'000});
        }
        const auto went = engine->read({fd.get()}, *target, segments);
        ASSERT_TRUE(went) << went.error().operation;
        const std::string bytes = target.bytes();
        for (const auto& [to, from, length] : segments) {
          ASSERT_EQ(bytes.compare(to, length, content_, from, length), 0);
        }
      }
    });
  }
}

}  // namespace
}  // namespace sluice
