// SPDX-License-Identifier: BSD-2-Clause
// Records by number, to and from host memory and memory of the fake libcuda.
#include <cerrno>
#include <random>

#include "tests/support/fake_gpu.hpp"
#include "tests/support/files.hpp"
#include "tests/unit/client/client.hpp"
#include "tests/unit/client/gpu_memory.hpp"

namespace sluice {
namespace {

using test::FakeGpu;
using test::GpuMemory;
using test::open_file;
using test::random_bytes;
using test::register_memory;

constexpr std::size_t kRecord = 512, kCount = 3'000, kOffset = 100;
constexpr std::size_t kRecords = 5'000;
constexpr std::size_t kBytes = kCount * kRecord;

class ClientGatherTest : public ::testing::Test {
 protected:
  ClientGatherTest()
      : content_(random_bytes(kOffset + kRecords * kRecord + 200)),
        path_(dir_.make_file("file", content_)),
        file_(open_file(path_, O_RDWR)),
        index_(kCount) {
    std::mt19937_64 random(7);
    for (auto& number : index_) number = random() % kRecords;
    index_[5] = index_[6] = kRecords - 1;
  }

  Device& device(std::size_t number = 0) { return *devices_.all().at(number); }
  // The bytes of an index, for GPU memory.
  static std::string bytes_of(const std::vector<std::uint64_t>& index) {
    return {reinterpret_cast<const char*>(index.data()), index.size() * 8};
  }
  static const std::uint64_t* index_at(const GpuMemory& memory) {
    return static_cast<const std::uint64_t*>(memory.pointer());
  }
  std::string expected() const {
    std::string bytes;
    for (const auto number : index_) bytes += content_.substr(kOffset + number * kRecord, kRecord);
    return bytes;
  }
  ssize_t gather(sluice_buffer* buffer, const std::uint64_t* index, std::size_t at = 0,
                 struct sluice_result* result = nullptr) {
    return sluice_gather(file_.get(), buffer, at, index, kCount, kRecord, kOffset, result);
  }

  Devices devices_;
  test::TempDir dir_;
  const std::string content_;
  const std::string path_;
  const test::FileHandle file_;
  std::vector<std::uint64_t> index_;
};

TEST_F(ClientGatherTest, GatherReadsRecordsToHostMemory) {
  std::vector<char> memory(kBytes + 20, 'x');
  const auto buffer = register_memory(memory.data(), memory.size());
  struct sluice_result result {};
  ASSERT_EQ(gather(buffer.get(), index_.data(), 10, &result), static_cast<ssize_t>(kBytes))
      << sluice_error();
  EXPECT_TRUE(std::string(memory.data() + 10, kBytes) == expected());
  EXPECT_EQ(std::string(memory.data(), 10) + std::string(memory.data() + 10 + kBytes, 10),
            std::string(20, 'x'));
  EXPECT_EQ(result.bytes, kBytes);
  EXPECT_STREQ(sluice_route_name(result.route), "host");
  EXPECT_EQ(result.in_process, 1u);
}

TEST_F(ClientGatherTest, GatherReadsRecordsToAGpuWithTheIndexAnywhere) {
  const GpuMemory memory(device(), kBytes), near(device(), kCount * 8), far(device(1), kCount * 8);
  ASSERT_TRUE(device().enter());
  near.fill(bytes_of(index_));
  ASSERT_TRUE(device(1).enter());
  far.fill(bytes_of(index_));
  const auto buffer = register_memory(memory.pointer(), kBytes);
  const std::uint64_t* const places[] = {index_.data(), index_at(near), index_at(far)};
  for (const auto* index : places) {
    ASSERT_TRUE(device().enter());
    memory.fill(std::string(kBytes, '\0'));
    ASSERT_EQ(gather(buffer.get(), index), static_cast<ssize_t>(kBytes)) << sluice_error();
    EXPECT_TRUE(memory.bytes(0, kBytes) == expected());
  }
  // Also to host memory.
  std::vector<char> host(kBytes);
  const auto host_buffer = register_memory(host.data(), kBytes);
  ASSERT_EQ(gather(host_buffer.get(), index_at(far)), static_cast<ssize_t>(kBytes))
      << sluice_error();
  EXPECT_TRUE(std::string(host.data(), kBytes) == expected());
}

TEST_F(ClientGatherTest, ScatterWritesRecords) {
  const std::string news = random_bytes(kBytes);
  std::string after = content_;
  for (std::size_t i = 0; i < kCount; ++i) {
    after.replace(kOffset + index_[i] * kRecord, kRecord, news, i * kRecord, kRecord);
  }
  const GpuMemory memory(device(), kBytes);
  memory.fill(news);
  std::string host = news;
  for (void* source : {memory.pointer(), static_cast<void*>(host.data())}) {
    test::write_file(path_, content_);
    const auto buffer = register_memory(source, kBytes);
    struct sluice_result result {};
    ASSERT_EQ(sluice_scatter(file_.get(), buffer.get(), 0, index_.data(), kCount, kRecord, kOffset,
                             &result),
              static_cast<ssize_t>(kBytes))
        << sluice_error();
    EXPECT_TRUE(test::read_file(path_) == after);
  }
}

TEST_F(ClientGatherTest, ErrorNamesTheFirstBadIndex) {
  std::vector<char> memory(kBytes);
  const auto buffer = register_memory(memory.data(), kBytes);
  index_[77] = kRecords;
  index_[99] = ~std::uint64_t{0};
  const std::string rest = path_ +
                           ": index[77] is 5000, but the file has 5000 whole records of 512 bytes: "
                           "they are numbered from 0";
  EXPECT_EQ(gather(buffer.get(), index_.data()), -ERANGE);
  EXPECT_EQ(sluice_error(), "gather " + rest);
  EXPECT_EQ(sluice_scatter(file_.get(), buffer.get(), 0, index_.data(), kCount, kRecord, kOffset,
                           nullptr),
            -ERANGE);
  EXPECT_EQ(sluice_error(), "scatter " + rest);
  EXPECT_TRUE(test::read_file(path_) == content_);
}

TEST_F(ClientGatherTest, WrongArgumentsHaveDistinctErrors) {
  std::vector<char> memory(kBytes);
  const auto buffer = register_memory(memory.data(), kBytes);
  const auto read_only = open_file(path_, O_RDONLY), write_only = open_file(path_, O_WRONLY);
  sluice_file* const file = file_.get();
  const auto* const index = index_.data();
  EXPECT_EQ(sluice_gather(nullptr, buffer.get(), 0, index, 1, 8, 0, nullptr), -EINVAL);
  EXPECT_EQ(sluice_gather(file, nullptr, 0, index, 1, 8, 0, nullptr), -EINVAL);
  EXPECT_EQ(sluice_gather(file, buffer.get(), 0, nullptr, 1, 8, 0, nullptr), -EINVAL);
  EXPECT_EQ(sluice_gather(file, buffer.get(), 0, index, 1, 0, 0, nullptr), -EINVAL);
  const auto* const odd =
      reinterpret_cast<const std::uint64_t*>(reinterpret_cast<const char*>(index) + 4);
  EXPECT_EQ(sluice_gather(file, buffer.get(), 0, odd, 1, 8, 0, nullptr), -EINVAL);
  EXPECT_EQ(sluice_gather(file, buffer.get(), 1, index, kCount, kRecord, 0, nullptr), -ERANGE);
  EXPECT_NE(std::string(sluice_error()).find("no room"), std::string::npos) << sluice_error();
  EXPECT_EQ(sluice_gather(file, buffer.get(), 0, index, SIZE_MAX, kRecord, 0, nullptr), -ERANGE);
  EXPECT_EQ(sluice_gather(file, buffer.get(), 0, index, 2, SIZE_MAX / 2, 0, nullptr), -ERANGE);
  EXPECT_EQ(sluice_gather(write_only.get(), buffer.get(), 0, index, 1, 8, 0, nullptr), -EBADF);
  EXPECT_EQ(sluice_scatter(read_only.get(), buffer.get(), 0, index, 1, 8, 0, nullptr), -EBADF);
  EXPECT_EQ(sluice_gather(file, buffer.get(), 0, nullptr, 0, 8, 0, nullptr), 0);
}

}  // namespace
}  // namespace sluice
