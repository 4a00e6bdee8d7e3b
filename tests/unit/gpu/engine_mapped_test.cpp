// SPDX-License-Identifier: BSD-2-Clause
#include <unistd.h>

#include <atomic>
#include <thread>

#include "gpu/route_mapped.hpp"
#include "tests/support/files.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/gpu/engine_fixture.hpp"

namespace sluice {
namespace {

using test::FakeCount;
using test::pattern;

class EngineMappedTest : public EngineTest {
 protected:
  static constexpr std::uint64_t kSize = 16 * kMiB + 12'345;  // large enough to be registered

  // Reads the whole file with Route::Auto.
  Transfer read_all(const UniqueFd& fd, const std::string& content) {
    Target memory(&gpu(), content.size());
    return expect_read(*engine, fd, content, memory, {0, 0, content.size()}, Route::Auto);
  }
  // A registered file.
  UniqueFd registered(const std::string& content) {
    UniqueFd fd = make_file("registered", content);
    wait_until_registrable(fd);
    read_all(fd, content);
    // Usually at once. Another process may have emptied the page cache of the machine.
    EXPECT_TRUE(test::eventually([&] { return read_all(fd, content).route == Route::Mapped; }));
    return fd;
  }
};

TEST_F(EngineMappedTest, FileIsRegisteredWhenItIsReadAgain) {
  const std::string content = pattern(kSize, 1);
  const UniqueFd fd = make_file("f", content);
  wait_until_registrable(fd);
  const auto first = read_all(fd, content);
  EXPECT_EQ(first.route, Route::Staged);
  EXPECT_EQ(first.why, Why::ReadOnce);
  EXPECT_EQ(engine->mapped_bytes(), 0u);
  EXPECT_EQ(engine->preview({fd.get()}, kSize, &gpu()).route, Route::Mapped);
  EXPECT_EQ(engine->mapped_bytes(), 0u) << "a preview registers nothing";
  const auto second = read_all(fd, content);
  EXPECT_EQ(second.route, Route::Mapped);
  EXPECT_EQ(second.why, Why::Registered);
  EXPECT_EQ(engine->mapped_bytes(), kSize);
  const auto registrations = count(FakeCount::Registrations);
  EXPECT_EQ(read_all(fd, content).route, Route::Mapped);
  EXPECT_EQ(count(FakeCount::Registrations), registrations);
}

TEST_F(EngineMappedTest, ManyRequestsCanBeOneCompleteRead) {
  const std::string content = pattern(kSize, 2);
  const UniqueFd fd = make_file("f", content);
  wait_until_registrable(fd);
  Target memory(&gpu(), kMiB);
  // All but the last bytes. The last requests, which have not read anything before, register
  // nothing.
  for (std::uint64_t at = 0; at < 16 * kMiB; at += kMiB) {
    const auto went = expect_read(*engine, fd, content, memory, {0, at, kMiB}, Route::Auto);
    EXPECT_EQ(went.route, Route::Staged) << at;
  }
  EXPECT_EQ(expect_read(*engine, fd, content, memory, {0, 1, kMiB}, Route::Auto).route,
            Route::Mapped);
}

TEST_F(EngineMappedTest, LargeFileIsRegisteredInTheBackground) {
  Engine::Settings settings = test_settings();
  settings.mapped_background = kSize;
  start(settings);
  std::string content = pattern(kSize, 2);
  const UniqueFd fd = make_file("f", content);
  // Changes come while it is registered, or before, or after.
  for (int i = 0; i < test::samples(20, 20); ++i) {
    content[kSize / 20 * i] ^= 1;
    ASSERT_EQ(::pwrite(fd.get(), content.data(), kSize, 0), static_cast<ssize_t>(kSize));
    wait_until_registrable(fd);
    EXPECT_EQ(read_all(fd, content).route, Route::Staged);
    const auto second = read_all(fd, content);
    EXPECT_EQ(second.route, Route::Staged);
    EXPECT_EQ(second.why, Why::ReadOnce);
    if (i % 2 == 0) read_all(fd, content);
  }
  EXPECT_TRUE(test::eventually([&] {
    if (read_all(fd, content).route == Route::Mapped) return true;
    // The background waits for a pause of the readers.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return false;
  }));
  EXPECT_EQ(engine->mapped_bytes(), kSize);
  // Nothing of a file that is forgotten stays, also if that was in progress: its disk may go.
  for (int i = 0; i < test::samples(15, 15); ++i) {
    for (int j = 0; j < 2; ++j) read_all(fd, content);
    std::this_thread::sleep_for(std::chrono::microseconds(i * 300));
    engine->forget({fd.get()});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that it has ended
    ASSERT_TRUE(test::eventually([&] { return engine->mapped_bytes() == 0; })) << i;
  }
  // A registration in progress does not keep the engine from ending.
  const UniqueFd other = make_file("g", content);
  wait_until_registrable(other);
  for (int i = 0; i < 2; ++i) read_all(other, content);
  engine.reset();
}

TEST_F(EngineMappedTest, FileOfSeveralPortionsIsReadAcrossTheirBorders) {
  constexpr std::uint64_t kPortion = 64 * kMiB, kAll = 2 * kPortion + 5;
  const std::string content = pattern(kAll, 3);
  const UniqueFd fd = make_file("f", content);
  wait_until_registrable(fd);
  Target memory(&gpu(), kAll);
  const auto all = engine->read({fd.get()}, *memory, one({0, 0, kAll}), Route::Mapped);
  ASSERT_TRUE(all);
  EXPECT_EQ(all->bytes, kAll);
  EXPECT_EQ(engine->mapped_bytes(), kAll);
  EXPECT_TRUE(memory.bytes() == content);
  const Segment parts[] = {{0, kPortion - 1000, 200'000}, {200'000, 2 * kPortion - 1, 6}};
  const auto some = engine->read({fd.get()}, *memory, parts, Route::Mapped);
  ASSERT_TRUE(some);
  EXPECT_TRUE(memory.bytes().substr(0, 200'006) ==
              content.substr(kPortion - 1000, 200'000) + content.substr(2 * kPortion - 1, 6));
}

TEST_F(EngineMappedTest, CancelledReadHasTheBytesThatItReports) {
  constexpr std::uint64_t kAll = 200 * kMiB;
  const std::string content = pattern(kAll, 4);
  const UniqueFd fd = make_file("f", content);
  wait_until_registrable(fd);
  for (const Route route : {Route::Mapped, Route::Staged, Route::Pageable}) {
    Target memory(&gpu(), kAll);
    const EngineFile file{.fd = fd.get(), .is_cancelled = [] { return true; }};
    const auto done = engine->read(file, *memory, one({0, 0, kAll}), route);
    ASSERT_TRUE(done) << name_of(route);
    EXPECT_GT(done->bytes, 0u) << name_of(route);
    EXPECT_LT(done->bytes, kAll) << name_of(route);
    EXPECT_TRUE(memory.bytes().substr(0, done->bytes) == content.substr(0, done->bytes))
        << name_of(route);
  }
}

// For the bytes that were read with O_DIRECT.
TEST_F(EngineMappedTest, FileIsReadIntoThePageCacheOnceAndIfHalfOfItWasRead) {
  MappedFiles files({.bytes = 0,
                     .idle = {},
                     .half_life = std::chrono::hours(1),
                     .min_unchanged = {},
                     .background = 0,
                     .memory = [] { return MachineMemory{}; },
                     .is_busy = {}});
  FileVersion version{{1, 2}, 10 * kMiB, 3, 4};
  EXPECT_FALSE(files.claim_fill(version, kMiB)) << "the header of a large file";
  EXPECT_FALSE(files.claim_fill(version, 3 * kMiB));
  EXPECT_TRUE(files.claim_fill(version, kMiB));
  EXPECT_FALSE(files.claim_fill(version, 10 * kMiB));
  version.modified += 1;
  EXPECT_FALSE(files.claim_fill(version, kMiB));
  EXPECT_TRUE(files.claim_fill(version, 9 * kMiB));
}

TEST_F(EngineMappedTest, RecentlyChangedFileIsNotRegistered) {
  const std::string content = pattern(kSize, 3);
  Engine::Settings settings = test_settings();
  settings.mapped_after = std::chrono::hours(1);
  start(settings);
  const UniqueFd fd = make_file("f", content);
  read_all(fd, content);
  const auto again = read_all(fd, content);
  EXPECT_EQ(again.route, Route::Staged);
  EXPECT_EQ(again.why, Why::Changed);
  Target memory(&gpu(), kMiB);
  EXPECT_TRUE(
      failed_with(engine->read({fd.get()}, *memory, one({0, 0, kMiB}), Route::Mapped), EOPNOTSUPP));
}

TEST_F(EngineMappedTest, SmallFilesAreNotRegistered) {
  const std::string content = pattern(kMiB, 4);
  const UniqueFd fd = make_file("f", content);
  wait_until_registrable(fd);
  for (int i = 0; i < 3; ++i) {
    const auto went = read_all(fd, content);
    EXPECT_EQ(went.route, Route::Staged);
    EXPECT_EQ(went.why, Why::Cached);
  }
}

TEST_F(EngineMappedTest, UncachedFileIsNotRegistered) {
  const std::string content = pattern(kSize, 5);
  const UniqueFd fd = make_file("f", content);
  wait_until_registrable(fd);
  read_all(fd, content);
  if (!drop_cache(fd)) GTEST_SKIP() << "the page cache can't be dropped here";
  const auto went = read_all(fd, content);
  EXPECT_EQ(went.route, Route::Staged);
  EXPECT_EQ(went.why, Why::NotCached);
}

TEST_F(EngineMappedTest, OverwrittenBytesAreReadAgain) {
  std::string content = pattern(kSize, 6);
  const UniqueFd fd = registered(content);
  const std::string change = pattern(3 * kMiB, 7);
  content.replace(kMiB + 5, change.size(), change);
  ASSERT_GT(::pwrite(fd.get(), change.data(), change.size(), kMiB + 5), 0);
  read_all(fd, content);
  EXPECT_EQ(engine->mapped_bytes(), 0u) << "the old registration is dropped";
}

TEST_F(EngineMappedTest, AppendedBytesAreRead) {
  std::string content = pattern(kSize, 8);
  const UniqueFd fd = registered(content);
  const std::string more = pattern(100'000, 9);
  ASSERT_GT(::pwrite(fd.get(), more.data(), more.size(), kSize), 0);
  read_all(fd, content + more);
}

TEST_F(EngineMappedTest, TruncatedAndRewrittenFileHasItsNewBytes) {
  const std::string content = pattern(kSize, 10), other = pattern(kSize, 11);
  const UniqueFd fd = registered(content);
  ASSERT_EQ(::ftruncate(fd.get(), 0), 0);
  ASSERT_EQ(::pwrite(fd.get(), other.data(), kSize, 0), static_cast<ssize_t>(kSize));
  read_all(fd, other);
  // Again after the new content is registered.
  wait_until_registrable(fd);
  read_all(fd, other);
  EXPECT_EQ(read_all(fd, other).route, Route::Mapped);
}

TEST_F(EngineMappedTest, ManyReadersOfAFileThatChangesNeverSeeOldBytes) {
  std::string content = pattern(kSize, 12);
  Engine::Settings settings = test_settings();
  settings.mapped_after = std::chrono::milliseconds(20);
  start(settings);
  const UniqueFd fd = make_file("f", content);
  for (char round = 0; round < test::samples(4, 50); ++round) {
    ASSERT_EQ(::ftruncate(fd.get(), 0), 0);
    content[5] = round;
    ASSERT_EQ(::pwrite(fd.get(), content.data(), kSize, 0), static_cast<ssize_t>(kSize));
    std::vector<std::jthread> readers;
    for (int i = 0; i < 3; ++i) {
      readers.emplace_back([&] {
        for (int again = 0; again < 3; ++again) read_all(fd, content);
      });
    }
  }
}

TEST_F(EngineMappedTest, RegisteredBytesAreLimited) {
  Engine::Settings settings = test_settings();
  settings.mapped_bytes = kSize + kMiB;
  start(settings);
  const std::string content = pattern(kSize, 13);
  const UniqueFd fd = registered(content);
  const UniqueFd other = make_file("other", content);
  wait_until_registrable(other);
  read_all(other, content);
  const auto again = read_all(other, content);
  EXPECT_EQ(again.route, Route::Staged);
  EXPECT_EQ(again.why, Why::NoMemoryLeft);
  EXPECT_EQ(engine->mapped_bytes(), kSize);
}

TEST_F(EngineMappedTest, RegistrationMakesRoomForAFileThatIsReadMore) {
  Engine::Settings settings = test_settings();
  settings.mapped_bytes = kSize + kMiB;
  start(settings);
  const std::string content = pattern(kSize, 14);
  const UniqueFd fd = registered(content);
  const UniqueFd other = make_file("other", content);
  wait_until_registrable(other);
  // It must have been read about twice as often.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(read_all(other, content).route, Route::Staged) << i;
  EXPECT_TRUE(test::eventually([&] { return read_all(other, content).route == Route::Mapped; }));
  EXPECT_EQ(engine->mapped_bytes(), kSize);
}

TEST_F(EngineMappedTest, OldReadsCountLess) {
  Engine::Settings settings = test_settings();
  settings.mapped_bytes = kSize + kMiB;
  settings.mapped_half_life = std::chrono::milliseconds(200);
  start(settings);
  const std::string content = pattern(kSize, 14);
  const UniqueFd fd = registered(content);
  for (int i = 0; i < 20; ++i) read_all(fd, content);
  const UniqueFd other = make_file("other", content);
  wait_until_registrable(other);
  EXPECT_TRUE(test::eventually([&] { return read_all(other, content).route == Route::Mapped; }));
}

TEST_F(EngineMappedTest, IdleRegistrationEndsIfSoConfigured) {
  Engine::Settings settings = test_settings();
  settings.mapped_idle = std::chrono::milliseconds(300);
  start(settings);
  const std::string content = pattern(kSize, 14);
  const UniqueFd fd = registered(content);
  EXPECT_TRUE(test::eventually([&] { return engine->mapped_bytes() == 0; }));
}

TEST_F(EngineMappedTest, DeletedFileIsReleasedAndAnIdleOneStays) {
  ASSERT_EQ(Engine::Settings{}.mapped_idle.count(), 0);
  const std::string content = pattern(kSize, 18);
  const UniqueFd fd = registered(content);
  const UniqueFd other = make_file("other", content);
  wait_until_registrable(other);
  read_all(other, content);
  EXPECT_EQ(read_all(other, content).route, Route::Mapped);
  ASSERT_EQ(::unlink((dir / "other").c_str()), 0);
  EXPECT_TRUE(test::eventually([&] { return engine->mapped_bytes() < 2 * kSize; }));
  EXPECT_EQ(engine->mapped_bytes(), kSize);
  const auto registrations = count(FakeCount::Registrations);
  EXPECT_EQ(read_all(fd, content).route, Route::Mapped);
  EXPECT_EQ(count(FakeCount::Registrations), registrations);
}

// A machine of 64 MiB.
class EngineShortOfMemoryTest : public EngineMappedTest {
 protected:
  void SetUp() override {
    EngineMappedTest::SetUp();
    Engine::Settings settings = test_settings();
    settings.memory = [this] { return MachineMemory{64 * kMiB, available}; };
    start(settings);
  }
  std::atomic<std::uint64_t> available{64 * kMiB};
};

TEST_F(EngineShortOfMemoryTest, PagesAreReleasedForOthersAndRegisteredAgain) {
  const std::string content = pattern(kSize, 19);
  const UniqueFd fd = registered(content);
  available = kMiB;
  EXPECT_TRUE(test::eventually([&] { return engine->mapped_bytes() == 0; }));
  const auto meanwhile = read_all(fd, content);
  EXPECT_EQ(meanwhile.route, Route::Staged);
  EXPECT_EQ(meanwhile.why, Why::NoMemoryLeft);
  available = 64 * kMiB;
  EXPECT_EQ(read_all(fd, content).route, Route::Mapped);
}

TEST_F(EngineShortOfMemoryTest, FileThatIsReadLeastIsReleasedFirst) {
  const std::string content = pattern(kSize, 20);
  const UniqueFd fd = registered(content);
  read_all(fd, content);
  const UniqueFd other = make_file("other", content);
  wait_until_registrable(other);
  read_all(other, content);
  EXPECT_EQ(read_all(other, content).route, Route::Mapped);
  available = 5 * kMiB + kSize;  // with the part of it that stays free, enough for one
  EXPECT_TRUE(test::eventually([&] { return engine->mapped_bytes() == kSize; }));
  EXPECT_EQ(read_all(fd, content).route, Route::Mapped);
  EXPECT_EQ(read_all(other, content).why, Why::NoMemoryLeft);
}

TEST_F(EngineMappedTest, ForgettingAFileReleasesItsPages) {
  const std::string content = pattern(kSize, 15);
  const UniqueFd fd = registered(content);
  engine->forget({fd.get()});
  EXPECT_EQ(engine->mapped_bytes(), 0u);
  EXPECT_EQ(read_all(fd, content).why, Why::ReadOnce);
}

TEST_F(EngineMappedTest, FailedRegistrationIsNotRetried) {
  const std::string content = pattern(kSize, 16);
  const UniqueFd fd = make_file("f", content);
  wait_until_registrable(fd);
  read_all(fd, content);
  fail("cuMemHostRegister:1:801");
  for (int i = 0; i < 2; ++i) {
    const auto went = read_all(fd, content);
    EXPECT_EQ(went.route, Route::Staged);
    EXPECT_EQ(went.why, Why::NotPinned);
  }
}

TEST_F(EngineMappedTest, TruncationDuringAReadIsNotFatal) {
  const std::string content = pattern(kSize, 17);
  const UniqueFd fd = make_file("f", content);
  Engine::Settings settings = test_settings();
  settings.mapped_after = std::chrono::milliseconds(0);
  start(settings);
  std::atomic<bool> stop{false};
  std::thread shrinker([&] {
    while (!stop) {
      ::ftruncate(fd.get(), 4096);
      ::pwrite(fd.get(), content.data() + 4096, kSize - 4096, 4096);
      std::this_thread::yield();
    }
  });
  Target memory(&gpu(), kSize);
  for (int i = 0; i < test::samples(30, 500); ++i) {
    const auto went = engine->read({fd.get()}, *memory, one({0, 0, kSize}));
    EXPECT_TRUE(went) << went.error().operation;
    if (!went) break;
    EXPECT_GE(went->bytes, 4096u);
    // On request it may be impossible, and then fails.
    const auto asked = engine->read({fd.get()}, *memory, one({0, 0, kSize}), Route::Mapped);
    if (!asked) {
      EXPECT_EQ(asked.error().code, EOPNOTSUPP);
    }
  }
  stop = true;
  shrinker.join();
}

}  // namespace
}  // namespace sluice
