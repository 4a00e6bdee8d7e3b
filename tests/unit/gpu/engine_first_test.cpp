// SPDX-License-Identifier: BSD-2-Clause
// What the first requests of an engine cost, and what they leave for the next.
#include <atomic>

#include "gpu/residency.hpp"
#include "tests/support/files.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/gpu/engine_fixture.hpp"

namespace sluice {
namespace {

using test::FakeCount;
using test::pattern;

class EngineFirstTest : public EngineTest {
 protected:
  static constexpr std::uint64_t kSize = 8 * kMiB + 12'345;

  static double share(const UniqueFd& fd) { return cached_share(fd.get(), 0, kSize).value_or(-1); }
};

TEST_F(EngineFirstTest, EverythingIsReadyBeforeTheFirstRequest) {
  engine->prepare_in_background();
  EXPECT_TRUE(test::eventually([&] { return count(FakeCount::Modules) == 2; })) << "one a GPU";
  const std::uint64_t pinned = engine->pinned_bytes();
  EXPECT_GT(pinned, 0u);
  EXPECT_EQ(count(FakeCount::RegisteredBytes), pinned);
  const auto streams = count(FakeCount::Streams);
  EXPECT_GE(streams, test_settings().threads);
  const std::string content = pattern(kSize, 1);
  const UniqueFd fd = make_file("f", content);
  Target memory(&gpu(), kSize);
  expect_read(*engine, fd, content, memory, {0, 0, kSize}, Route::Staged);
  EXPECT_EQ(count(FakeCount::Streams), streams);
  EXPECT_EQ(count(FakeCount::RegisteredBytes), pinned);
}

TEST_F(EngineFirstTest, ChecksumsAreReadyIfFilesMayBeShared) {
  Engine::Settings settings = test_settings();
  settings.hbm.size = {.bytes = 64 * kMiB};
  start(settings);
  engine->prepare_in_background();
  EXPECT_TRUE(test::eventually([&] { return count(FakeCount::Modules) == 4; })) << "two a GPU";
}

TEST_F(EngineFirstTest, EngineEndsWhileItIsPrepared) {
  engine->prepare_in_background();
  engine.reset();
  EXPECT_EQ(count(FakeCount::Streams), 0u) << "what was made by then is given back";
  EXPECT_EQ(count(FakeCount::RegisteredBytes), 0u);
}

TEST_F(EngineFirstTest, DisabledEngineIsNotPrepared) {
  Engine::Settings settings = test_settings();
  settings.enabled = false;
  start(settings);
  engine->prepare_in_background();
  EXPECT_FALSE(engine->devices().is_loaded());
}

TEST_F(EngineFirstTest, FewSmallReadsPinNothing) {
  const std::string content = pattern(kSize, 2);
  const UniqueFd fd = make_file("f", content);
  Target memory(&gpu(), 4096);
  for (std::uint64_t at = 0; at < 4; ++at) {
    const auto went =
        expect_read(*engine, fd, content, memory, {0, at * 10'000, 4096}, Route::Auto);
    EXPECT_EQ(went.route, Route::Pageable);
    EXPECT_EQ(went.why, Why::Small);
  }
  EXPECT_EQ(engine->pinned_bytes(), 0u);
  EXPECT_EQ(count(FakeCount::RegisteredBytes), 0u);
  EXPECT_TRUE(test::eventually([&] {
    return expect_read(*engine, fd, content, memory, {0, 7, 4096}, Route::Auto).route ==
           Route::Staged;
  }));
  EXPECT_GT(engine->pinned_bytes(), 0u);
}

TEST_F(EngineFirstTest, ColdReadLeavesTheFileInThePageCache) {
  const std::string content = pattern(kSize, 3);
  const UniqueFd fd = make_file("f", content);
  for (const Route route : {Route::Staged, Route::Host}) {
    if (!drop_cache(fd)) GTEST_SKIP() << "the page cache can't be dropped here";
    const auto memory = target(route, kSize);
    expect_read(*engine, fd, content, *memory, {0, 0, kSize}, route);
    EXPECT_EQ(share(fd), 1) << name_of(route);
  }
}

TEST_F(EngineFirstTest, ColdReadSaysSo) {
  const std::string content = pattern(kSize, 4);
  const UniqueFd fd = make_file("f", content);
  if (!drop_cache(fd)) GTEST_SKIP() << "the page cache can't be dropped here";
  Target memory(&gpu(), kSize);
  EXPECT_EQ(expect_read(*engine, fd, content, memory, {0, 0, kSize}, Route::Auto).why,
            Why::NotCached);
  EXPECT_NE(expect_read(*engine, fd, content, memory, {0, 0, kSize}, Route::Auto).why,
            Why::NotCached);
}

TEST_F(EngineFirstTest, ColdReadOfALargeFileLeavesThePageCacheToOthers) {
  Engine::Settings settings = test_settings();
  settings.memory = [] { return MachineMemory{64 * kMiB, 2 * kSize}; };
  start(settings);
  const std::string content = pattern(kSize, 5);
  const UniqueFd fd = make_file("f", content);
  if (direct_alignment(fd.get()) == 0 || !drop_cache(fd))
    GTEST_SKIP() << "the page cache can't be avoided or dropped here";
  Target memory(&gpu(), kSize);
  expect_read(*engine, fd, content, memory, {0, 0, kSize}, Route::Staged);
  EXPECT_LT(share(fd), 0.1);
}

}  // namespace
}  // namespace sluice
