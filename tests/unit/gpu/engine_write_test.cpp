// SPDX-License-Identifier: BSD-2-Clause
#include <unistd.h>

#include <thread>

#include "tests/support/files.hpp"
#include "tests/unit/gpu/engine_fixture.hpp"

namespace sluice {
namespace {

using test::pattern;

class EngineWriteTest : public EngineTest, public testing::WithParamInterface<Route> {
 protected:
  std::string content_of(const std::string& name) { return test::read_file(dir / name); }
};

INSTANTIATE_TEST_SUITE_P(Routes, EngineWriteTest,
                         testing::Values(Route::Auto, Route::Staged, Route::Pageable, Route::Host),
                         [](const auto& route) { return std::string(name_of(route.param)); });

TEST_P(EngineWriteTest, WritesAnyRangeOfMemoryAnywhere) {
  const std::string bytes = pattern(11 * kMiB, 1);
  auto memory = target(GetParam(), bytes.size());
  memory->fill(bytes);
  for (const Segment& segment : std::initializer_list<Segment>{{0, 0, 11 * kMiB},
                                                               {777, 1, 5 * kMiB + 3},
                                                               {1, 12'345, 65'536},
                                                               {3, 99, 4097},
                                                               {0, 0, 0}}) {
    const std::string before = pattern(200'000, 2);
    const UniqueFd fd = make_file("f", before);
    std::string expected = before;
    expected.resize(std::max<std::size_t>(
        expected.size(), segment.length ? segment.file_offset + segment.length : 0));
    expected.replace(segment.file_offset, segment.length, bytes, segment.memory_offset,
                     segment.length);
    const auto went = engine->write({fd.get()}, **memory, segment, GetParam());
    ASSERT_TRUE(went) << went.error().operation;
    EXPECT_EQ(went->bytes, segment.length);
    EXPECT_EQ(went->why, GetParam() == Route::Auto ? Why::Writing : Why::Asked);
    EXPECT_TRUE(content_of("f") == expected) << segment.length;
  }
}

TEST_P(EngineWriteTest, WriteFunctionGetsTheBytesInOrderFromOneThread) {
  const std::string bytes = pattern(9 * kMiB + 1, 3);
  auto memory = target(GetParam(), bytes.size());
  memory->fill(bytes);
  std::string got;
  const auto self = std::this_thread::get_id();
  const EngineFile file{-1, [&](const std::byte* data, std::size_t size, std::uint64_t offset) {
                          EXPECT_EQ(offset, 100 + got.size());
                          EXPECT_EQ(std::this_thread::get_id(), self);
                          got.append(reinterpret_cast<const char*>(data), size);
                          return Result<void>();
                        }};
  ASSERT_TRUE(engine->write(file, **memory, {0, 100, bytes.size()}, GetParam()));
  EXPECT_TRUE(got == bytes);
}

TEST_P(EngineWriteTest, ErrorOfTheWriteFunctionIsReturned) {
  auto memory = target(GetParam(), 20 * kMiB);
  int calls = 0;
  const EngineFile file{-1, [&](const std::byte*, std::size_t, std::uint64_t) -> Result<void> {
                          if (++calls == 1) return {};
                          return Error(EDQUOT, "write to the file");
                        }};
  const std::uint64_t length = GetParam() == Route::Host ? 1 : 20 * kMiB;
  if (length == 1) calls = 1;  // host memory is written in one piece
  EXPECT_TRUE(failed_with(engine->write(file, **memory, {0, 0, length}, GetParam()), EDQUOT));
  EXPECT_EQ(calls, 2);
}

TEST_P(EngineWriteTest, WriteBeyondTheLargestOffsetIsRefused) {
  const UniqueFd fd = make_file("f", "");
  auto memory = target(GetParam(), 1000);
  EXPECT_TRUE(failed_with(engine->write({fd.get()}, **memory, {0, ~0ULL, 1}, GetParam()), EFBIG));
  EXPECT_TRUE(failed_with(
      engine->write({fd.get()}, **memory, {0, (1ULL << 63) - 10, 11}, GetParam()), EFBIG));
}

TEST_P(EngineWriteTest, WriteToAReadOnlyDescriptorFails) {
  make_file("f", "abc");
  const UniqueFd fd(::open((dir / "f").c_str(), O_RDONLY | O_CLOEXEC));
  auto memory = target(GetParam(), 1000);
  EXPECT_TRUE(failed_with(engine->write({fd.get()}, **memory, {0, 0, 1000}, GetParam()), EBADF));
}

}  // namespace
}  // namespace sluice
