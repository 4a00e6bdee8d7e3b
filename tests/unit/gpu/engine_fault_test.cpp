// SPDX-License-Identifier: BSD-2-Clause
#include <unistd.h>

#include <cstring>

#include "base/log.hpp"
#include "tests/support/files.hpp"
#include "tests/support/seed.hpp"
#include "tests/unit/gpu/engine_fixture.hpp"

namespace sluice {
namespace {

using test::pattern;

class EngineFaultTest : public EngineTest {
 protected:
  // Hundreds of warnings are expected here.
  EngineFaultTest() { log::get().set_level(spdlog::level::off); }
  ~EngineFaultTest() override { log::get().set_level(spdlog::level::warn); }

  const std::string content = pattern(3 * kMiB + 17, 1);
};

// Fails every driver call of a request the first time, the second time, and so on. The request must
// return correct bytes or an error, the next one must work, and nothing may be left behind.
class EngineNthFaultTest : public EngineFaultTest, public testing::WithParamInterface<Route> {};

INSTANTIATE_TEST_SUITE_P(Routes, EngineNthFaultTest,
                         testing::Values(Route::Auto, Route::Mapped, Route::Staged,
                                         Route::Pageable),
                         [](const auto& route) { return std::string(name_of(route.param)); });

TEST_P(EngineNthFaultTest, FailedDriverCallFailsAtMostThatRequest) {
  const UniqueFd fd = make_file("f", content);
  wait_until_registrable(fd);
  for (const char* call :
       {"cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuCtxGetCurrent", "cuMemHostRegister",
        "cuStreamCreate", "cuEventCreate", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync",
        "cuEventRecord", "cuEventSynchronize", "cuStreamSynchronize"}) {
    int failures = 0;
    for (int nth = 1; nth <= test::samples(20, 60); ++nth) {
      SCOPED_TRACE(std::string(call) + " fails, number " + std::to_string(nth));
      start();
      auto memory = target(Route::Auto, content.size());
      fail(std::string(call) + ":" + std::to_string(nth) + ":2");
      bool any = false;
      for (const std::uint64_t length : {content.size(), std::size_t{5000}}) {
        const auto went = engine->read({fd.get()}, **memory, one({0, 0, length}), GetParam());
        any |= !went;
        if (went) {
          EXPECT_EQ(went->bytes, length);
        }
        const bool right = went && memory->bytes().compare(0, length, content, 0, length) == 0;
        if (went) {
          EXPECT_TRUE(right);
        }
        const auto wrote = engine->write({fd.get()}, **memory, {0, 8 * kMiB, 3 * kMiB},
                                         GetParam() == Route::Mapped ? Route::Auto : GetParam());
        any |= !wrote;
        ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(content.size())), 0);
        if (GetParam() == Route::Mapped) wait_until_registrable(fd);
      }
      fail("");
      if (GetParam() == Route::Auto) {
        expect_read(*engine, fd, content, *memory, {0, 0, content.size()}, GetParam());
        expect_read(*engine, fd, content, *memory, {7, 9, 5000}, GetParam());
      }
      memory.reset();
      engine.reset();
      EXPECT_EQ(count(test::FakeCount::Registrations), 0u);
      EXPECT_EQ(count(test::FakeCount::Streams), 0u);
      EXPECT_EQ(count(test::FakeCount::Events), 0u);
      failures += any;
      if (!any && nth > 3) break;  // there are no more calls
      if (HasFailure()) return;
    }
    if (GetParam() == Route::Staged && std::strcmp(call, "cuMemcpyHtoDAsync") == 0) {
      EXPECT_GT(failures, 3) << "the faults must reach the engine";
    }
  }
}

TEST_F(EngineFaultTest, ReadsAreCorrectWithoutPinnedMemory) {
  const UniqueFd fd = make_file("f", content);
  auto memory = target(Route::Auto, content.size());
  fail("cuMemHostRegister:1+:2");
  const auto went = expect_read(*engine, fd, content, *memory, {0, 0, content.size()}, Route::Auto);
  EXPECT_EQ(went.route, Route::Pageable);
  EXPECT_EQ(went.why, Why::NotPinned);
  EXPECT_EQ(expect_read(*engine, fd, content, *memory, {0, 0, 100}, Route::Auto).route,
            Route::Pageable);
  EXPECT_TRUE(
      failed_with(engine->read({fd.get()}, **memory, one({0, 0, 100}), Route::Staged), EOPNOTSUPP));
  const auto wrote = engine->write({fd.get()}, **memory, {0, 0, content.size()});
  ASSERT_TRUE(wrote);
  EXPECT_EQ(wrote->why, Why::NotPinned);
  EXPECT_EQ(engine->pinned_bytes(), 0u);
}

// In a separate process, because a lost GPU stays lost.
TEST_F(EngineFaultTest, LostGpuIsAnErrorAndHostMemoryKeepsWorking) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto lose_it = [&] {
    const UniqueFd fd = make_file("f", content);
    auto memory = target(Route::Auto, content.size());
    fail("cuMemcpyHtoDAsync:5:719");
    EXPECT_FALSE(engine->read({fd.get()}, **memory, one({0, 0, content.size()}), Route::Staged));
    EXPECT_TRUE(gpu().is_lost());
    for (const Route route : {Route::Auto, Route::Staged, Route::Pageable, Route::Mapped}) {
      wait_until_registrable(fd);
      for (const std::uint64_t length : {content.size(), std::size_t{100}}) {
        EXPECT_TRUE(
            failed_with(engine->read({fd.get()}, **memory, one({0, 0, length}), route), ENODEV))
            << name_of(route);
      }
    }
    EXPECT_TRUE(failed_with(engine->write({fd.get()}, **memory, {0, 0, 100}), ENODEV));
    Target host(nullptr, content.size()), other(&gpu(1), content.size());
    expect_read(*engine, fd, content, host, {0, 0, content.size()}, Route::Auto);
    expect_read(*engine, fd, content, other, {0, 0, content.size()}, Route::Auto);
    engine.reset();
    std::_Exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(lose_it(), testing::ExitedWithCode(0), "");
}

TEST_F(EngineFaultTest, ErrorOfTheFileIsReturned) {
  const UniqueFd directory(::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (const Route route : {Route::Auto, Route::Staged, Route::Pageable, Route::Host}) {
    auto memory = target(route, kMiB);
    EXPECT_TRUE(
        failed_with(engine->read({directory.get()}, **memory, one({0, 0, 1000}), route), EISDIR))
        << name_of(route);
    EXPECT_TRUE(failed_with(engine->read({-1}, **memory, one({0, 0, 1000}), route), EBADF));
    EXPECT_TRUE(failed_with(engine->read({-1}, **memory, one({0, 0, kMiB}), route), EBADF));
  }
}

}  // namespace
}  // namespace sluice
