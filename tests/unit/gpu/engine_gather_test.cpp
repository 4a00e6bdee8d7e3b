// SPDX-License-Identifier: BSD-2-Clause
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
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

using Index = std::vector<std::uint64_t>;

// An index in GPU memory.
class GpuIndex {
 public:
  GpuIndex(Device& device, const Index& index) : device_(device), count_(index.size()) {
    EXPECT_TRUE(device_.enter());
    EXPECT_EQ(device_.api().cuMemAlloc(&address_, count_ * 8), CUDA_SUCCESS);
    EXPECT_EQ(device_.api().cuMemcpyHtoD(address_, index.data(), count_ * 8), CUDA_SUCCESS);
    // From pageable memory, the call may return before the bytes have arrived.
    EXPECT_EQ(device_.api().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  }
  ~GpuIndex() {
    if (device_.enter()) device_.api().cuMemFree(address_);
  }
  GpuIndex(const GpuIndex&) = delete;
  GpuIndex& operator=(const GpuIndex&) = delete;
  operator RecordIndex() const { return {nullptr, address_, count_}; }

 private:
  Device& device_;
  const std::size_t count_;
  CUdeviceptr address_ = 0;
};

RecordIndex on_host(const Index& index) { return {index.data(), 0, index.size()}; }

class EngineGatherTest : public EngineTest {
 protected:
  static constexpr std::uint64_t kSize = 3 * kMiB + 1234;

  // Unsorted numbers with duplicates, neighbours and the last record.
  static Index some(std::size_t count, std::uint64_t records) {
    std::mt19937_64 random(count);
    Index index(count);
    for (std::size_t i = 0; i < count; ++i) {
      index[i] = i % 5 == 4 && index[i - 1] + 1 < records ? index[i - 1] + 1 : random() % records;
    }
    index.back() = records - 1;
    index.front() = index[count / 2];
    return index;
  }
  // Registers nothing, because no file is old enough.
  void start_unregistered() {
    Engine::Settings settings = test_settings();
    settings.mapped_after = std::chrono::hours(1);
    start(settings);
  }
  static std::uint64_t records_in(const std::string& content, const Engine::Records& records) {
    return (content.size() - records.offset) / records.size;
  }

  // EXPECTs that the records arrive at their offsets, and that nothing around them changes.
  Transfer expect_gather(const UniqueFd& fd, const std::string& content, Device* device,
                         const Engine::Records& records, const Index& index, bool by_gpu = false) {
    constexpr std::uint64_t kBefore = 13, kAfter = 77;
    Target target(device, kBefore + index.size() * records.size + kAfter);
    std::string expected = target.bytes();
    for (std::size_t i = 0; i < index.size(); ++i) {
      content.copy(expected.data() + kBefore + i * records.size, records.size,
                   records.offset + index[i] * records.size);
    }
    std::unique_ptr<GpuIndex> there;
    if (by_gpu) there = std::make_unique<GpuIndex>(*device, index);
    const auto went = engine->gather({fd.get()}, *target, kBefore, records,
                                     there ? RecordIndex(*there) : on_host(index));
    if (!went) {
      ADD_FAILURE() << went.error().operation << ": " << std::strerror(went.error().code);
      return {};
    }
    EXPECT_EQ(went->bytes, index.size() * records.size);
    EXPECT_TRUE(target.bytes() == expected) << "records of " << records.size;
    return *went;
  }

  const std::string content_ = pattern(kSize, 3);
};

struct Shape {
  Engine::Records records;
  std::size_t count;
};

// Odd sizes and offsets, more records than fit into a slot, and fewer than need a thread.
const Shape kShapes[] = {{{512, 0}, 20'000}, {{4096, 0}, 2'000}, {{3, 1}, 30'000},
                         {{1, 0}, 700},      {{4097, 5}, 700},   {{1000, 4096}, 3'000},
                         {{65536, 7}, 50},   {{100'001, 3}, 40}, {{16, 16}, 5'000},
                         {{4096, 0}, 100},   {{kMiB, 100}, 5},   {{512, 9}, 1}};

TEST_F(EngineGatherTest, CachedRecordsAreReadInAnyOrder) {
  start_unregistered();
  const UniqueFd fd = make_file("f", content_);
  for (const auto& [records, wanted] : kShapes) {
    const Index index = some(wanted, records_in(content_, records));
    EXPECT_EQ(expect_gather(fd, content_, nullptr, records, index).route, Route::Host);
    EXPECT_EQ(expect_gather(fd, content_, &gpu(), records, index).route, Route::Staged);
    EXPECT_EQ(expect_gather(fd, content_, &gpu(), records, index, true).route, Route::Staged);
  }
}

TEST_F(EngineGatherTest, UnchangedFileIsRegisteredAndReadByTheGpu) {
  const UniqueFd fd = make_file("f", content_);
  wait_until_registrable(fd);
  for (const auto& [records, wanted] : kShapes) {
    if (records.size > 65536) continue;
    const Index index = some(wanted, records_in(content_, records));
    expect_gather(fd, content_, &gpu(), {4096, 0}, some(700, records_in(content_, {4096, 0})));
    const auto launches = count(FakeCount::Launches), copies = count(FakeCount::Copies);
    const auto went = expect_gather(fd, content_, &gpu(), records, index);
    EXPECT_EQ(went.route, Route::Mapped);
    EXPECT_EQ(went.why, Why::Registered);
    EXPECT_GT(count(FakeCount::Launches), launches);
    EXPECT_LE(count(FakeCount::Copies), copies + 3) << "copies of the test itself";
    EXPECT_EQ(expect_gather(fd, content_, &gpu(), records, index, true).route, Route::Mapped);
  }
}

TEST_F(EngineGatherTest, UncachedRecordsAreReadInFileOrder) {
  start_unregistered();
  const UniqueFd fd = make_file("f", content_);
  for (const auto& [records, wanted] : kShapes) {
    const Index index = some(wanted, records_in(content_, records));
    for (Device* device : {static_cast<Device*>(nullptr), &gpu()}) {
      if (!drop_cache(fd)) GTEST_SKIP() << "the page cache can't be dropped here";
      const auto went = expect_gather(fd, content_, device, records, index);
      EXPECT_NE(went.route, Route::Mapped);
      if (device && wanted > 512 && records.size > 1) {
        EXPECT_EQ(went.why, Why::NotCached) << records.size;
      }
    }
  }
}

TEST_F(EngineGatherTest, UncachedRecordsNeedOneLaunchPerSlot) {
  start_unregistered();
  const UniqueFd fd = make_file("f", content_);
  if (!drop_cache(fd)) GTEST_SKIP() << "the page cache can't be dropped here";
  const auto launches = count(FakeCount::Launches);
  expect_gather(fd, content_, &gpu(), {512, 0}, some(5'000, records_in(content_, {512, 0})));
  EXPECT_GT(count(FakeCount::Launches), launches);
  EXPECT_LT(count(FakeCount::Launches), launches + 50);
}

TEST_F(EngineGatherTest, ResultIsTheSameWithoutKernels) {
  const UniqueFd fd = make_file("f", content_);
  wait_until_registrable(fd);
  for (const char* fault :
       {"cuModuleLoadData:1+:801", "cuModuleGetFunction:2+:500", "cuDeviceGetAttribute:1+:1"}) {
    start();
    log::get().set_level(spdlog::level::off);
    fail(fault);
    for (const auto& [records, wanted] : kShapes) {
      const Index index = some(wanted, records_in(content_, records));
      EXPECT_NE(expect_gather(fd, content_, &gpu(), records, index).route, Route::Mapped);
      expect_gather(fd, content_, &gpu(), records, index, true);
      if (drop_cache(fd)) expect_gather(fd, content_, &gpu(), records, index);
    }
    fail("");
    log::get().set_level(spdlog::level::warn);
  }
}

TEST_F(EngineGatherTest, ResultIsTheSameWithoutPinnedMemory) {
  const UniqueFd fd = make_file("f", content_);
  log::get().set_level(spdlog::level::off);
  fail("cuMemHostRegister:1+:2");
  for (const auto& [records, wanted] : kShapes) {
    const Index index = some(std::min<std::size_t>(wanted, 600), records_in(content_, records));
    EXPECT_EQ(expect_gather(fd, content_, &gpu(), records, index).route, Route::Pageable);
  }
  log::get().set_level(spdlog::level::warn);
}

TEST_F(EngineGatherTest, ErrorNamesTheFirstBadIndexAndOtherMemoryIsUntouched) {
  const UniqueFd fd = make_file("f", content_);
  wait_until_registrable(fd);
  constexpr Engine::Records kRecords{512, 100};
  const std::uint64_t records = records_in(content_, kRecords);
  // First with the staged route, then from registered page cache.
  for (const bool mapped : {false, true}) {
    if (mapped) expect_gather(fd, content_, &gpu(), kRecords, some(9'000, records));
    for (const bool by_gpu : {false, true}) {
      for (Device* device : {static_cast<Device*>(nullptr), &gpu()}) {
        if (!device && by_gpu) continue;
        Index index = some(2'000, records);
        index[1500] = ~std::uint64_t{0};
        index[1234] = records;
        Target target(device, 2'000 * 512);
        std::optional<BadIndex> bad;
        std::unique_ptr<GpuIndex> there;
        if (by_gpu) there = std::make_unique<GpuIndex>(*device, index);
        const auto went = engine->gather({fd.get()}, *target, 0, kRecords,
                                         there ? RecordIndex(*there) : on_host(index), &bad);
        EXPECT_TRUE(failed_with(went, ERANGE));
        ASSERT_TRUE(bad);
        EXPECT_EQ(bad->position, 1234u);
        EXPECT_EQ(bad->value, records);
        EXPECT_EQ(bad->records, records);
        EXPECT_EQ(target.bytes().substr(1234 * 512, 512), std::string(512, Target::kUntouched));
      }
    }
  }
}

TEST_F(EngineGatherTest, ImpossibleRequestsAreRefused) {
  const UniqueFd fd = make_file("f", content_);
  const Index index(10, 0);
  for (Device* device : {static_cast<Device*>(nullptr), &gpu()}) {
    Target target(device, 1000);
    const auto gather = [&](std::uint64_t at, Engine::Records records, const RecordIndex& which) {
      const auto went = engine->gather({fd.get()}, *target, at, records, which);
      return went ? 0 : went.error().code;
    };
    EXPECT_EQ(gather(0, {100, 0}, on_host(index)), 0);
    EXPECT_EQ(gather(1, {100, 0}, on_host(index)), ERANGE);
    EXPECT_EQ(gather(2000, {1, 0}, on_host(index)), ERANGE);
    EXPECT_EQ(gather(0, {~std::uint64_t{0}, 0}, on_host(index)), ERANGE);
    EXPECT_EQ(gather(0, {0, 0}, on_host(index)), EINVAL);
    EXPECT_EQ(gather(0, {100, kSize - 99}, on_host(index)), ERANGE) << "no complete record";
    EXPECT_EQ(gather(0, {100, ~std::uint64_t{0}}, on_host(index)), ERANGE);
    EXPECT_EQ(gather(1000, {100, 0}, {}), 0) << "none";
    EXPECT_TRUE(failed_with(engine->gather({-1}, *target, 0, {100, 0}, on_host(index)), EBADF));
  }
}

TEST_F(EngineGatherTest, ChangedFileIsReadAgain) {
  std::string content = content_;
  const UniqueFd fd = make_file("f", content);
  wait_until_registrable(fd);
  const Index index = some(4'000, records_in(content, {512, 0}));
  EXPECT_EQ(expect_gather(fd, content, &gpu(), {512, 0}, index).route, Route::Mapped);
  const std::string other = pattern(kSize, 4);
  ASSERT_EQ(::ftruncate(fd.get(), 0), 0);
  ASSERT_EQ(::pwrite(fd.get(), other.data(), kSize, 0), static_cast<ssize_t>(kSize));
  expect_gather(fd, other, &gpu(), {512, 0}, index);
  wait_until_registrable(fd);
  EXPECT_EQ(expect_gather(fd, other, &gpu(), {512, 0}, index).route, Route::Mapped);
}

TEST_F(EngineGatherTest, TruncationDuringAReadIsNotFatal) {
  Engine::Settings settings = test_settings();
  settings.mapped_after = std::chrono::milliseconds(0);
  start(settings);
  const UniqueFd fd = make_file("f", content_);
  std::atomic<bool> stop{false};
  std::thread shrinker([&] {
    while (!stop) {
      ::ftruncate(fd.get(), 4096);
      ::pwrite(fd.get(), content_.data() + 4096, kSize - 4096, 4096);
      std::this_thread::yield();
    }
  });
  const Index index = some(5'000, records_in(content_, {512, 0}));
  Target memory(&gpu(), index.size() * 512), host(nullptr, index.size() * 512);
  for (int i = 0; i < test::samples(30, 500); ++i) {
    for (Target* target : {&memory, &host}) {
      const auto went = engine->gather({fd.get()}, **target, 0, {512, 0}, on_host(index));
      if (!went) {
        EXPECT_EQ(went.error().code, ERANGE) << went.error().operation;
      }
    }
  }
  stop = true;
  shrinker.join();
  expect_gather(fd, content_, &gpu(), {512, 0}, index);
}

// Fails every driver call of a gather the first time, the second time, and so on.
TEST_F(EngineGatherTest, FailedDriverCallFailsAtMostThatRequest) {
  log::get().set_level(spdlog::level::off);
  const UniqueFd fd = make_file("f", content_);
  wait_until_registrable(fd);
  constexpr Engine::Records kRecords{512, 0};
  const Index index = some(3'000, records_in(content_, kRecords));
  std::string expected;
  for (const std::uint64_t number : index) expected += content_.substr(number * 512, 512);
  for (const char* call :
       {"cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel", "cuMemHostRegister",
        "cuStreamCreate", "cuEventCreate", "cuMemcpyHtoDAsync", "cuEventRecord",
        "cuEventSynchronize", "cuStreamSynchronize", "cuCtxSetCurrent"}) {
    for (int nth = 1; nth <= 6; ++nth) {
      SCOPED_TRACE(std::string(call) + " fails, number " + std::to_string(nth));
      start();
      Target target(&gpu(), index.size() * 512);
      fail(std::string(call) + ":" + std::to_string(nth) + ":2");
      for (int again = 0; again < 2; ++again) {
        const auto went = engine->gather({fd.get()}, *target, 0, kRecords, on_host(index));
        if (went) {
          EXPECT_TRUE(target.bytes() == expected);
        }
      }
      fail("");
      expect_gather(fd, content_, &gpu(), kRecords, index);
      if (HasFailure()) return;
    }
  }
  log::get().set_level(spdlog::level::warn);
}

class EngineScatterTest : public EngineGatherTest {
 protected:
  // EXPECTs that the file has the records, the last of duplicates, and is unchanged elsewhere.
  Transfer expect_scatter(const UniqueFd& fd, std::string& content, Device* device,
                          const Engine::Records& records, const Index& index, bool by_gpu = false) {
    constexpr std::uint64_t kBefore = 7;
    const std::string news = pattern(kBefore + index.size() * records.size, ++seed_);
    Target source(device, news.size());
    source.fill(news);
    for (std::size_t i = 0; i < index.size(); ++i) {
      content.replace(records.offset + index[i] * records.size, records.size, news,
                      kBefore + i * records.size, records.size);
    }
    std::unique_ptr<GpuIndex> there;
    if (by_gpu) there = std::make_unique<GpuIndex>(*device, index);
    const auto went = engine->scatter({fd.get()}, *source, kBefore, records,
                                      there ? RecordIndex(*there) : on_host(index));
    if (!went) {
      ADD_FAILURE() << went.error().operation << ": " << std::strerror(went.error().code);
      return {};
    }
    EXPECT_EQ(went->bytes, index.size() * records.size);
    EXPECT_TRUE(test::read_file(dir / "f") == content) << "records of " << records.size;
    return *went;
  }

  std::uint64_t seed_ = 100;
};

TEST_F(EngineScatterTest, RecordsAreWrittenAndTheLastDuplicateStays) {
  std::string content = content_;
  const UniqueFd fd = make_file("f", content);
  for (const auto& [records, wanted] : kShapes) {
    const Index index = some(wanted, records_in(content, records));
    EXPECT_EQ(expect_scatter(fd, content, nullptr, records, index).route, Route::Host);
    const auto went = expect_scatter(fd, content, &gpu(), records, index);
    EXPECT_EQ(went.route, Route::Staged);
    EXPECT_EQ(went.why, Why::Writing);
    expect_scatter(fd, content, &gpu(), records, index, true);
  }
}

TEST_F(EngineScatterTest, ResultIsTheSameWithoutKernelsOrPinnedMemory) {
  std::string content = content_;
  const UniqueFd fd = make_file("f", content);
  log::get().set_level(spdlog::level::off);
  for (const char* fault : {"cuModuleLoadData:1+:801", "cuMemHostRegister:1+:2"}) {
    start();
    fail(fault);
    const Index index = some(500, records_in(content, {4097, 5}));
    expect_scatter(fd, content, &gpu(), {4097, 5}, index);
    fail("");
  }
  log::get().set_level(spdlog::level::warn);
}

TEST_F(EngineScatterTest, BadIndexIsRefusedBeforeAnythingIsWritten) {
  const UniqueFd fd = make_file("f", content_);
  Index index = some(500, records_in(content_, {512, 0}));
  index[400] = records_in(content_, {512, 0});
  for (Device* device : {static_cast<Device*>(nullptr), &gpu()}) {
    Target source(device, 500 * 512);
    std::optional<BadIndex> bad;
    EXPECT_TRUE(failed_with(engine->scatter({fd.get()}, *source, 0, {512, 0}, on_host(index), &bad),
                            ERANGE));
    ASSERT_TRUE(bad);
    EXPECT_EQ(bad->position, 400u);
    EXPECT_TRUE(test::read_file(dir / "f") == content_);
  }
}

TEST_F(EngineScatterTest, WriteFunctionOfTheFileIsUsedAndItsErrorReturned) {
  const UniqueFd fd = make_file("f", content_);
  const Index index = some(500, records_in(content_, {512, 0}));
  for (Device* device : {static_cast<Device*>(nullptr), &gpu()}) {
    Target source(device, 500 * 512);
    int calls = 0;
    const EngineFile file{fd.get(), [&](const std::byte*, std::size_t, std::uint64_t) {
                            return ++calls < 3 ? Result<void>() : Error(ENOSPC, "write");
                          }};
    EXPECT_TRUE(failed_with(engine->scatter(file, *source, 0, {512, 0}, on_host(index)), ENOSPC));
    EXPECT_EQ(calls, 3);
  }
}

}  // namespace
}  // namespace sluice
