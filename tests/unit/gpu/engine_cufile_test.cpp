// SPDX-License-Identifier: BSD-2-Clause
#include <sys/stat.h>

#include <algorithm>

#include "tests/support/files.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/gpu/engine_fixture.hpp"

namespace sluice {
namespace {

using test::FakeCount;
using test::FakeGpu;
using test::pattern;

class EngineCuFileTest : public EngineTest {
 protected:
  Engine::Possibility possibility(const UniqueFd& fd, Route route) {
    const auto all = engine->possibilities({fd.get()}, &gpu());
    return *std::find_if(all.begin(), all.end(), [&](const auto& p) { return p.route == route; });
  }

  const std::string content = pattern(2 * kMiB + 99, 1);
};

TEST_F(EngineCuFileTest, ManyReadsOfAFileRegisterItOnce) {
  const UniqueFd fd = make_file("f", content);
  Target memory(&gpu(), content.size());
  for (int i = 0; i < 3; ++i) {
    expect_read(*engine, fd, content, memory, {0, 0, content.size()}, Route::CuFile);
  }
  EXPECT_EQ(count(FakeCount::Handles), 1u);
  engine->forget({fd.get()});
  EXPECT_EQ(count(FakeCount::Handles), 0u);
  expect_read(*engine, fd, content, memory, {3, 5, 100}, Route::CuFile);
}

TEST_F(EngineCuFileTest, NumberOfRegisteredFilesIsLimited) {
  Target memory(&gpu(), 1000);
  for (int i = 0; i < 40; ++i) {
    const std::string bytes = pattern(1000, static_cast<std::uint64_t>(i));
    const UniqueFd fd = make_file("f" + std::to_string(i), bytes);
    expect_read(*engine, fd, bytes, memory, {0, 0, 1000}, Route::CuFile);
  }
  EXPECT_EQ(count(FakeCount::Handles), 32u);
}

TEST_F(EngineCuFileTest, UnusedFileIsReleased) {
  Engine::Settings settings = test_settings();
  settings.cufile_idle = std::chrono::milliseconds(100);
  start(settings);
  const UniqueFd fd = make_file("f", content);
  Target memory(&gpu(), content.size());
  expect_read(*engine, fd, content, memory, {0, 0, content.size()}, Route::CuFile);
  EXPECT_TRUE(test::eventually([&] { return count(FakeCount::Handles) == 0; }));
  expect_read(*engine, fd, content, memory, {0, 0, content.size()}, Route::CuFile);
}

TEST_F(EngineCuFileTest, ForgettingAFilesystemReleasesAllItsFiles) {
  const UniqueFd one = make_file("one", content), two = make_file("two", content);
  Target memory(&gpu(), content.size());
  for (const UniqueFd* fd : {&one, &two}) {
    expect_read(*engine, *fd, content, memory, {0, 0, content.size()}, Route::CuFile);
  }
  struct stat status {};
  ASSERT_EQ(::fstat(one.get(), &status), 0);
  engine->forget_filesystem(status.st_dev + 1);
  EXPECT_EQ(count(FakeCount::Handles), 2u);
  engine->forget_filesystem(status.st_dev);
  EXPECT_EQ(count(FakeCount::Handles), 0u);
}

TEST_F(EngineCuFileTest, ShortTransfersAreContinued) {
  const UniqueFd fd = make_file("f", content);
  Target memory(&gpu(), content.size());
  ASSERT_TRUE(engine->read({fd.get()}, *memory, one({0, 0, 1}), Route::CuFile));  // loads it
  ASSERT_TRUE(FakeGpu::fail_cufile("short:1:100"));
  expect_read(*engine, fd, content, memory, {0, 0, content.size()}, Route::CuFile);
}

TEST_F(EngineCuFileTest, ErrorInTheMiddleIsReturned) {
  const UniqueFd fd = make_file("f", content);
  Target memory(&gpu(), content.size());
  ASSERT_TRUE(engine->read({fd.get()}, *memory, one({0, 0, 1}), Route::CuFile));
  ASSERT_TRUE(FakeGpu::fail_cufile("half:2:5"));
  EXPECT_TRUE(failed_with(
      engine->read({fd.get()}, *memory, one({0, 0, content.size()}), Route::CuFile), EIO));
  FakeGpu::fail_cufile("");
  expect_read(*engine, fd, content, memory, {0, 0, content.size()}, Route::CuFile);
}

TEST_F(EngineCuFileTest, RefusedFileTakesAnotherRouteUnlessCuFileIsRequested) {
  const UniqueFd first = make_file("first", content), fd = make_file("f", content);
  Target memory(&gpu(), content.size());
  ASSERT_TRUE(engine->read({first.get()}, *memory, one({0, 0, 1}), Route::CuFile));
  ASSERT_TRUE(FakeGpu::fail_cufile("cuFileHandleRegister:1+:5027"));
  for (const Route route : {Route::CuFile, Route::Gds}) {
    EXPECT_TRUE(
        failed_with(engine->read({fd.get()}, *memory, one({0, 0, 1000}), route), EOPNOTSUPP));
    EXPECT_FALSE(possibility(fd, route).possible);
    EXPECT_NE(possibility(fd, route).words.find("5027"), std::string::npos);
  }
  const auto went = expect_read(*engine, fd, content, memory, {0, 0, content.size()}, Route::Auto);
  EXPECT_EQ(went.route, Route::Staged);
}

TEST_F(EngineCuFileTest, GdsIsRefusedWithoutADirectPath) {
  const UniqueFd fd = make_file("f", content);
  Target memory(&gpu(), content.size());
  EXPECT_TRUE(
      failed_with(engine->read({fd.get()}, *memory, one({0, 0, 1000}), Route::Gds), EOPNOTSUPP));
  EXPECT_NE(possibility(fd, Route::Gds).words.find("nvidia-fs"), std::string::npos);
  EXPECT_TRUE(possibility(fd, Route::CuFile).possible);
  EXPECT_NE(engine->preview({fd.get()}, kMiB, &gpu()).words.find("not gds: "), std::string::npos);
}

TEST_F(EngineCuFileTest, LibraryIsNotLoadedWhenTurnedOff) {
  Engine::Settings settings = test_settings();
  settings.cufile = false;
  start(settings);
  const UniqueFd fd = make_file("f", content);
  Target memory(&gpu(), content.size());
  EXPECT_TRUE(
      failed_with(engine->read({fd.get()}, *memory, one({0, 0, 1000}), Route::CuFile), EOPNOTSUPP));
  EXPECT_EQ(count(FakeCount::Drivers), 0u);
  EXPECT_NE(possibility(fd, Route::CuFile).words.find("gpu_cufile"), std::string::npos);
}

}  // namespace
}  // namespace sluice
