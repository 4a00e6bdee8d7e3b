// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/warmer.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "gpu/residency.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/wait.hpp"

namespace sluice {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

class WarmerTest : public testing::Test {
 protected:
  UniqueFd make(const std::string& name, const std::string& content = "x") {
    return UniqueFd(::open(dir_.make_file(name, content).c_str(), O_RDWR | O_CLOEXEC));
  }
  static FileVersion version_of(const UniqueFd& fd) {
    struct stat stat {};
    EXPECT_EQ(::fstat(fd.get(), &stat), 0);
    return FileVersion::of(stat);
  }
  static FileId id_of(const UniqueFd& fd) { return version_of(fd).id; }
  static std::size_t descriptors() {
    const auto all = std::filesystem::directory_iterator("/proc/self/fd");
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
  }
  bool is_idle() {
    return test::eventually([&] { return warmer_.jobs() == 0; });
  }

  test::TempDir dir_;
  std::atomic<bool> busy_{false};
  Warmer warmer_{[this] { return busy_.load(); }};
};

TEST_F(WarmerTest, ReadsTheRange) {
  const UniqueFd fd = make("f", std::string(4 * kMiB, 'x'));
  ::fsync(fd.get());
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  if (cached_share(fd.get(), 0, 4 * kMiB).value_or(1) > 0.5)
    GTEST_SKIP() << "the page cache can't be dropped here";
  ASSERT_TRUE(warmer_.add(0, fd.get(), 0, 4 * kMiB));
  EXPECT_TRUE(
      test::eventually([&] { return cached_share(fd.get(), 0, 4 * kMiB).value_or(0) == 1.0; }));
}

TEST_F(WarmerTest, WhatNobodyAskedForIsReadWhenTheDiskIsIdle) {
  const UniqueFd fd = make("f", std::string(4 * kMiB, 'x'));
  ::fsync(fd.get());
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  if (cached_share(fd.get(), 0, 4 * kMiB).value_or(1) > 0.5)
    GTEST_SKIP() << "the page cache can't be dropped here";
  std::atomic<std::uint64_t> used{0}, looks{0};
  std::atomic<bool> others{true};
  Warmer warmer([] { return false; },
                [&](dev_t) -> std::optional<std::uint64_t> {
                  ++looks;
                  return used += others ? 100 * kMiB : 0;
                });
  warmer.add_when_idle(fd.get(), version_of(fd));
  EXPECT_EQ(warmer.jobs(), 0u) << "it takes nobody's share";
  ASSERT_TRUE(test::eventually([&] { return looks > 3; }));
  EXPECT_EQ(cached_share(fd.get(), 0, 4 * kMiB).value_or(1), 0) << "others use the disk";
  others = false;
  EXPECT_TRUE(
      test::eventually([&] { return cached_share(fd.get(), 0, 4 * kMiB).value_or(0) == 1.0; }));
}

TEST_F(WarmerTest, BusyDiskDoesNotHoldUpFilesOfOthers) {
  const UniqueFd fd = make("f", std::string(4 * kMiB, 'x'));
  ::fsync(fd.get());
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  if (cached_share(fd.get(), 0, 4 * kMiB).value_or(1) > 0.5)
    GTEST_SKIP() << "the page cache can't be dropped here";
  const UniqueFd other(::memfd_create("other", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(other.get(), kMiB), 0);
  ASSERT_NE(id_of(fd).device, id_of(other).device);
  std::uint64_t used = 0;
  Warmer warmer([] { return false; },
                [&](dev_t disk) -> std::optional<std::uint64_t> {
                  return disk == id_of(other).device ? used += 100 * kMiB : 0;
                });
  warmer.add_when_idle(other.get(), version_of(other));
  warmer.add_when_idle(fd.get(), version_of(fd));
  EXPECT_TRUE(
      test::eventually([&] { return cached_share(fd.get(), 0, 4 * kMiB).value_or(0) == 1.0; }));
}

// Otherwise a busy disk would not get its room back.
TEST_F(WarmerTest, DeletedFileIsClosedAlthoughItsDiskIsBusy) {
  const UniqueFd fd = make("f");
  const std::size_t before = descriptors();
  std::uint64_t used = 0;
  Warmer warmer([] { return false; },
                [&](dev_t) -> std::optional<std::uint64_t> { return used += 100 * kMiB; });
  warmer.add_when_idle(fd.get(), version_of(fd));
  EXPECT_GT(descriptors(), before);
  std::filesystem::remove(dir_ / "f");
  EXPECT_TRUE(test::eventually([&] { return descriptors() == before; }));
}

TEST_F(WarmerTest, FileForWhichMemoryHasNoRoomAnyMoreIsNotRead) {
  const UniqueFd fd = make("f", std::string(kMiB, 'x'));
  ::fsync(fd.get());
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  if (cached_share(fd.get(), 0, kMiB).value_or(1) > 0.5)
    GTEST_SKIP() << "the page cache can't be dropped here";
  const std::size_t before = descriptors();
  Warmer warmer([] { return false; }, [](dev_t) { return std::optional<std::uint64_t>(0); },
                [](std::uint64_t bytes) { return bytes < kMiB; });
  warmer.add_when_idle(fd.get(), version_of(fd));
  EXPECT_TRUE(test::eventually([&] { return descriptors() == before; }));
  EXPECT_EQ(cached_share(fd.get(), 0, kMiB).value_or(1), 0);
}

TEST_F(WarmerTest, HolesCostNothing) {
  const UniqueFd fd = make("huge");
  constexpr std::uint64_t kHuge = 1ull << 40;
  if (::ftruncate(fd.get(), kHuge) != 0)
    GTEST_SKIP() << "files of this size are not supported here";
  ASSERT_TRUE(warmer_.add(1000, fd.get(), 0, kHuge));
  EXPECT_TRUE(is_idle()) << "it reads the zeros of a hole";
  EXPECT_EQ(cached_share(fd.get(), 512 * kMiB, kMiB).value_or(0), 0);
  EXPECT_EQ(::lseek(fd.get(), 0, SEEK_CUR), 0) << "the position is the caller's";
}

TEST_F(WarmerTest, OneUserCannotUseTheShareOfOthers) {
  busy_ = true;
  std::vector<UniqueFd> files;
  for (std::size_t i = 0; i <= Warmer::kMostOfUser; ++i)
    files.push_back(make("f" + std::to_string(i)));
  for (std::size_t i = 0; i < Warmer::kMostOfUser; ++i)
    ASSERT_TRUE(warmer_.add(1000, files[i].get(), 0, 1)) << i;
  EXPECT_TRUE(failed_with(warmer_.add(1000, files.back().get(), 0, 1), EAGAIN));
  EXPECT_TRUE(warmer_.add(1001, files.back().get(), 0, 1));
  busy_ = false;
  EXPECT_TRUE(is_idle());
  EXPECT_TRUE(warmer_.add(1000, files.back().get(), 0, 1));
}

TEST_F(WarmerTest, RepeatedRequestIsDoneOnce) {
  busy_ = true;
  const UniqueFd fd = make("f", std::string(100, 'x'));
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(warmer_.add(1000, fd.get(), 10, 100));
  ASSERT_TRUE(warmer_.add(1000, fd.get(), 20, 90));
  EXPECT_EQ(warmer_.jobs(), 1u);
  ASSERT_TRUE(warmer_.add(1000, fd.get(), 0, 100));
  EXPECT_EQ(warmer_.jobs(), 2u);
}

TEST_F(WarmerTest, ForgottenFileIsClosed) {
  busy_ = true;
  const UniqueFd gone = make("gone"), stays = make("stays");
  const std::size_t before = descriptors();
  ASSERT_TRUE(warmer_.add(1000, gone.get(), 0, 1));
  ASSERT_TRUE(warmer_.add(1001, gone.get(), 0, 1));
  ASSERT_TRUE(warmer_.add(1000, stays.get(), 0, 1));
  const FileId id = id_of(gone);
  warmer_.forget([&](const FileId& file) { return file == id; });
  EXPECT_EQ(warmer_.jobs(), 1u);
  EXPECT_EQ(descriptors(), before + 1);
}

TEST_F(WarmerTest, DestructorStopsUnfinishedWork) {
  busy_ = true;
  const UniqueFd fd = make("f");
  ASSERT_TRUE(warmer_.add(1000, fd.get(), 0, 1));
}

}  // namespace
}  // namespace sluice
