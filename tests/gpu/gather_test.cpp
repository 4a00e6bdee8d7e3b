// SPDX-License-Identifier: BSD-2-Clause
// The kernels on a real GPU: records by number and batches of segments, with the engine in this
// process. Files are created in SLUICE_TEST_DIR, which may be on a mount. Rates are printed, not
// checked.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/unique_fd.hpp"
#include "gpu/engine.hpp"
#include "tests/support/files.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice::test {
namespace {

using Clock = std::chrono::steady_clock;
using Index = std::vector<std::uint64_t>;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kFile = 48 * kMiB + 4097;  // no multiple of anything

struct Shape {
  Engine::Records records;
  std::size_t count;
};
// Sizes that are multiples of 16, 8, 4, 2 and 1, at aligned and unaligned offsets; one record and
// many.
const Shape kShapes[] = {{{512, 0}, 100'000}, {{4096, 0}, 20'000}, {{4096, 1}, 5'000},
                         {{3, 0}, 300'000},   {{1, 7}, 100'000},   {{8, 8}, 200'000},
                         {{12, 4}, 100'000},  {{1000, 16}, 9'000}, {{4097, 5}, 5'000},
                         {{65536, 0}, 900},   {{65534, 2}, 900},   {{100'001, 3}, 300},
                         {{16, 0}, 500'000},  {{512, 0}, 1},       {{4096, 0}, 33}};

class GpuMemory {
 public:
  GpuMemory(Device& device, std::size_t size) : device_(device), size_(size) {
    EXPECT_TRUE(device_.enter());
    EXPECT_EQ(api().cuMemAlloc(&address_, size), CUDA_SUCCESS);
    EXPECT_EQ(api().cuMemsetD8Async(address_, 0x5a, size, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(api().cuCtxSynchronize(), CUDA_SUCCESS);
    memory_ = borrow_device(device, address_, size);
  }
  GpuMemory(Device& device, const Index& index) : GpuMemory(device, index.size() * 8) {
    put({reinterpret_cast<const char*>(index.data()), index.size() * 8});
  }
  ~GpuMemory() {
    if (device_.enter()) api().cuMemFree(address_);
  }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  Memory& operator*() { return *memory_; }
  RecordIndex as_index() const { return {nullptr, address_, size_ / 8}; }
  void put(std::string_view bytes) {
    EXPECT_TRUE(device_.enter());
    EXPECT_EQ(api().cuMemcpyHtoD(address_, bytes.data(), bytes.size()), CUDA_SUCCESS);
    // From pageable memory, the call may return before the bytes have arrived.
    EXPECT_EQ(api().cuCtxSynchronize(), CUDA_SUCCESS);
  }
  std::string bytes() const {
    std::string bytes(size_, '\0');
    EXPECT_TRUE(device_.enter());
    EXPECT_EQ(api().cuMemcpyDtoH(bytes.data(), address_, size_), CUDA_SUCCESS);
    return bytes;
  }

 private:
  const CudaApi& api() const { return device_.api(); }

  Device& device_;
  const std::size_t size_;
  CUdeviceptr address_ = 0;
  std::unique_ptr<Memory> memory_;
};

class RealGatherTest : public testing::Test {
 protected:
  void SetUp() override {
    const bool there = ::access("/proc/driver/nvidia/version", R_OK) == 0;
    if (!require("gpu", there, "no NVIDIA driver on this machine")) return;
    start(std::chrono::hours(1));
    ASSERT_FALSE(engine_->devices().all().empty()) << engine_->devices().why_none();
    ASSERT_TRUE(gpu().enter());
    ASSERT_NE(gpu().kernels(), nullptr) << "the PTX can't be loaded";
    content_ = pattern(kFile, 5);
    fd_ = make_file("data", content_);
  }

  // Page cache is registered for files that did not change for this time.
  void start(std::chrono::milliseconds mapped_after) {
    Engine::Settings settings;
    settings.mapped_after = mapped_after;
    engine_ = std::make_unique<Engine>(settings);
  }
  Device& gpu() { return *engine_->devices().all()[0]; }
  UniqueFd make_file(const std::string& name, const std::string& content) {
    write_file(dir_ / name, content);
    return UniqueFd(::open((dir_ / name).c_str(), O_RDWR | O_CLOEXEC));
  }
  static Index some(std::size_t count, std::uint64_t records) {
    std::mt19937_64 random(count);
    Index index(count);
    for (auto& number : index) number = random() % records;
    index.back() = records - 1;
    if (count > 2) index[1] = index[0] = index[2];
    return index;
  }
  static RecordIndex on_host(const Index& index) { return {index.data(), 0, index.size()}; }
  static std::uint64_t records_in(const Engine::Records& records) {
    return (kFile - records.offset) / records.size;
  }

  void expect_gather(const Shape& shape, bool by_gpu, Route route) {
    const auto& [records, count] = shape;
    SCOPED_TRACE(std::to_string(count) + " records of " + std::to_string(records.size) + " at " +
                 std::to_string(records.offset) + (by_gpu ? ", index on the GPU" : ""));
    const Index index = some(count, records_in(records));
    const std::uint64_t before = records.size % 16 == 0 ? 32 : 13;
    std::string expected(before + count * records.size + 99, 0x5a);
    for (std::size_t i = 0; i < count; ++i) {
      content_.copy(expected.data() + before + i * records.size, records.size,
                    records.offset + index[i] * records.size);
    }
    GpuMemory target(gpu(), expected.size()), there(gpu(), index);
    const auto went = engine_->gather({fd_.get()}, *target, before, records,
                                      by_gpu ? there.as_index() : on_host(index));
    ASSERT_TRUE(went) << went.error().operation;
    EXPECT_EQ(went->bytes, count * records.size);
    if (route != Route::Auto) {
      EXPECT_EQ(name_of(went->route), name_of(route));
    }
    EXPECT_TRUE(target.bytes() == expected);
  }

  TempDir dir_;
  std::unique_ptr<Engine> engine_;
  std::string content_;
  UniqueFd fd_;
};

TEST_F(RealGatherTest, EveryRecordIsRightThroughPinnedMemory) {
  for (const Shape& shape : kShapes) {
    expect_gather(shape, false, Route::Auto);
    expect_gather(shape, true, Route::Auto);
  }
}

TEST_F(RealGatherTest, EveryRecordIsRightFromRegisteredPageCache) {
  start(std::chrono::milliseconds(0));
  expect_gather({{4096, 0}, 20'000}, false, Route::Mapped);
  for (const Shape& shape : kShapes) {
    const Route route = shape.records.size <= 65536 ? Route::Mapped : Route::Auto;
    expect_gather(shape, false, route);
    expect_gather(shape, true, route);
  }
}

TEST_F(RealGatherTest, EveryRecordIsRightFromDisk) {
  for (const Shape& shape : kShapes) {
    ASSERT_EQ(::fsync(fd_.get()), 0);
    ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
    expect_gather(shape, false, Route::Auto);
  }
}

TEST_F(RealGatherTest, ErrorNamesTheBadIndexAndTheGpuKeepsWorking) {
  for (const auto after : {std::chrono::milliseconds(0), std::chrono::milliseconds(3'600'000)}) {
    start(after);
    constexpr Engine::Records kRecords{512, 0};
    Index index = some(50'000, records_in(kRecords));
    index[33'333] = records_in(kRecords);
    index[44'444] = ~std::uint64_t{0};
    GpuMemory target(gpu(), index.size() * 512), there(gpu(), index);
    for (const RecordIndex& which : {there.as_index(), on_host(index)}) {
      std::optional<BadIndex> bad;
      EXPECT_TRUE(
          failed_with(engine_->gather({fd_.get()}, *target, 0, kRecords, which, &bad), ERANGE));
      ASSERT_TRUE(bad);
      EXPECT_EQ(bad->position, 33'333u);
    }
    EXPECT_FALSE(gpu().is_lost());
    expect_gather({kRecords, 10'000}, true, Route::Auto);
  }
}

TEST_F(RealGatherTest, ScatterWritesRecords) {
  for (const Shape& shape : kShapes) {
    const auto& [records, count] = shape;
    SCOPED_TRACE(std::to_string(records.size));
    const Index index = some(count, records_in(records));
    const std::string news = pattern(count * records.size, count);
    for (std::size_t i = 0; i < count; ++i) {
      content_.replace(records.offset + index[i] * records.size, records.size, news,
                       i * records.size, records.size);
    }
    GpuMemory source(gpu(), news.size()), there(gpu(), index);
    source.put(news);
    const auto went = engine_->scatter({fd_.get()}, *source, 0, records, there.as_index());
    ASSERT_TRUE(went) << went.error().operation;
    EXPECT_TRUE(read_file(dir_ / "data") == content_);
  }
}

TEST_F(RealGatherTest, EachSegmentOfABatchArrivesAtItsOffset) {
  for (const bool mapped : {false, true}) {
    if (mapped) {
      start(std::chrono::milliseconds(0));
      expect_gather({{4096, 0}, 20'000}, false, Route::Mapped);
    }
    for (const std::uint64_t gap : {0, 1, 512}) {
      for (const auto& [count, most] : {std::pair{128, 4096},
                                        {500, 2000},
                                        {16, 65536},
                                        {9, 7},
                                        {5'000, 9'000},
                                        {300, 200'000}}) {
        SCOPED_TRACE(std::to_string(count) + " of up to " + std::to_string(most));
        std::mt19937_64 random(gap + static_cast<unsigned>(count));
        std::vector<Segment> segments;
        std::uint64_t at = 5;
        for (int i = 0; i < count; ++i) {
          const std::uint64_t length =
              most == 4096 ? 4096 : 1 + random() % static_cast<unsigned>(most);
          const std::uint64_t from = random() % (kFile - length);
          segments.push_back({at, most == 4096 ? from / 4096 * 4096 : from, length});
          at += length + gap;
        }
        GpuMemory target(gpu(), at + 77);
        std::string expected(at + 77, 0x5a);
        for (const auto& [to, from, length] : segments) {
          content_.copy(expected.data() + to, length, from);
        }
        const auto went = engine_->read({fd_.get()}, *target, segments);
        ASSERT_TRUE(went) << went.error().operation;
        EXPECT_TRUE(target.bytes() == expected) << name_of(went->route);
      }
    }
  }
}

// Prints records per second for each way of reading, with the file in the page cache.
TEST_F(RealGatherTest, PrintsItsRates) {
  constexpr std::uint64_t kLarge = 2048 * kMiB, kTarget = 1024 * kMiB;
  const UniqueFd fd = make_file("large", pattern(kLarge, 6));
  const auto seconds = [](const auto& work) {
    const auto begin = Clock::now();
    work();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  for (const bool mapped : {true, false}) {
    start(mapped ? std::chrono::milliseconds(0) : std::chrono::milliseconds(3'600'000));
    GpuMemory target(gpu(), kTarget);
    for (const std::uint64_t size : {512, 4096, 16384, 65536}) {
      const Index index = some(kTarget / size, kLarge / size);
      const GpuMemory there(gpu(), index);
      for (const bool by_gpu : {false, true}) {
        if (!mapped && by_gpu) continue;
        std::string route;
        double best = 1e9;
        for (int i = 0; i < 4; ++i) {
          best = std::min(best, seconds([&] {
                            const auto went =
                                engine_->gather({fd.get()}, *target, 0, {size, 0},
                                                by_gpu ? there.as_index() : on_host(index));
                            ASSERT_TRUE(went) << went.error().operation;
                            route = name_of(went->route);
                          }));
        }
        std::printf("gather %6lu B, index on %s, %s: %.2f M/s, %.1f GB/s\n", size,
                    by_gpu ? "GPU " : "host", route.c_str(),
                    1e-6 * static_cast<double>(index.size()) / best, 1e-9 * kTarget / best);
      }
    }
    for (const unsigned threads : {1, 8, 16}) {
      for (const std::size_t batch : {1, 16, 128}) {
        std::atomic<std::uint64_t> done{0};
        const double took = seconds([&] {
          std::vector<std::jthread> all;
          for (unsigned t = 0; t < threads; ++t) {
            all.emplace_back([&, t] {
              std::mt19937_64 random(t);
              std::vector<Segment> segments(batch);
              const auto end = Clock::now() + std::chrono::milliseconds(700);
              while (Clock::now() < end) {
                for (std::size_t i = 0; i < batch; ++i) {
                  // Not adjacent in memory, as is usual in a ring.
                  segments[i] = {(t * batch + i) * 8192, random() % (kLarge / 4096) * 4096, 4096};
                }
                const auto went = engine_->read({fd.get()}, *target, segments);
                ASSERT_TRUE(went) << went.error().operation;
                done += batch;
              }
            });
          }
        });
        std::printf("4 KiB reads, %2u threads, batches of %3zu, %s: %.3f M/s\n", threads, batch,
                    mapped ? "mapped" : "staged", 1e-6 * static_cast<double>(done) / took);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::test
