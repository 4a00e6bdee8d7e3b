// SPDX-License-Identifier: BSD-2-Clause
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "gpu/residency.hpp"
#include "tests/support/files.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/gpu/engine_fixture.hpp"

namespace sluice {
namespace {

using test::pattern;

// Promises that hold for every route.
class EngineReadTest : public EngineTest, public testing::WithParamInterface<Route> {};

INSTANTIATE_TEST_SUITE_P(Routes, EngineReadTest,
                         testing::Values(Route::Auto, Route::CuFile, Route::Mapped, Route::Staged,
                                         Route::Pageable, Route::Host),
                         [](const auto& route) { return std::string(name_of(route.param)); });

TEST_P(EngineReadTest, ReadsAnyRangeToAnyOffsetAndTouchesNothingElse) {
  const std::string content = pattern(5 * kMiB + 4321, 1);
  const UniqueFd fd = make_file("f", content);
  wait_until_registrable(fd);
  auto memory = target(GetParam(), content.size() + kMiB);
  std::mt19937_64 random(test::test_seed());
  for (int i = 0; i < test::samples(40, 1000); ++i) {
    const std::uint64_t longest = i % 2 ? 100'000 : 6 * kMiB;
    Segment segment{random() % kMiB, random() % (content.size() + 1000), random() % longest};
    segment.length = std::min(segment.length, (**memory).length() - segment.memory_offset);
    expect_read(*engine, fd, content, *memory, segment, GetParam());
    if (HasFailure()) return;
  }
}

TEST_P(EngineReadTest, ReadsUncachedBytes) {
  const std::string content = pattern(3 * kMiB + 77, 2);
  const UniqueFd fd = make_file("f", content);
  wait_until_registrable(fd);
  auto memory = target(GetParam(), content.size());
  for (const std::uint64_t offset : {0u, 1u, 4095u, 70'001u}) {
    engine->forget({fd.get()});  // registered pages can't be dropped
    if (!drop_cache(fd)) GTEST_SKIP() << "the page cache can't be dropped here";
    const std::uint64_t length = content.size() - offset;
    const auto went = expect_read(*engine, fd, content, *memory, {0, offset, length}, GetParam());
    if (GetParam() == Route::Auto) {
      EXPECT_EQ(went.why, Why::NotCached);
    }
  }
}

TEST_P(EngineReadTest, ReadsFromAFilesystemWithoutDirectReads) {
  const std::string content = pattern(2 * kMiB + 5, 3);
  const UniqueFd fd(::memfd_create("f", MFD_CLOEXEC));
  ASSERT_EQ(::pwrite(fd.get(), content.data(), content.size(), 0),
            static_cast<ssize_t>(content.size()));
  wait_until_registrable(fd);
  auto memory = target(GetParam(), content.size());
  expect_read(*engine, fd, content, *memory, {0, 0, content.size()}, GetParam());
}

TEST_P(EngineReadTest, StopsAtTheEndOfTheFile) {
  const std::string content = pattern(300'000, 4);
  const UniqueFd fd = make_file("f", content);
  wait_until_registrable(fd);
  auto memory = target(GetParam(), kMiB);
  for (const Segment& segment : std::initializer_list<Segment>{{0, 0, kMiB},
                                                               {5, 299'999, 1000},
                                                               {0, 300'000, 1000},
                                                               {0, 300'001, 500'000},
                                                               {0, ~0ULL, 1000},
                                                               {0, ~0ULL - 10, kMiB},
                                                               {0, 0, 0},
                                                               {kMiB, 0, 0}}) {
    expect_read(*engine, fd, content, *memory, segment, GetParam());
  }
}

TEST_P(EngineReadTest, RefusesRangesOutsideTheMemory) {
  const UniqueFd fd = make_file("f", pattern(10'000, 5));
  auto memory = target(GetParam(), 10'000);
  for (const Segment& segment : std::initializer_list<Segment>{
           {1, 0, 10'000}, {10'001, 0, 0}, {~0ULL, 0, 1}, {1, 0, ~0ULL}, {~0ULL, 0, ~0ULL}}) {
    EXPECT_TRUE(failed_with(engine->read({fd.get()}, **memory, one(segment), GetParam()), ERANGE));
    EXPECT_TRUE(failed_with(engine->write({fd.get()}, **memory, segment, GetParam()), ERANGE));
  }
}

TEST_P(EngineReadTest, ReadsManySegmentsAtOnce) {
  const std::string content = pattern(4 * kMiB, 6);
  const UniqueFd fd = make_file("f", content);
  wait_until_registrable(fd);
  auto memory = target(GetParam(), 8 * kMiB);
  std::mt19937_64 random(test::test_seed());
  for (const std::size_t count : {0u, 1u, 7u, 512u}) {
    std::string expected = memory->bytes();
    std::vector<Segment> segments;
    std::uint64_t at = 0, there = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const Segment segment{at, random() % (content.size() + 5000),
                            i % 64 == 3 ? 500'000 : random() % 5000};
      if (segment.file_offset < content.size()) {
        there += content.copy(expected.data() + at, segment.length, segment.file_offset);
      }
      at += segment.length + 3;
      segments.push_back(segment);
    }
    const auto went = engine->read({fd.get()}, **memory, segments, GetParam());
    ASSERT_TRUE(went) << went.error().operation;
    EXPECT_EQ(went->bytes, there);
    EXPECT_TRUE(memory->bytes() == expected) << count;
  }
}

TEST_P(EngineReadTest, FileThatShrinksGivesFewerBytesAndNoError) {
  const std::string content = pattern(4 * kMiB, 7);
  const UniqueFd fd = make_file("f", content);
  auto memory = target(GetParam(), content.size());
  std::atomic<bool> stop{false};
  std::thread shrinker([&] {
    while (!stop) {
      ::ftruncate(fd.get(), 1'000'003);
      ::pwrite(fd.get(), content.data() + 1'000'003, content.size() - 1'000'003, 1'000'003);
    }
  });
  for (int i = 0; i < test::samples(30, 500); ++i) {
    const auto went = engine->read({fd.get()}, **memory, one({0, 0, content.size()}), GetParam());
    if (GetParam() == Route::Mapped) {  // a file that changes all the time is never registered
      EXPECT_TRUE(failed_with(went, EOPNOTSUPP));
      continue;
    }
    if (!went) {
      ADD_FAILURE() << went.error().operation;
      break;
    }
    EXPECT_GE(went->bytes, 1'000'003u);
    const std::string bytes = memory->bytes();
    // Bytes that were always there are correct; the others are old, new or zero.
    EXPECT_TRUE(bytes.compare(0, 1'000'003, content, 0, 1'000'003) == 0);
    for (std::size_t at = 1'000'003; at < went->bytes; ++at) {
      if (bytes[at] != content[at] && bytes[at] != 0) {
        ADD_FAILURE() << at << " of " << went->bytes;
        break;
      }
    }
    memory->fill(std::string(content.size(), Target::kUntouched));
  }
  stop = true;
  shrinker.join();
}

TEST_P(EngineReadTest, ServesManyThreadsAtOnce) {
  const std::string content = pattern(3 * kMiB, 8);
  const UniqueFd fd = make_file("f", content);
  wait_until_registrable(fd);
  Engine::Settings settings = test_settings();
  settings.max_concurrent_ops = 3;
  start(settings);
  std::vector<std::unique_ptr<Target>> memories;
  for (int i = 0; i < 8; ++i) memories.push_back(target(GetParam(), content.size()));
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < memories.size(); ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random(i);
      for (int round = 0; round < test::samples(12, 200); ++round) {
        const std::uint64_t length = round % 2 ? random() % 60'000 : random() % content.size();
        const std::uint64_t offset = random() % (content.size() - length);
        expect_read(*engine, fd, content, *memories[i], {0, offset, length}, GetParam());
      }
    });
  }
  threads.clear();
}

class EngineTestOnGpu : public EngineTest {};

TEST_F(EngineTestOnGpu, RoutesAndMemoryMustFitEachOther) {
  const UniqueFd fd = make_file("f", pattern(1000, 1));
  Target host(nullptr, 1000), device(&gpu(), 1000);
  for (const Route route : {Route::Staged, Route::Mapped, Route::Pageable, Route::CuFile}) {
    EXPECT_TRUE(failed_with(engine->read({fd.get()}, *host, one({0, 0, 1000}), route), EOPNOTSUPP));
    EXPECT_TRUE(failed_with(engine->write({fd.get()}, *host, {0, 0, 1000}, route), EOPNOTSUPP));
  }
  EXPECT_TRUE(
      failed_with(engine->read({fd.get()}, *device, one({0, 0, 1000}), Route::Host), EOPNOTSUPP));
  for (const Route route : {Route::Host, Route::Mapped, Route::Gds, Route::CuFile}) {
    EXPECT_TRUE(failed_with(engine->write({fd.get()}, *device, {0, 0, 1000}, route), EOPNOTSUPP));
  }
}

TEST_F(EngineTestOnGpu, SmallReadsReportSmallEvenAfterManyOfThem) {
  const std::string content = pattern(200'000, 9);
  const UniqueFd fd = make_file("f", content);
  Target memory(&gpu(), 4096);
  ASSERT_TRUE(engine->prepare(gpu()));
  const auto streams = count(test::FakeCount::Streams);
  for (int i = 0; i < 200; ++i) {
    const auto went =
        expect_read(*engine, fd, content, memory, {0, 601U * unsigned(i), 4096}, Route::Auto);
    EXPECT_EQ(went.route, Route::Staged);
    EXPECT_EQ(went.why, Why::Small);
  }
  // One lane serves one thread: not every request creates a stream.
  EXPECT_EQ(count(test::FakeCount::Streams), streams + 1);
}

TEST_F(EngineTestOnGpu, EachGpuGetsItsOwnBytes) {
  const std::string content = pattern(2 * kMiB, 10);
  const UniqueFd fd = make_file("f", content);
  Target first(&gpu(0), content.size()), second(&gpu(1), content.size());
  for (int i = 0; i < 4; ++i) {
    for (Target* memory : {&first, &second}) {
      expect_read(*engine, fd, content, *memory, {0, 0, content.size()}, Route::Staged);
      expect_read(*engine, fd, content, *memory, {10, 77, 5000}, Route::Auto);
    }
  }
}

// Workers go on with the next request while copies of the last one are on the bus.
TEST_F(EngineTestOnGpu, RequestsForSeveralGpusAtOnceEndWithTheirBytes) {
  const std::string content = pattern(3 * kMiB, 11);
  const UniqueFd fd = make_file("f", content);
  Engine::Settings settings = test_settings();
  settings.threads = 2;
  start(settings);
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      Target memory(&gpu(i % 2), content.size());
      std::mt19937_64 random(i);
      for (int round = 0; round < test::samples(20, 200); ++round) {
        const std::uint64_t length = kMiB + random() % kMiB;
        const std::uint64_t offset = random() % (content.size() - length);
        expect_read(*engine, fd, content, memory, {0, offset, length}, Route::Staged);
      }
    });
  }
}

TEST_F(EngineTestOnGpu, ContextOfTheCallerIsRestored) {
  const std::string content = pattern(100'000, 11);
  const UniqueFd fd = make_file("f", content);
  Target memory(&gpu(1), content.size());
  ASSERT_TRUE(gpu(0).enter());
  CUcontext before = nullptr, after = nullptr;
  gpu(0).api().cuCtxGetCurrent(&before);
  ASSERT_TRUE(engine->read({fd.get()}, *memory, one({0, 0, 1000})));
  ASSERT_TRUE(engine->read({fd.get()}, *memory, one({0, 0, 100'000})));
  gpu(0).api().cuCtxGetCurrent(&after);
  EXPECT_EQ(before, after);
}

TEST_F(EngineTestOnGpu, DisabledEngineServesOnlyHostMemory) {
  const std::string content = pattern(kMiB, 12);
  const UniqueFd fd = make_file("f", content);
  Engine::Settings settings = test_settings();
  settings.enabled = false;
  start(settings);
  Target host(nullptr, kMiB);
  expect_read(*engine, fd, content, host, {0, 0, kMiB}, Route::Auto);
  EXPECT_TRUE(engine->preview({fd.get()}, kMiB, nullptr).route == Route::Host);
  Target device(&gpu(), kMiB);
  EXPECT_TRUE(failed_with(engine->read({fd.get()}, *device, one({0, 0, kMiB})), EOPNOTSUPP));
}

TEST_F(EngineTestOnGpu, WarmingFillsThePageCache) {
  const std::string content = pattern(9 * kMiB, 13);
  const UniqueFd fd = make_file("f", content);
  if (!drop_cache(fd)) GTEST_SKIP() << "the page cache can't be dropped here";
  ASSERT_TRUE(engine->warm({fd.get()}, 0, 0));
  EXPECT_TRUE(test::eventually([&] { return cached_share(fd.get(), 0, 9 * kMiB) == 1.0; }));
  ASSERT_TRUE(engine->warm({fd.get()}, ~0ULL, ~0ULL));
}

TEST_F(EngineTestOnGpu, NothingIsPinnedBeforeItIsNeeded) {
  EXPECT_EQ(engine->pinned_bytes(), 0u);
  EXPECT_EQ(count(test::FakeCount::Streams), 0u);
  const std::string content = pattern(100'000, 14);
  const UniqueFd fd = make_file("f", content);
  Target host(nullptr, content.size());
  expect_read(*engine, fd, content, host, {0, 0, content.size()}, Route::Auto);
  EXPECT_EQ(count(test::FakeCount::Streams), 0u);
  Target device(&gpu(), content.size());
  expect_read(*engine, fd, content, device, {0, 0, content.size()}, Route::Auto);
  EXPECT_EQ(engine->pinned_bytes(), count(test::FakeCount::RegisteredBytes));
  EXPECT_GT(engine->pinned_bytes(), 0u);
}

}  // namespace
}  // namespace sluice
