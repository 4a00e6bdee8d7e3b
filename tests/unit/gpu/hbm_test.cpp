// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/hbm.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "tests/support/files.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/gpu/engine_fixture.hpp"

namespace sluice {
namespace {

using test::FakeCount;
using test::pattern;

class HbmTest : public EngineTest {
 protected:
  static constexpr std::uint64_t kSize = 5 * kMiB + 12'345;

  void SetUp() override {
    EngineTest::SetUp();
    start(settings());
    // Staging, contexts and the like are there, so that counts change only by what is tested.
    ASSERT_TRUE(engine->prepare(gpu()));
  }
  void TearDown() override {
    EngineTest::TearDown();
    EXPECT_EQ(count(FakeCount::AllocatedBytes), 0u);
  }
  static Engine::Settings settings(std::uint64_t bytes = 64 * kMiB) {
    Engine::Settings settings = test_settings();
    settings.hbm.size = {.bytes = bytes};
    return settings;
  }
  // A file that nobody writes.
  UniqueFd quiet_file(const std::string& name, const std::string& content) {
    dir.make_file(name, content);
    UniqueFd fd(::open((dir / name).c_str(), O_RDONLY | O_CLOEXEC));
    wait_until_registrable(fd);
    return fd;
  }
  void change(const std::string& name, const std::string& bytes, std::uint64_t at) {
    const UniqueFd fd(::open((dir / name).c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(at)),
              static_cast<ssize_t>(bytes.size()));
  }
  Transfer read_all(const UniqueFd& fd, const std::string& content, std::size_t on = 0) {
    Target memory(&gpu(on), content.size());
    return expect_read(*engine, fd, content, memory, {0, 0, content.size()}, Route::Auto);
  }
  // A file with a copy.
  UniqueFd copied(const std::string& name, const std::string& content) {
    UniqueFd fd = quiet_file(name, content);
    read_all(fd, content);
    EXPECT_EQ(read_all(fd, content).why, Why::FillingHbm);
    EXPECT_EQ(read_all(fd, content).route, Route::Hbm);
    return fd;
  }
  HbmFigures figures() {
    const auto all = engine->hbm().figures();
    return all.empty() ? HbmFigures{} : all[0];
  }
};

TEST_F(HbmTest, SecondReadFillsAndTheThirdIsServed) {
  const std::string content = pattern(kSize, 1);
  const UniqueFd fd = quiet_file("f", content);
  EXPECT_EQ(read_all(fd, content).why, Why::Cached);
  EXPECT_EQ(figures().files, 0u);
  const auto second = read_all(fd, content);
  EXPECT_EQ(second.route, Route::Staged);
  EXPECT_EQ(second.why, Why::FillingHbm);
  EXPECT_EQ(figures().bytes, 6 * kMiB);
  EXPECT_EQ(figures().filled_bytes, kSize);
  const auto third = read_all(fd, content);
  EXPECT_EQ(third.route, Route::Hbm);
  EXPECT_EQ(third.why, Why::InHbm);
  EXPECT_EQ(figures().hits, 1u);
  EXPECT_EQ(figures().hit_bytes, kSize);
  EXPECT_EQ(engine->preview({fd.get()}, kSize, &gpu()).route, Route::Hbm);
}

TEST_F(HbmTest, ManyRequestsCanBeOneRead) {
  constexpr std::uint64_t kPart = kMiB / 4;
  const std::string content = pattern(20 * kPart, 1);
  const UniqueFd fd = quiet_file("f", content);
  Target memory(&gpu(), kPart);
  const auto read_parts = [&] {
    for (std::uint64_t at = 0; at < content.size(); at += kPart) {
      expect_read(*engine, fd, content, memory, {0, at, kPart}, Route::Auto);
    }
  };
  read_parts();
  EXPECT_EQ(figures().bytes, 0u) << "the last requests of the first read are not a second one";
  read_parts();
  EXPECT_EQ(figures().filled_bytes, content.size());
  // In one piece, or sharing it would mean to copy it once more.
  ASSERT_TRUE(engine->share({fd.get()}, gpu()));
  EXPECT_EQ(figures().filled_bytes, content.size());
}

TEST_F(HbmTest, SmallReadsAndSegmentsAreServed) {
  const std::string content = pattern(kSize, 2);
  const UniqueFd fd = copied("f", content);
  Target memory(&gpu(), kMiB);
  EXPECT_EQ(expect_read(*engine, fd, content, memory, {7, 12'345, 4096}, Route::Auto).route,
            Route::Hbm);
  EXPECT_EQ(expect_read(*engine, fd, content, memory, {0, kSize - 10, 4096}, Route::Auto).route,
            Route::Hbm);
  std::vector<Segment> segments;
  std::string expected(kMiB, Target::kUntouched);
  memory.fill(expected);
  for (std::uint64_t i = 0; i < 500; ++i) {
    segments.push_back({i * 1024, (i * 7919) % (kSize - 1024), 1000});
    expected.replace(i * 1024, 1000, content, segments.back().file_offset, 1000);
  }
  const auto went = engine->read({fd.get()}, *memory, segments);
  ASSERT_TRUE(went);
  EXPECT_EQ(went->route, Route::Hbm);
  EXPECT_TRUE(memory.bytes() == expected);
  EXPECT_EQ(expect_read(*engine, fd, content, memory, {0, 0, kMiB}, Route::Hbm).why, Why::Asked);
}

TEST_F(HbmTest, RecordsAreGathered) {
  const std::string content = pattern(kSize, 3);
  const UniqueFd fd = copied("f", content);
  Target memory(&gpu(), kMiB);
  std::vector<std::uint64_t> index(1000);
  for (std::size_t i = 0; i < index.size(); ++i) index[i] = (i * 7919) % (kSize / 512 - 1);
  const RecordIndex numbers{.host = index.data(), .device = 0, .count = index.size()};
  const auto went = engine->gather({fd.get()}, *memory, 0, {512, 100}, numbers);
  ASSERT_TRUE(went);
  EXPECT_EQ(went->route, Route::Hbm);
  const std::string bytes = memory.bytes();
  for (std::size_t i = 0; i < index.size(); ++i) {
    ASSERT_EQ(bytes.compare(i * 512, 512, content, 100 + index[i] * 512, 512), 0) << i;
  }
  index[17] = kSize;
  std::optional<BadIndex> bad;
  EXPECT_TRUE(
      failed_with(engine->gather({fd.get()}, *memory, 0, {512, 100}, numbers, &bad), ERANGE));
  ASSERT_TRUE(bad);
  EXPECT_EQ(bad->position, 17u);
}

TEST_F(HbmTest, NoChangeIsMissed) {
  std::string content = pattern(kSize, 4);
  UniqueFd fd = copied("f", content);
  // A write.
  content.replace(kMiB, 1000, pattern(1000, 5));
  change("f", content.substr(kMiB, 1000), kMiB);
  EXPECT_NE(read_all(fd, content).route, Route::Hbm);
  EXPECT_EQ(figures().bytes, 0u) << "the old copy is gone";
  wait_until_registrable(fd);
  read_all(fd, content);
  EXPECT_EQ(read_all(fd, content).route, Route::Hbm);
  // A truncation.
  ASSERT_EQ(::truncate((dir / "f").c_str(), 3 * kMiB), 0);
  content.resize(3 * kMiB);
  EXPECT_NE(read_all(fd, content).route, Route::Hbm);
  wait_until_registrable(fd);
  read_all(fd, content);
  EXPECT_EQ(read_all(fd, content).route, Route::Hbm);
  // A store to a mapping.
  {
    const UniqueFd writer(::open((dir / "f").c_str(), O_RDWR | O_CLOEXEC));
    auto* bytes = static_cast<char*>(
        ::mmap(nullptr, content.size(), PROT_READ | PROT_WRITE, MAP_SHARED, writer.get(), 0));
    ASSERT_NE(bytes, MAP_FAILED);
    bytes[2 * kMiB] = content[2 * kMiB] = '!';
    EXPECT_NE(read_all(fd, content).route, Route::Hbm);
    ::munmap(bytes, content.size());
  }
  // A file with the same name.
  wait_until_registrable(fd);
  read_all(fd, content);
  EXPECT_EQ(read_all(fd, content).route, Route::Hbm);
  const std::string other = pattern(kSize, 6);
  const UniqueFd next = quiet_file("g", other);
  ASSERT_EQ(::rename((dir / "g").c_str(), (dir / "f").c_str()), 0);
  EXPECT_NE(read_all(next, other).route, Route::Hbm);
  read_all(fd, content);  // the old one still has its own bytes
  // A file that the mover has taken away.
  engine->forget({fd.get()});
  EXPECT_NE(read_all(fd, content).route, Route::Hbm);
}

TEST_F(HbmTest, MappedForWritingIsNotCopied) {
  std::string content = pattern(kSize, 7);
  UniqueFd fd = quiet_file("f", content);
  UniqueFd writer(::open((dir / "f").c_str(), O_RDWR | O_CLOEXEC));
  auto* bytes = static_cast<char*>(
      ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, writer.get(), 0));
  ASSERT_NE(bytes, MAP_FAILED);
  writer.reset();
  bytes[0] = content[0] = '1';  // the page is dirty from now on
  wait_until_registrable(fd);
  for (int i = 0; i < 4; ++i) {
    bytes[0] = content[0] = static_cast<char>('2' + i);  // changes no time
    EXPECT_NE(read_all(fd, content).why, Why::FillingHbm);
  }
  ::munmap(bytes, kSize);
  EXPECT_EQ(read_all(fd, content).why, Why::FillingHbm);
  EXPECT_EQ(read_all(fd, content).route, Route::Hbm);
}

TEST_F(HbmTest, RecentlyChangedIsNotCopied) {
  Engine::Settings slow = settings();
  slow.mapped_after = std::chrono::hours(1);
  start(slow);
  const std::string content = pattern(kSize, 8);
  const UniqueFd fd = quiet_file("f", content);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(read_all(fd, content).route, Route::Staged);
  EXPECT_EQ(figures().bytes, 0u);
  EXPECT_TRUE(failed_with(engine->fill_hbm({fd.get()}, gpu(), true), EAGAIN));
}

TEST_F(HbmTest, TheMoreValuableFileStays) {
  start(settings(8 * kMiB));
  const std::string content = pattern(kSize, 9), other = pattern(kSize, 10);
  const UniqueFd fd = copied("f", content);
  const UniqueFd second = quiet_file("g", other);
  for (int i = 0; i < 4; ++i) {  // in turn, so they are worth the same
    EXPECT_NE(read_all(second, other).route, Route::Hbm) << i;
    EXPECT_EQ(read_all(fd, content).route, Route::Hbm) << i;
  }
  for (int i = 0; i < 20 && read_all(second, other).route != Route::Hbm; ++i) {
  }
  EXPECT_EQ(read_all(second, other).route, Route::Hbm);
  EXPECT_NE(read_all(fd, content).route, Route::Hbm);
  EXPECT_EQ(figures().evictions, 1u);
  EXPECT_LE(figures().bytes, 8 * kMiB);
}

TEST_F(HbmTest, FileToBeKeptStays) {
  start(settings(8 * kMiB));
  const std::string content = pattern(kSize, 11), other = pattern(kSize, 12);
  const UniqueFd fd = quiet_file("f", content), second = quiet_file("g", other);
  ASSERT_TRUE(engine->fill_hbm({fd.get()}, gpu(), true));
  EXPECT_EQ(read_all(fd, content).route, Route::Hbm) << "at the first read";
  EXPECT_EQ(figures().kept, 1u);
  for (int i = 0; i < 20; ++i) EXPECT_NE(read_all(second, other).route, Route::Hbm);
  EXPECT_TRUE(failed_with(engine->fill_hbm({second.get()}, gpu(), false), ENOSPC));
  struct stat stat {};
  ASSERT_EQ(::fstat(fd.get(), &stat), 0);
  engine->hbm().unkeep(FileVersion::of(stat).id);
  EXPECT_TRUE(engine->fill_hbm({second.get()}, gpu(), false));
  EXPECT_EQ(read_all(second, other).route, Route::Hbm);
}

TEST_F(HbmTest, RangesOfLargeFilesAreCopied) {
  start(settings(80 * kMiB));
  // Sparse, because it is larger than the tier.
  dir.make_file("f", "");
  ASSERT_EQ(::truncate((dir / "f").c_str(), 200 * kMiB), 0);
  const std::string content = pattern(3 * kMiB, 13);
  change("f", content, 100 * kMiB);
  const UniqueFd fd(::open((dir / "f").c_str(), O_RDONLY | O_CLOEXEC));
  wait_until_registrable(fd);
  Target memory(&gpu(), 64 * kMiB);
  const auto read = [&] {
    return engine->read({fd.get()}, *memory, one({0, 64 * kMiB, 64 * kMiB}));
  };
  EXPECT_EQ(read()->route, Route::Staged);
  EXPECT_EQ(read()->why, Why::FillingHbm);
  EXPECT_EQ(read()->route, Route::Hbm);
  EXPECT_EQ(figures().bytes, 64 * kMiB);
  EXPECT_TRUE(memory.bytes().substr(36 * kMiB, 3 * kMiB) == content);
  const auto beyond = engine->read({fd.get()}, *memory, one({0, 120 * kMiB, 16 * kMiB}));
  EXPECT_NE(beyond->route, Route::Hbm) << "only a part of it is there";
}

TEST_F(HbmTest, MemoryComesBackWhenTheReserveIsUndercut) {
  const std::string content = pattern(kSize, 14);
  const UniqueFd fd = copied("f", content);
  std::size_t free = 0, total = 0;
  ASSERT_TRUE(gpu().enter());
  const CudaApi& api = gpu().api();
  ASSERT_EQ(api.cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  engine->hbm().set_limits({.size = {.bytes = 64 * kMiB}, .reserve = {.bytes = free - 32 * kMiB}});
  EXPECT_GT(figures().bytes, 0u) << "enough is free";
  CUdeviceptr other = 0;
  ASSERT_EQ(api.cuMemAlloc(&other, 64 * kMiB), CUDA_SUCCESS);
  EXPECT_TRUE(test::eventually([&] { return figures().bytes == 0; }));
  EXPECT_NE(read_all(fd, content).route, Route::Hbm);
  EXPECT_NE(read_all(fd, content).why, Why::FillingHbm) << "there is no room";
  EXPECT_FALSE(engine->fill_hbm({fd.get()}, gpu(), true));
  api.cuMemFree(other);
}

TEST_F(HbmTest, ReleaseEmptiesIt) {
  const std::string content = pattern(kSize, 15);
  const UniqueFd fd = copied("f", content);
  EXPECT_EQ(engine->hbm().release(), 6 * kMiB);
  EXPECT_EQ(figures().bytes, 0u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(read_all(fd, content).route, Route::Staged);
  EXPECT_EQ(figures().bytes, 0u) << "and stays empty for a while";
}

TEST_F(HbmTest, LowerLimitsHoldAtOnce) {
  const std::string content = pattern(kSize, 16);
  const UniqueFd fd = copied("f", content);
  engine->hbm().set_limits({.size = {.bytes = 2 * kMiB}});
  EXPECT_EQ(figures().bytes, 0u);
  engine->hbm().set_limits({});
  EXPECT_FALSE(engine->hbm().is_on());
  EXPECT_EQ(read_all(fd, content).route, Route::Staged);
  engine->hbm().set_limits({.size = {.percent = 50}});
  EXPECT_EQ(read_all(fd, content).why, Why::FillingHbm);
}

TEST_F(HbmTest, ReaderIsServedWhenTheGpuHasNoMemory) {
  const std::string content = pattern(kSize, 17);
  const UniqueFd fd = quiet_file("f", content);
  read_all(fd, content);
  fail("cuMemCreate:1+:2");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(read_all(fd, content).route, Route::Staged);
  EXPECT_EQ(figures().bytes, 0u);
  EXPECT_FALSE(engine->fill_hbm({fd.get()}, gpu(), true));
  fail("");
  EXPECT_TRUE(test::eventually([&] { return read_all(fd, content).route == Route::Hbm; }));
}

TEST_F(HbmTest, EachGpuHasItsOwnCopy) {
  const std::string content = pattern(kSize, 18);
  const UniqueFd fd = copied("f", content);
  EXPECT_NE(read_all(fd, content, 1).route, Route::Hbm);
  EXPECT_EQ(read_all(fd, content, 1).why, Why::FillingHbm);
  EXPECT_EQ(read_all(fd, content, 1).route, Route::Hbm);
  EXPECT_EQ(engine->hbm().figures().size(), 2u);
  Target host(nullptr, kSize);
  EXPECT_EQ(expect_read(*engine, fd, content, host, {0, 0, kSize}, Route::Auto).route, Route::Host);
}

TEST_F(HbmTest, OffUnlessGiven) {
  start(test_settings());
  const std::string content = pattern(kSize, 19);
  const UniqueFd fd = quiet_file("f", content);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(read_all(fd, content).route, Route::Staged);
  Target memory(&gpu(), kSize);
  EXPECT_TRUE(
      failed_with(engine->read({fd.get()}, *memory, one({0, 0, kSize}), Route::Hbm), EOPNOTSUPP));
  EXPECT_TRUE(failed_with(engine->fill_hbm({fd.get()}, gpu(), true), EOPNOTSUPP));
}

TEST_F(HbmTest, ManyReadersFillItOnce) {
  const std::string content = pattern(kSize, 20);
  const UniqueFd fd = quiet_file("f", content);
  read_all(fd, content);
  std::vector<std::jthread> readers;
  for (int i = 0; i < 8; ++i) {
    readers.emplace_back([&] {
      for (int round = 0; round < 3; ++round) read_all(fd, content);
    });
  }
  readers.clear();
  EXPECT_EQ(figures().filled_bytes, kSize);
}

TEST_F(HbmTest, FaultsNeverGiveWrongBytes) {
  const std::string content = pattern(kSize, 21);
  const UniqueFd fd = quiet_file("f", content);
  read_all(fd, content);
  for (const char* call : {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess",
                           "cuMemGetInfo", "cuMemcpyDtoDAsync"}) {
    engine->forget({fd.get()});
    fail(std::string(call) + ":1:999");
    for (int i = 0; i < 4; ++i) read_all(fd, content);
    fail("");
  }
}

// Files are read, changed and forgotten in any order. A reader must get the bytes of a state that
// the file had between the beginning and the end of its request. Each state fills the file with one
// number, and the numbers grow.
TEST_F(HbmTest, RandomInterleavingIsNeverStale) {
  constexpr int kFiles = 3;
  Engine::Settings quick = settings(2 * kMiB * 2);  // room for two
  quick.mapped_after = std::chrono::milliseconds(5);
  start(quick);
  struct File {
    UniqueFd fd;
    Mutex mutex;
    std::atomic<std::uint32_t> last{0};  // the newest state that is complete
  };
  constexpr std::uint64_t kBytes = 1 * kMiB + 4096;
  std::array<File, kFiles> files;
  const auto content = [](std::uint32_t state) {
    std::string bytes(kBytes, 0);
    for (std::size_t i = 0; i < bytes.size(); i += 4) std::memcpy(bytes.data() + i, &state, 4);
    return bytes;
  };
  for (int i = 0; i < kFiles; ++i) {
    files[i].fd = quiet_file("f" + std::to_string(i), content(0));
  }
  std::atomic<std::uint64_t> from_hbm{0}, changes{0};
  const std::uint64_t seed = test::test_seed();
  const auto work = [&](unsigned thread) {
    std::mt19937_64 random(seed + thread);
    Target memory(&gpu(), kBytes);
    for (int round = 0; round < 300; ++round) {
      const auto which = random() % kFiles;
      File& file = files[which];
      const auto what = random() % 40;
      if (what == 0) {
        engine->forget({file.fd.get()});
      } else if (what == 1) {
        const MutexLock lock(file.mutex);  // writers one by one; readers at any time
        const std::uint32_t next = file.last + 1;
        change("f" + std::to_string(which), content(next), 0);
        file.last = next;
        ++changes;
      } else {
        const std::uint32_t least = file.last;
        const bool small = what < 8;
        const auto went =
            engine->read({file.fd.get()}, *memory, one({0, 0, small ? 4096 : kBytes}), Route::Auto);
        ASSERT_TRUE(went);
        const std::uint32_t most = file.last + 1;
        from_hbm += went->route == Route::Hbm ? 1 : 0;
        const std::string bytes = memory.bytes();
        for (std::size_t i = 0; i < went->bytes; i += 4096) {
          std::uint32_t state = 0;
          std::memcpy(&state, bytes.data() + i, 4);
          ASSERT_GE(state, least) << name_of(went->route) << " at " << i;
          ASSERT_LE(state, most);
        }
      }
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back([&work, i] { work(i); });
  threads.clear();
  EXPECT_GT(from_hbm, 0u);
  EXPECT_GT(changes, 0u);
}

}  // namespace
}  // namespace sluice
