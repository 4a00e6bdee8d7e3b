// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/file_reader.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "gpu/residency.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t kOneMiB = 1 << 20, kFileSize = 8 * kOneMiB;

class FileReaderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string content(kFileSize, 'x');
    for (std::size_t i = 0; i < kFileSize; i += 512) content[i] = static_cast<char>(i >> 9);
    fd_.reset(::open(dir_.make_file("f", content).c_str(), O_RDWR | O_CLOEXEC));
    content_ = std::move(content);
    ::fsync(fd_.get());
    ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
    struct stat stat {};
    ASSERT_EQ(::fstat(fd_.get(), &stat), 0);
    all_ = {FileVersion::of(stat).id, 0, kFileSize};
    if (cached() > 0.01) GTEST_SKIP() << "the page cache can't be dropped here";
  }
  double cached() const { return cached_share(fd_.get(), 0, kFileSize).value_or(1); }
  // Enough bytes for a verdict about the disk.
  void report(seconds busy, seconds took) { notes_.filled(all_.file.device, 1 << 30, busy, took); }
  void read(FileReader& reader) {
    const std::unique_ptr<std::byte, decltype(&std::free)> slot(
        static_cast<std::byte*>(std::aligned_alloc(4096, kFileSize)), std::free);
    const auto piece = reader.read_to_slot(0, kFileSize, slot.get());
    ASSERT_TRUE(piece);
    ASSERT_EQ(piece->bytes, kFileSize);
    EXPECT_EQ(std::memcmp(slot.get() + piece->skip, content_.data(), kFileSize), 0);
  }

  test::TempDir dir_;
  UniqueFd fd_;
  std::string content_;
  ReaderNotes notes_;
  ReaderNotes::Range all_;
  const std::function<bool()> has_room_ = [] { return true; };
};

TEST_F(FileReaderTest, BytesOfASlowDiskGoIntoThePageCache) {
  report(seconds(1), seconds(100));
  FileReader reader(fd_.get(), all_, notes_, has_room_);
  read(reader);
  EXPECT_EQ(cached(), 1);
  EXPECT_TRUE(reader.was_cold());
  EXPECT_FALSE(reader.left_room());
}

TEST_F(FileReaderTest, FastDiskIsReadPastThePageCache) {
  report(seconds(1), seconds(5));
  FileReader reader(fd_.get(), all_, notes_, has_room_);
  read(reader);
  if (!reader.is_direct()) GTEST_SKIP() << "this filesystem has no O_DIRECT";
  EXPECT_LT(cached(), 0.01);
  EXPECT_TRUE(reader.left_room()) << "it is to be filled later";
}

TEST_F(FileReaderTest, BytesThatAreOnlyInMemoryAreRead) {
  report(seconds(1), seconds(5));
  void* const at = ::mmap(nullptr, kFileSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  ASSERT_NE(at, MAP_FAILED);
  content_.replace(kOneMiB + 100, 5, "store");
  std::memcpy(static_cast<char*>(at) + kOneMiB + 100, "store", 5);  // not yet on the disk
  content_.replace(2 * kOneMiB, 5, "write");
  ASSERT_EQ(::pwrite(fd_.get(), "write", 5, 2 * kOneMiB), 5);
  if (cached() > 0.5) GTEST_SKIP() << "the kernel has read more than was written";
  FileReader reader(fd_.get(), all_, notes_, has_room_);
  read(reader);
  ::munmap(at, kFileSize);
  if (!reader.is_direct()) GTEST_SKIP() << "this filesystem has no O_DIRECT";
}

TEST_F(FileReaderTest, RangesAndEndsNeedNoAlignment) {
  report(seconds(1), seconds(5));
  const std::string tail(777, 'y');
  content_ += tail;
  ASSERT_EQ(::pwrite(fd_.get(), tail.data(), tail.size(), kFileSize), 777);
  ::fsync(fd_.get());
  const std::unique_ptr<std::byte, decltype(&std::free)> slot(
      static_cast<std::byte*>(std::aligned_alloc(4096, 2 * kFileSize)), std::free);
  const std::uint64_t ranges[][2] = {{1, 3},
                                     {4095, kOneMiB + 2},
                                     {kFileSize - 5000, 6000},
                                     {kFileSize + 700, 500},
                                     {kFileSize + 777, 100}};
  for (const auto& [offset, length] : ranges) {
    ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
    const std::string expected = content_.substr(offset, length);
    FileReader reader(fd_.get(), all_, notes_, has_room_);
    const auto piece = reader.read_to_slot(offset, length, slot.get());
    ASSERT_TRUE(piece) << offset;
    EXPECT_EQ(std::string(reinterpret_cast<char*>(slot.get()) + piece->skip, piece->bytes),
              expected)
        << offset;
    for (const std::uint64_t shift : {offset % 4096, std::uint64_t{1}}) {  // with and without
      const auto got = reader.read_to(offset, length, slot.get() + shift);
      ASSERT_TRUE(got) << offset;
      EXPECT_EQ(std::string(reinterpret_cast<char*>(slot.get()) + shift, *got), expected) << offset;
    }
  }
}

TEST_F(FileReaderTest, FileWithoutRoomIsNotToBeFilledLater) {
  FileReader reader(fd_.get(), all_, notes_, [] { return false; });
  read(reader);
  EXPECT_FALSE(reader.left_room());
}

TEST_F(FileReaderTest, SameBytesAreReadFromAFastDiskOnce) {
  report(seconds(1), seconds(5));
  FileReader first(fd_.get(), all_, notes_, has_room_);
  read(first);
  if (!first.is_direct()) GTEST_SKIP() << "this filesystem has no O_DIRECT";
  FileReader second(fd_.get(), all_, notes_, has_room_);
  read(second);
  EXPECT_EQ(cached(), 1) << "for the third one";
}

TEST_F(FileReaderTest, PartsOfOneLoadDoNotCountAsTheSameBytes) {
  report(seconds(1), seconds(5));
  FileReader other(fd_.get(), {all_.file, kFileSize, 2 * kFileSize}, notes_, has_room_);
  read(other);
  if (!other.is_direct()) GTEST_SKIP() << "this filesystem has no O_DIRECT";
  FileReader reader(fd_.get(), all_, notes_, has_room_);
  read(reader);
  EXPECT_TRUE(reader.is_direct());
}

TEST_F(FileReaderTest, ClaimEndsWithItsReader) {
  report(seconds(1), seconds(5));
  for (int i = 0; i < 2; ++i) {
    FileReader reader(fd_.get(), all_, notes_, has_room_);
    read(reader);
    if (!reader.is_direct()) GTEST_SKIP() << "this filesystem has no O_DIRECT";
  }
  EXPECT_LT(cached(), 0.01);
}

TEST_F(FileReaderTest, DiskIsJudgedByManySmallRequestsTogether) {
  for (int i = 0; i < 300; ++i)
    notes_.filled(all_.file.device, kOneMiB, milliseconds(1), milliseconds(3));
  EXPECT_TRUE(notes_.is_fast(all_.file.device));
}

}  // namespace
}  // namespace sluice
