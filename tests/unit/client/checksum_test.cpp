// SPDX-License-Identifier: BSD-2-Clause
// Checksums of buffers in host memory and memory of the fake libcuda, and of files.
#include <cerrno>

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

class ClientChecksumTest : public ::testing::Test {
 protected:
  // Larger than what is read from a file at a time.
  ClientChecksumTest()
      : content_(random_bytes(9'000'001)), file_(open_file(dir_.make_file("file", content_))) {}

  Device& device() { return *devices_.all().at(0); }
  std::uint64_t of_host(std::size_t offset, std::size_t length) {
    std::string bytes = content_;
    const auto buffer = register_memory(bytes.data(), bytes.size());
    std::uint64_t sum = 0;
    EXPECT_EQ(sluice_checksum(buffer.get(), offset, length, &sum), 0) << sluice_error();
    return sum;
  }
  std::uint64_t of_file(std::uint64_t offset, std::uint64_t length) {
    std::uint64_t sum = 0;
    EXPECT_EQ(sluice_checksum_file(file_.get(), offset, length, &sum), 0) << sluice_error();
    return sum;
  }

  Devices devices_;
  test::TempDir dir_;
  const std::string content_;
  const test::FileHandle file_;
};

TEST_F(ClientChecksumTest, HasTheDocumentedValue) {
  std::string bytes(10'000, 'a');
  const auto buffer = register_memory(bytes.data(), bytes.size());
  std::uint64_t sum = 0;
  ASSERT_EQ(sluice_checksum(buffer.get(), 0, bytes.size(), &sum), 0) << sluice_error();
  EXPECT_EQ(sum, 0xfe6589d5bbec4d7a);
  ASSERT_EQ(sluice_checksum(buffer.get(), 5, 0, &sum), 0) << sluice_error();
  EXPECT_EQ(sum, 0x2d06800538d394c2);
}

TEST_F(ClientChecksumTest, IsTheSameInHostMemoryInGpuMemoryAndInTheFile) {
  const GpuMemory memory(device(), content_.size());
  const auto buffer = register_memory(memory.pointer(), content_.size());
  const auto whole = static_cast<ssize_t>(content_.size());
  ASSERT_EQ(sluice_read(file_.get(), buffer.get(), 0, content_.size(), 0, nullptr), whole);
  for (const std::size_t offset : {std::size_t{0}, std::size_t{4096}, std::size_t{8'999'990}}) {
    const std::size_t length = content_.size() - offset;
    std::uint64_t sum = 0;
    ASSERT_EQ(sluice_checksum(buffer.get(), offset, length, &sum), 0) << sluice_error();
    EXPECT_EQ(sum, of_host(offset, length));
    EXPECT_EQ(sum, of_file(offset, length));
    EXPECT_EQ(sum, of_file(offset, UINT64_MAX));
  }
  EXPECT_NE(of_file(0, 4096), of_file(1, 4096));
  EXPECT_EQ(of_file(content_.size() + 5, 10), 0x2d06800538d394c2);
}

TEST_F(ClientChecksumTest, IsComputedByTheCpuIfTheGpuCannot) {
  const GpuMemory memory(device(), content_.size());
  memory.fill(content_);
  const auto buffer = register_memory(memory.pointer(), content_.size());
  ASSERT_TRUE(FakeGpu::fail_cuda("cuLaunchKernel:1+:801"));
  std::uint64_t sum = 0;
  EXPECT_EQ(sluice_checksum(buffer.get(), 0, content_.size(), &sum), 0) << sluice_error();
  FakeGpu::fail_cuda("");
  EXPECT_EQ(sum, of_file(0, UINT64_MAX));
}

TEST_F(ClientChecksumTest, SaysWhatIsWrong) {
  std::string bytes(100, 'a');
  const auto buffer = register_memory(bytes.data(), bytes.size());
  std::uint64_t sum = 0;
  EXPECT_EQ(sluice_checksum(buffer.get(), 1, 100, &sum), -ERANGE);
  EXPECT_EQ(sluice_checksum(buffer.get(), 101, 0, &sum), -ERANGE);
  EXPECT_EQ(sluice_checksum(nullptr, 0, 0, &sum), -EINVAL);
  EXPECT_EQ(sluice_checksum(buffer.get(), 0, 100, nullptr), -EINVAL);
  EXPECT_EQ(sluice_checksum_file(nullptr, 0, 0, &sum), -EINVAL);
  EXPECT_EQ(sluice_checksum_file(file_.get(), 0, 0, nullptr), -EINVAL);
  const auto written = open_file(dir_.make_file("other", "x"), O_WRONLY);
  EXPECT_EQ(sluice_checksum_file(written.get(), 0, 1, &sum), -EBADF);
  EXPECT_NE(std::string(sluice_error()).find("other"), std::string::npos) << sluice_error();
}

}  // namespace
}  // namespace sluice
