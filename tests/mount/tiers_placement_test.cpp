// SPDX-License-Identifier: BSD-2-Clause
// The tier of new files, and files whose tier becomes full while they are written.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>

#include "tests/mount/tiers.hpp"
#include "tests/support/files.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

class PlacementTest : public TiersTest {};

TEST_F(PlacementTest, NewFileIsCreatedOnTheFastestTier) {
  start();
  write_file(*this / "f", "hello");
  EXPECT_EQ(tier_of("f"), "nvme");
  EXPECT_EQ(tiers_with("f"), "nvme");
  EXPECT_EQ(xattr_of(*this / "f", "user.sluice.location"), on("nvme", "f"));
  EXPECT_EQ(read_file(on("nvme", "f")), "hello");
}

TEST_F(PlacementTest, VirtualAttributesAreNotListed) {
  start();
  write_file(*this / "f", "hello");
  std::array<char, 1024> list{};
  EXPECT_EQ(::llistxattr((*this / "f").c_str(), list.data(), list.size()), 0);
}

TEST_F(PlacementTest, NewFileIsCreatedOnTheNextTierAboveTheHighWatermark) {
  set_options("nvme", "high_watermark=50");
  fill("nvme", 10 * kMiB);
  start();
  write_file(*this / "f", "hello");
  EXPECT_EQ(tiers_with("f"), "ssd");
  EXPECT_EQ(tier_of("f"), "ssd");
}

TEST_F(PlacementTest, NewFileIsCreatedOnTheLastTierIfAllOthersAreAboveTheirHighWatermark) {
  set_options("nvme", "high_watermark=50");
  set_options("ssd", "high_watermark=50");
  fill("nvme", 10 * kMiB);
  fill("ssd", 50 * kMiB);
  start();
  write_file(*this / "f", "hello");
  EXPECT_EQ(tiers_with("f"), "hdd");
}

TEST_F(PlacementTest, CapacityLimitsTheSizeOfTheTier) {
  set_options("nvme", "capacity=16MiB,high_watermark=90");
  fill("nvme", 20 * kMiB);
  start();
  write_file(*this / "f", "hello");
  EXPECT_EQ(tiers_with("f"), "ssd");
}

TEST_F(PlacementTest, ExistingFileIsWrittenOnItsTier) {
  put("hdd", "d/f", "old");
  start();
  write_file(*this / "d/f", "new");
  EXPECT_EQ(tiers_with("d/f"), "hdd");
  EXPECT_EQ(read_file(on("hdd", "d/f")), "new");
}

TEST_F(PlacementTest, NewFileCreatesItsDirectoryOnItsTier) {
  put_dir("hdd", "d/e");
  ::chown(on("hdd", "d").c_str(), 12, 34);
  ::chmod(on("hdd", "d").c_str(), 02775);
  ::setxattr(on("hdd", "d").c_str(), "user.k", "v", 1, 0);
  ::chmod(on("hdd", "d/e").c_str(), 0700);
  start();
  write_file(*this / "d/e/f", "hello");
  EXPECT_EQ(tiers_with("d/e/f"), "nvme");
  const struct stat copy = lstat_of(on("nvme", "d"));
  EXPECT_EQ(copy.st_uid, 12u);
  EXPECT_EQ(copy.st_gid, 34u);
  EXPECT_EQ(copy.st_mode & 07777, 02775u);
  EXPECT_EQ(xattr_of(on("nvme", "d"), "user.k"), "v");
  EXPECT_EQ(lstat_of(on("nvme", "d/e")).st_mode & 07777, 0700u);
}

TEST_F(PlacementTest, StatfsIsTheSumOfTheTiers) {
  start();
  std::uint64_t blocks = 0;
  for (const char* tier : {"nvme", "ssd", "hdd"}) {
    struct statvfs fs {};
    ASSERT_EQ(::statvfs(on(tier, "").c_str(), &fs), 0);
    blocks += fs.f_blocks * fs.f_frsize;
  }
  struct statvfs fs {};
  ASSERT_EQ(::statvfs((*this / "").c_str(), &fs), 0);
  EXPECT_NEAR(static_cast<double>(fs.f_blocks * fs.f_frsize), static_cast<double>(blocks),
              static_cast<double>(kMiB));
}

TEST_F(PlacementTest, OpensAreCountedAndTheCountSurvivesARemount) {
  put("nvme", "f", "hello");
  start();
  const auto accesses = [&] {
    return std::stol(xattr_of(*this / "f", "user.sluice.accesses").value_or("-1"));
  };
  const long before = accesses();
  EXPECT_GE(before, 0);
  for (int i = 0; i < 7; ++i) read_file(*this / "f");
  EXPECT_TRUE(eventually([&] { return accesses() == before + 7; })) << accesses();
  mount().remount();
  EXPECT_EQ(accesses(), before + 7);
}

// Spilling. Every reserve is larger than its tier, so that the daemon serves all writes and new
// files are created on the first tier although it is nearly full.
class SpillTest : public TiersTest {
 protected:
  void SetUp() override {
    TiersTest::SetUp();
    if (IsSkipped() || HasFailure()) return;
    for (const char* tier : {"nvme", "ssd", "hdd"}) {
      set_options(tier, "reserve=1GiB,high_watermark=100");
    }
    fill("nvme", 8 * kMiB);
  }

  // Writes pattern blocks until `bytes` are in the file; false at the first write that fails.
  static bool write_blocks(int fd, std::uint64_t bytes) {
    for (std::uint64_t at = 0; at < bytes; at += kBlock) {
      const std::string block = pattern(kBlock, at + 1);
      if (::pwrite(fd, block.data(), kBlock, static_cast<off_t>(at)) !=
          static_cast<ssize_t>(kBlock)) {
        return false;
      }
    }
    return true;
  }

  // The offset of the first wrong block; -1 if all are right.
  static long first_wrong_block(int fd, std::uint64_t bytes) {
    std::string got(kBlock, '\0');
    for (std::uint64_t at = 0; at < bytes; at += kBlock) {
      if (::pread(fd, got.data(), kBlock, static_cast<off_t>(at)) != static_cast<ssize_t>(kBlock) ||
          got != pattern(kBlock, at + 1)) {
        return static_cast<long>(at);
      }
    }
    return -1;
  }

  // Leaves not even the room for a directory.
  void fill_up(const char* tier) {
    fill(tier, 0);
    for (int i = 0; ::mkdir(on(tier, ".sluice/full" + std::to_string(i)).c_str(), 0700) == 0; ++i)
      continue;
    ASSERT_EQ(errno, ENOSPC);
  }

  static constexpr std::size_t kBlock = 256 << 10;
};

TEST_F(SpillTest, FileThatOutgrowsItsTierContinuesOnTheNext) {
  start();
  const UniqueFd fd(::open((*this / "f").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0640));
  ASSERT_TRUE(fd);
  ASSERT_EQ(::write(fd.get(), "x", 1), 1);
  EXPECT_EQ(tiers_with("f"), "nvme");
  ASSERT_EQ(::fchown(fd.get(), 12, 34), 0);
  ASSERT_EQ(::fsetxattr(fd.get(), "user.k", "v", 1, 0), 0);
  const struct stat before = lstat_of(*this / "f");

  ASSERT_TRUE(write_blocks(fd.get(), 24 * kMiB)) << errno_name(errno);

  EXPECT_EQ(first_wrong_block(fd.get(), 24 * kMiB), -1);
  EXPECT_EQ(tiers_with("f"), "ssd");
  EXPECT_EQ(tier_of("f"), "ssd");
  const struct stat after = lstat_of(*this / "f");
  EXPECT_EQ(after.st_ino, before.st_ino);
  EXPECT_EQ(after.st_uid, 12u);
  EXPECT_EQ(after.st_gid, 34u);
  EXPECT_EQ(after.st_mode, before.st_mode);
  EXPECT_EQ(after.st_size, static_cast<off_t>(24 * kMiB));
  EXPECT_EQ(xattr_of(*this / "f", "user.k"), "v");
  EXPECT_EQ(after.st_nlink, 1u);
}

TEST_F(SpillTest, InodeNumberStaysTheSameAfterARemount) {
  start();
  ino_t inode = 0;
  {
    const UniqueFd fd(::open((*this / "f").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0640));
    inode = lstat_of(*this / "f").st_ino;
    ASSERT_TRUE(write_blocks(fd.get(), 16 * kMiB)) << errno_name(errno);
  }
  ASSERT_EQ(tiers_with("f"), "ssd");
  mount().remount();
  EXPECT_EQ(lstat_of(*this / "f").st_ino, inode);
  const UniqueFd fd(::open((*this / "f").c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(first_wrong_block(fd.get(), 16 * kMiB), -1);
}

TEST_F(SpillTest, OtherDescriptorsSeeTheSpilledFile) {
  start();
  const UniqueFd writer(::open((*this / "f").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0640));
  ASSERT_TRUE(write_blocks(writer.get(), 1 * kMiB));
  const UniqueFd reader(::open((*this / "f").c_str(), O_RDONLY | O_CLOEXEC));
  const UniqueFd appender(::open((*this / "f").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  ASSERT_TRUE(write_blocks(writer.get(), 16 * kMiB)) << errno_name(errno);
  EXPECT_EQ(first_wrong_block(reader.get(), 16 * kMiB), -1);
  ASSERT_EQ(::write(appender.get(), "tail", 4), 4) << errno_name(errno);
  std::array<char, 5> tail{};
  EXPECT_EQ(::pread(reader.get(), tail.data(), 4, 16 * kMiB), 4);
  EXPECT_STREQ(tail.data(), "tail");
  EXPECT_EQ(lstat_of(*this / "f").st_size, static_cast<off_t>(16 * kMiB + 4));
}

// The kernel tells of a close later than close(2) returns, here by a program that is late.
TEST_F(SpillTest, WriterThatOpensBeforeAReaderIsGoneCanSpill) {
  start();
  constexpr std::uint64_t kLarge = 2 * kMiB;  // small files are not read through passthrough
  {
    const UniqueFd fd(::open((*this / "f").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0640));
    ASSERT_TRUE(write_blocks(fd.get(), kLarge));
  }
  mount().remount();
  UniqueFd reader(::open((*this / "f").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(reader);
  std::jthread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    reader.reset();
  });
  const UniqueFd fd(::open((*this / "f").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(fd);
  EXPECT_TRUE(write_blocks(fd.get(), 24 * kMiB)) << errno_name(errno);
  EXPECT_EQ(tiers_with("f"), "ssd");
}

TEST_F(SpillTest, AppendingWriterSpillsWithoutAGap) {
  start();
  const UniqueFd fd(::open((*this / "f").c_str(), O_CREAT | O_RDWR | O_APPEND | O_CLOEXEC, 0640));
  for (std::uint64_t at = 0; at < 16 * kMiB; at += kBlock) {
    const std::string block = pattern(kBlock, at + 1);
    ASSERT_EQ(::write(fd.get(), block.data(), kBlock), static_cast<ssize_t>(kBlock))
        << errno_name(errno);
  }
  EXPECT_EQ(first_wrong_block(fd.get(), 16 * kMiB), -1);
  EXPECT_EQ(tiers_with("f"), "ssd");
}

TEST_F(SpillTest, HolesStayHoles) {
  start();
  const UniqueFd fd(::open((*this / "f").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0640));
  ASSERT_EQ(::pwrite(fd.get(), "far", 3, 1LL << 30), 3);
  ASSERT_TRUE(write_blocks(fd.get(), 16 * kMiB)) << errno_name(errno);
  ASSERT_EQ(tiers_with("f"), "ssd");
  ASSERT_EQ(::fsync(fd.get()), 0);
  EXPECT_EQ(lstat_of(*this / "f").st_size, (1LL << 30) + 3);
  EXPECT_LT(lstat_of(on("ssd", "f")).st_blocks * 512, static_cast<off_t>(64 * kMiB));
  EXPECT_EQ(first_wrong_block(fd.get(), 16 * kMiB), -1);
  std::array<char, 4> far{};
  EXPECT_EQ(::pread(fd.get(), far.data(), 3, 1LL << 30), 3);
  EXPECT_STREQ(far.data(), "far");
}

TEST_F(SpillTest, SpilledFileCreatesItsDirectories) {
  start();
  ASSERT_EQ(::mkdir((*this / "d").c_str(), 0750), 0);
  ASSERT_EQ(::mkdir((*this / "d/e").c_str(), 0700), 0);
  const UniqueFd fd(::open((*this / "d/e/f").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0640));
  ASSERT_TRUE(write_blocks(fd.get(), 16 * kMiB)) << errno_name(errno);
  EXPECT_EQ(tiers_with("d/e/f"), "ssd");
  EXPECT_EQ(lstat_of(on("ssd", "d")).st_mode & 07777, 0750u);
  EXPECT_EQ(lstat_of(on("ssd", "d/e")).st_mode & 07777, 0700u);
  EXPECT_EQ(names_in(*this / "d/e"), std::vector<std::string>{"f"});
}

TEST_F(SpillTest, UnlinkedFileCanSpill) {
  start();
  const UniqueFd fd(::open((*this / "f").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0640));
  ASSERT_EQ(::unlink((*this / "f").c_str()), 0);
  ASSERT_TRUE(write_blocks(fd.get(), 16 * kMiB)) << errno_name(errno);
  EXPECT_EQ(first_wrong_block(fd.get(), 16 * kMiB), -1);
  EXPECT_EQ(names_in(*this / ""), std::vector<std::string>{".filler"});
}

TEST_F(SpillTest, FileWithTwoNamesKeepsBothWhenItsTierIsFull) {
  start();
  const UniqueFd fd(::open((*this / "f").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0640));
  ASSERT_TRUE(write_blocks(fd.get(), 1 * kMiB));
  ASSERT_EQ(::link((*this / "f").c_str(), (*this / "g").c_str()), 0);
  const bool spilled = write_blocks(fd.get(), 16 * kMiB);
  if (!spilled) {
    EXPECT_EQ(errno, ENOSPC);
  }
  EXPECT_EQ(first_wrong_block(fd.get(), (spilled ? 16 : 1) * kMiB), -1);
  EXPECT_EQ(lstat_of(*this / "f").st_ino, lstat_of(*this / "g").st_ino);
  EXPECT_EQ(lstat_of(*this / "f").st_nlink, 2u);
  EXPECT_EQ(lstat_of(*this / "g").st_size, lstat_of(*this / "f").st_size);
}

TEST_F(SpillTest, WriterGetsEnospcIfEveryTierIsFull) {
  fill("ssd", 12 * kMiB);
  fill("hdd", 12 * kMiB);
  start();
  const UniqueFd fd(::open((*this / "f").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0640));
  EXPECT_FALSE(write_blocks(fd.get(), 64 * kMiB));
  EXPECT_EQ(errno, ENOSPC);
  EXPECT_EQ(first_wrong_block(fd.get(), 4 * kMiB), -1) << "bytes written before were lost";
  ASSERT_EQ(::ftruncate(fd.get(), 0), 0);
  EXPECT_TRUE(write_blocks(fd.get(), 1 * kMiB)) << "and room made is room again";
}

TEST_F(SpillTest, DirectoriesAndLinksCanBeCreatedWhenTheFastestTierIsFull) {
  fill("nvme", 0);
  start();
  for (int i = 0; i < 2000; ++i) {
    const std::string name = *this / ("d" + std::to_string(i));
    ASSERT_EQ(::mkdir(name.c_str(), 0755), 0) << i << ": " << errno_name(errno);
    ASSERT_EQ(::symlink(std::string(300, 'x').c_str(), (name + "/s").c_str()), 0)
        << i << ": " << errno_name(errno);
  }
  EXPECT_EQ(names_in(*this / "").size(), 2001u);  // and the filler
}

// Renames and links stay on a file's tier, which has no room for a copy of the new directory.
TEST_F(SpillTest, NamesCanBeMadeInNewDirectoriesWhenTheTierIsFull) {
  start();
  ASSERT_EQ(::mkdir((*this / "old").c_str(), 0755), 0);
  for (const char* name : {"old/moved", "old/replacing", "old/exchanged", "old/linked"})
    write_file(*this / name, name);
  ASSERT_EQ(::mkdir((*this / "old/directory").c_str(), 0755), 0);
  write_file(*this / "old/directory/f", "f");
  ASSERT_EQ(tiers_with("old/directory/f"), "nvme");
  // The daemon makes spare directories within seconds after a tier has become crowded.
  const std::string spares = on("nvme", ".sluice/spares");
  ASSERT_TRUE(eventually([&] { return exists(spares) && names_in(spares).size() > 8; }));
  fill_up("nvme");
  ASSERT_EQ(::mkdir((*this / "new").c_str(), 0755), 0) << errno_name(errno);
  for (const char* name : {"new/a", "new/b", "new/c", "new/d", "new/e"}) {
    ASSERT_EQ(::mkdir((*this / name).c_str(), 0750), 0) << errno_name(errno);
    ASSERT_EQ(tiers_with(name), "ssd");
  }
  write_file(*this / "new/b/replaced", "replaced");
  write_file(*this / "new/c/exchanged", "other");
  const auto rename = [&](const char* from, const char* to, unsigned flags) {
    return ::renameat2(AT_FDCWD, (*this / from).c_str(), AT_FDCWD, (*this / to).c_str(), flags);
  };
  EXPECT_EQ(rename("old/moved", "new/a/moved", 0), 0) << errno_name(errno);
  EXPECT_EQ(rename("old/replacing", "new/b/replaced", 0), 0) << errno_name(errno);
  EXPECT_EQ(rename("old/exchanged", "new/c/exchanged", RENAME_EXCHANGE), 0) << errno_name(errno);
  EXPECT_EQ(rename("old/directory", "new/d/directory", 0), 0) << errno_name(errno);
  EXPECT_EQ(::link((*this / "old/linked").c_str(), (*this / "new/e/linked").c_str()), 0)
      << errno_name(errno);
  EXPECT_EQ(lstat_of(on("nvme", "new/a")).st_mode & 07777, 0750u);
  mount().remount();
  EXPECT_EQ(read_file(*this / "new/a/moved"), "old/moved");
  EXPECT_EQ(read_file(*this / "new/b/replaced"), "old/replacing");
  EXPECT_EQ(read_file(*this / "new/c/exchanged"), "old/exchanged");
  EXPECT_EQ(read_file(*this / "old/exchanged"), "other");
  EXPECT_EQ(read_file(*this / "new/d/directory/f"), "f");
  EXPECT_EQ(read_file(*this / "new/e/linked"), "old/linked");
  mount().kill_daemon();
  mount().detach();
  const CommandResult report = fsck();
  EXPECT_EQ(report.exit_code, 0) << report.out << report.err;
}

TEST_F(SpillTest, ManyFilesFillOneTierAfterTheOther) {
  start();
  for (int i = 0; i < 64; ++i) {
    const std::string name = *this / ("f" + std::to_string(i));
    ASSERT_NO_THROW(write_file(name, pattern(512 << 10, static_cast<std::uint64_t>(i)))) << i;
  }
  for (int i = 0; i < 64; ++i) {
    const std::string name = *this / ("f" + std::to_string(i));
    EXPECT_EQ(read_file(name), pattern(512 << 10, static_cast<std::uint64_t>(i))) << i;
  }
}

}  // namespace
}  // namespace sluice::test
