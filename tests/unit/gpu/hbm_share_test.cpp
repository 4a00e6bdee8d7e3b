// SPDX-License-Identifier: BSD-2-Clause
// Sharing of copies in GPU memory. The fake's memory is a memfd, so whoever imports it can write.
#include "gpu/hbm.hpp"
#include "tests/support/files.hpp"
#include "tests/unit/gpu/engine_fixture.hpp"

namespace sluice {
namespace {

using test::FakeCount;
using test::pattern;

class HbmShareTest : public EngineTest {
 protected:
  static constexpr std::uint64_t kSize = 5 * kMiB + 12'345;
  static constexpr uid_t kOne = 1001, kOther = 1002;

  void SetUp() override {
    EngineTest::SetUp();
    Engine::Settings settings = test_settings();
    settings.hbm.size = {.bytes = 64 * kMiB};
    start(settings);
    ASSERT_TRUE(engine->prepare(gpu()));
  }
  void TearDown() override {
    EngineTest::TearDown();
    EXPECT_EQ(count(FakeCount::AllocatedBytes), 0u);
  }
  UniqueFd quiet_file(const std::string& name, const std::string& content) {
    dir.make_file(name, content);
    UniqueFd fd(::open((dir / name).c_str(), O_RDONLY | O_CLOEXEC));
    wait_until_registrable(fd);
    return fd;
  }
  // Calls share() until the memory is there and good.
  Result<SharedCopy> share(const UniqueFd& fd, uid_t user) {
    for (;;) {
      auto shared = engine->share({.fd = fd.get(), .user = user}, gpu());
      if (!shared || (shared->memory && shared->check())) return shared;
    }
  }
  // What a process maps.
  std::unique_ptr<Memory> map(const SharedCopy& shared) {
    auto memory = import_fd(gpu(), shared.memory, shared.allocation, 0, shared.size);
    EXPECT_TRUE(memory);
    return memory ? *std::move(memory) : nullptr;
  }
  std::string bytes_of(const Memory& memory) {
    std::string out(memory.length(), '\0');
    EXPECT_EQ(gpu().api().cuMemcpyDtoH(out.data(), memory.address(), out.size()), CUDA_SUCCESS);
    return out;
  }
  void write_to(const Memory& memory, std::uint64_t at, const std::string& bytes) {
    EXPECT_EQ(gpu().api().cuMemcpyHtoD(memory.address() + at, bytes.data(), bytes.size()),
              CUDA_SUCCESS);
    // A copy from pageable memory may return before its bytes are there.
    EXPECT_EQ(gpu().api().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  }
  // Reads as a user, and expects the bytes of the file.
  Route read(const UniqueFd& fd, const std::string& content, uid_t user, std::uint64_t offset = 0,
             std::uint64_t length = kSize) {
    Target memory(&gpu(), length);
    const auto went =
        engine->read({.fd = fd.get(), .user = user}, *memory, one({0, offset, length}));
    EXPECT_TRUE(went);
    EXPECT_TRUE(memory.bytes() == content.substr(offset, length));
    return went ? went->route : Route::Auto;
  }
};

TEST_F(HbmShareTest, TheMemoryHasTheBytesOfTheFile) {
  const std::string content = pattern(kSize, 1);
  const UniqueFd fd = quiet_file("f", content);
  const auto shared = share(fd, kOne);
  ASSERT_TRUE(shared);
  EXPECT_EQ(shared->size, kSize);
  EXPECT_EQ(shared->filled, kSize);
  EXPECT_TRUE(bytes_of(*map(*shared)) == content);
  // The same memory again.
  const auto again = share(fd, kOne);
  ASSERT_TRUE(again);
  const auto one = map(*shared), other = map(*again);
  write_to(*one, 100, "x");
  EXPECT_EQ(bytes_of(*other)[100], 'x');
}

TEST_F(HbmShareTest, OnlyThatUserIsServedFromIt) {
  const std::string content = pattern(kSize, 2);
  const UniqueFd fd = quiet_file("f", content);
  ASSERT_TRUE(share(fd, kOne));
  EXPECT_EQ(read(fd, content, kOne), Route::Hbm);
  EXPECT_EQ(read(fd, content, kOne, 10'000, 4096), Route::Hbm);
  EXPECT_NE(read(fd, content, kOther, 10'000, 4096), Route::Hbm);
  EXPECT_NE(read(fd, content, 0, 10'000, 4096), Route::Hbm);
  EXPECT_NE(read(fd, content, kOther), Route::Hbm);
  // They get a copy of their own.
  EXPECT_NE(read(fd, content, kOther), Route::Hbm);
  EXPECT_EQ(read(fd, content, kOther), Route::Hbm);
  EXPECT_EQ(engine->hbm().figures().at(0).files, 2u);
}

TEST_F(HbmShareTest, EachUserHasMemoryOfItsOwn) {
  const std::string content = pattern(kSize, 3);
  const UniqueFd fd = quiet_file("f", content);
  const auto one = share(fd, kOne), other = share(fd, kOther);
  ASSERT_TRUE(one && other);
  const auto mine = map(*one), theirs = map(*other);
  write_to(*mine, 0, "scribble");
  EXPECT_TRUE(bytes_of(*theirs) == content);
  EXPECT_EQ(read(fd, content, kOther), Route::Hbm);
}

TEST_F(HbmShareTest, WhoeverReadsAfterAScribbleGetsTheFile) {
  const std::string content = pattern(kSize, 4);
  const UniqueFd fd = quiet_file("f", content);
  const auto shared = share(fd, kOne);
  ASSERT_TRUE(shared);
  const auto mapping = map(*shared);
  write_to(*mapping, 3 * kMiB + 5, "scribble");
  // Only the blocks that a request touches are checked.
  EXPECT_EQ(read(fd, content, kOne, 0, 4096), Route::Hbm);
  EXPECT_EQ(read(fd, content, kOne, kSize - 10, 10), Route::Hbm);
  EXPECT_NE(read(fd, content, kOne, 3 * kMiB - 100, 200), Route::Hbm);
  EXPECT_EQ(engine->hbm().figures().at(0).files, 0u);
  EXPECT_NE(read(fd, content, kOne), Route::Auto);
  // Who mapped it keeps what it has.
  EXPECT_EQ(bytes_of(*mapping).substr(3 * kMiB + 5, 8), "scribble");
}

TEST_F(HbmShareTest, ScribbledMemoryIsNotSharedAgain) {
  const std::string content = pattern(kSize, 5);
  const UniqueFd fd = quiet_file("f", content);
  const auto shared = share(fd, kOne);
  ASSERT_TRUE(shared);
  const auto mapping = map(*shared);
  write_to(*mapping, kSize - 1, std::string(1, static_cast<char>(content.back() + 1)));
  const auto again = share(fd, kOne);
  ASSERT_TRUE(again);
  EXPECT_TRUE(bytes_of(*map(*again)) == content);
}

TEST_F(HbmShareTest, AMappingIsASnapshot) {
  const std::string content = pattern(kSize, 6), changed = pattern(kSize + kMiB, 7);
  UniqueFd fd = quiet_file("f", content);
  const auto shared = share(fd, kOne);
  ASSERT_TRUE(shared);
  const auto mapping = map(*shared);
  fd = quiet_file("f", changed);
  const auto again = share(fd, kOne);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->size, kSize + kMiB);
  EXPECT_NE(again->changed, shared->changed);
  EXPECT_TRUE(bytes_of(*map(*again)) == changed);
  EXPECT_TRUE(bytes_of(*mapping) == content);
  // Neither is it needed that the copy, or the engine, lives on.
  engine->hbm().release();
  EXPECT_TRUE(bytes_of(*mapping) == content);
}

TEST_F(HbmShareTest, PiecesAreJoinedToOneAllocation) {
  const std::string content = pattern(129 * kMiB, 8);
  Engine::Settings settings = test_settings();
  settings.hbm.size = {.bytes = 256 * kMiB};
  start(settings);
  const UniqueFd fd = quiet_file("f", content);
  for (int i = 0; i < 2; ++i) read(fd, content, kOne, 64 * kMiB, 64 * kMiB);
  EXPECT_EQ(read(fd, content, kOne, 64 * kMiB, 64 * kMiB), Route::Hbm);
  // It takes several calls, each of which copies a part.
  auto first = engine->share({.fd = fd.get(), .user = kOne}, gpu());
  ASSERT_TRUE(first);
  EXPECT_FALSE(first->memory);
  EXPECT_EQ(first->filled, 64 * kMiB);
  const auto shared = share(fd, kOne);
  ASSERT_TRUE(shared);
  EXPECT_TRUE(bytes_of(*map(*shared)) == content);
}

TEST_F(HbmShareTest, RefusesWithAReason) {
  const std::string content = pattern(kSize, 10);
  const UniqueFd fd = quiet_file("f", content), empty = quiet_file("empty", "");
  EXPECT_TRUE(failed_with(share(empty, kOne), EINVAL));
  {
    const UniqueFd writer(::open((dir / "f").c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_TRUE(failed_with(share(fd, kOne), EAGAIN));
  }
  engine->hbm().set_limits({.size = {.bytes = 4 * kMiB}});
  EXPECT_TRUE(failed_with(share(fd, kOne), ENOSPC));
  engine->hbm().set_limits({.size = {.bytes = 64 * kMiB}});
  fail("cuMemExportToShareableHandle:1:999");
  EXPECT_FALSE(share(fd, kOne));
  fail("");
  EXPECT_TRUE(share(fd, kOne));
  engine->hbm().set_limits({});
  EXPECT_TRUE(failed_with(share(fd, kOne), EOPNOTSUPP));
}

}  // namespace
}  // namespace sluice
