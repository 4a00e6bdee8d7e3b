// SPDX-License-Identifier: BSD-2-Clause
// Users leave the blocks that a tier's filesystem reserves for root, by whatever way they take
// room; root may use them. With passthrough and without.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <functional>
#include <memory>

#include "base/unique_fd.hpp"
#include "tests/support/files.hpp"
#include "tests/support/loop_fs.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kReserve = 12 * kMiB;
constexpr std::size_t kPiece = 256 << 10;

class ReserveTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!require_mounts("mount") || !require_loop("mount", "ext4")) return;
    fast_ = disk("fast", 48 * kMiB);
  }

  std::unique_ptr<LoopFs> disk(const std::string& name, std::uint64_t bytes) const {
    const std::string image = base_ / (name + ".image");
    make_image(image, "ext4", bytes);
    // The size of blocks depends on the configuration of mkfs.
    const CommandResult shown = run_command({"dumpe2fs", "-h", image});
    const auto at = shown.out.find("Block size:");
    if (at == std::string::npos) throw std::runtime_error(shown.err);
    const std::uint64_t block = std::stoull(shown.out.substr(at + 11));
    const CommandResult tuned =
        run_command({"tune2fs", "-r", std::to_string(kReserve / block), image});
    if (!tuned.ok()) throw std::runtime_error(tuned.err);
    return std::make_unique<LoopFs>(base_ / name, "ext4", image);
  }

  void start(std::vector<std::string> tiers) {
    std::vector<std::string> flags{"--no-migrate"};
    if (!GetParam()) flags.push_back("--debug=passthrough=off");
    mount_ = std::make_unique<Mount>(
        Pool{std::move(tiers), base_.make_dir("state"), base_.make_dir("mnt"), flags});
    ASSERT_EQ(::mkdir((*mount_ / "all").c_str(), 0777), 0);
    ASSERT_EQ(::chmod((*mount_ / "all").c_str(), 0777), 0);
  }
  void start() { start({"fast=" + fast_->path()}); }
  std::string operator/(const std::string& name) const { return *mount_ / ("all/" + name); }

  static struct statvfs space(const LoopFs& disk) {
    ::sync();
    struct statvfs out {};
    EXPECT_EQ(::statvfs(disk.path().c_str(), &out), 0);
    return out;
  }
  // Expects that users have filled the disk, and that root's blocks are free.
  static void expect_reserve(const LoopFs& disk, const std::string& way) {
    const struct statvfs now = space(disk);
    EXPECT_LT(now.f_bavail * now.f_frsize, kMiB) << way << ": it is not full";
    EXPECT_GE(now.f_bfree * now.f_frsize, kReserve - 64 * 1024)
        << way << ": root's blocks are used";
  }

  // Writes until that fails, as `user`, to a file that exists.
  static std::string fill(const User& user, const std::string& path) {
    return as_user(user, [&]() -> std::string {
      const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
      if (!fd) return "open: " + errno_name(errno);
      const std::string data = pattern(kPiece, 1);
      ssize_t put = 0;
      while ((put = ::write(fd.get(), data.data(), data.size())) > 0) continue;
      return errno_name(put < 0 ? errno : EIO);
    });
  }
  std::string make(const std::string& name) const {
    write_file(*this / name, "x", 0666);
    EXPECT_EQ(::chmod((*this / name).c_str(), 0666), 0);
    return *this / name;
  }

  TempDir base_;
  std::unique_ptr<LoopFs> fast_;
  std::unique_ptr<Mount> mount_;
};

std::string how(const testing::TestParamInfo<bool>& info) {
  return info.param ? "Passthrough" : "Served";
}
INSTANTIATE_TEST_SUITE_P(All, ReserveTest, testing::Bool(), how);

TEST_P(ReserveTest, AUserWhoWritesStopsBeforeIt) {
  start();
  const std::string path = make("f");
  EXPECT_EQ(fill(kAlice, path), "ENOSPC");
  expect_reserve(*fast_, "write");
}

TEST_P(ReserveTest, RootWritesIntoIt) {
  start();
  ASSERT_EQ(fill(kAlice, make("f")), "ENOSPC");
  const UniqueFd fd(::open((*this / "root").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  const std::string data = pattern(kMiB, 2);
  EXPECT_EQ(::write(fd.get(), data.data(), data.size()), static_cast<ssize_t>(data.size()));
  EXPECT_EQ(::fallocate(fd.get(), 0, 0, 2 * kMiB), 0) << errno_name(errno);
  EXPECT_EQ(::mkdir((*this / "directory").c_str(), 0755), 0) << errno_name(errno);
  // Also after a user's turn, in the thread that served the user.
  EXPECT_EQ(fill(kBob, make("g")), "ENOSPC");
  EXPECT_EQ(::pwrite(fd.get(), data.data(), data.size(), 3 * kMiB),
            static_cast<ssize_t>(data.size()));
}

TEST_P(ReserveTest, OtherWaysToTakeRoomStopBeforeIt) {
  start();
  struct Way {
    const char* name;
    std::function<std::string(const std::string& path)> take;
  };
  const auto allocate = [](const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    off_t at = 0;
    while (::fallocate(fd.get(), 0, at, kPiece) == 0) at += kPiece;
    return errno_name(errno);
  };
  const auto copy = [](const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    const std::string data = pattern(kPiece, 3);
    if (::pwrite(fd.get(), data.data(), kPiece, 0) != static_cast<ssize_t>(kPiece))
      return errno_name(errno);
    for (off_t to = kPiece;; to += kPiece) {
      off_t from = 0, at = to;
      if (::copy_file_range(fd.get(), &from, fd.get(), &at, kPiece, 0) <= 0)
        return errno_name(errno);
    }
  };
  const auto map = [](const std::string& path) -> std::string {
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (::ftruncate(fd.get(), 64 * kMiB) < 0) return errno_name(errno);
    auto* bytes = static_cast<char*>(
        ::mmap(nullptr, 64 * kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
    if (bytes == MAP_FAILED) return "mmap: " + errno_name(errno);
    // A store to a passthrough file without room kills the process.
    const std::string end = in_child([&]() -> std::string {
      for (std::uint64_t at = 0; at < 64 * kMiB; at += 1024) bytes[at] = 1;
      return ::msync(bytes, 64 * kMiB, MS_SYNC) == 0 ? "ok" : errno_name(errno);
    });
    return end.starts_with("died") ? "ENOSPC" : end;
  };
  for (const Way& way :
       {Way{"fallocate", allocate}, Way{"copy_file_range", copy}, Way{"mmap", map}}) {
    const std::string path = make(way.name);
    EXPECT_EQ(as_user(kAlice, [&] { return way.take(path); }), "ENOSPC") << way.name;
    expect_reserve(*fast_, way.name);
    ASSERT_EQ(::truncate(path.c_str(), 0), 0);
  }
}

// Each name, symlink and attribute is little, but there can be many.
TEST_P(ReserveTest, NamesAndAttributesStopBeforeIt) {
  start();
  ASSERT_EQ(fill(kAlice, make("f")), "ENOSPC");
  const std::string taken = as_user(kAlice, [&]() -> std::string {
    const std::string dir = *this / "";
    const std::string target(900, 't'), value(900, 'v');
    int code = 0;
    for (int i = 0; code == 0 && i < 3000; ++i)
      code = ::mkdir((dir + "d" + std::to_string(i)).c_str(), 0700) == 0 ? 0 : errno;
    std::string out = "mkdir " + errno_name(code);
    code = 0;
    for (int i = 0; code == 0 && i < 3000; ++i)
      code = ::symlink(target.c_str(), (dir + "l" + std::to_string(i)).c_str()) == 0 ? 0 : errno;
    out += ", symlink " + errno_name(code);
    return out;
  });
  EXPECT_EQ(taken, "mkdir ENOSPC, symlink ENOSPC");
  expect_reserve(*fast_, "names");
}

// A file with two names cannot spill, so its writer is served until the tier is full.
TEST_P(ReserveTest, AFileThatCannotSpillStopsBeforeIt) {
  const auto slow = disk("slow", 96 * kMiB);
  start({"fast=" + fast_->path(), "slow=" + slow->path()});
  const std::string path = make("f");
  ASSERT_EQ(::link(path.c_str(), (*this / "second").c_str()), 0);
  EXPECT_EQ(fill(kAlice, path), "ENOSPC");
  expect_reserve(*fast_, "two names");
}

TEST_P(ReserveTest, ASpilledFileStopsBeforeThatOfTheNextTier) {
  const auto slow = disk("slow", 64 * kMiB);
  start({"fast=" + fast_->path(), "slow=" + slow->path()});
  EXPECT_EQ(fill(kAlice, make("f")), "ENOSPC");
  EXPECT_TRUE(exists(slow->path() + "/all/f")) << "it did not spill";
  expect_reserve(*slow, "spill");
  // Another file spills only as far as there is room that is not root's.
  EXPECT_EQ(fill(kAlice, make("g")), "ENOSPC");
  expect_reserve(*fast_, "second file");
  expect_reserve(*slow, "second file");
}

// A file that is renamed stays on its tier, which needs a copy of the new directory for it.
TEST_P(ReserveTest, RepeatedDirectoriesStopBeforeIt) {
  const auto slow = disk("slow", 96 * kMiB);
  start({"fast=" + fast_->path(), "slow=" + slow->path()});
  const std::string small = make("small"), path = make("f");
  ASSERT_EQ(::link(path.c_str(), (*this / "second").c_str()), 0);
  ASSERT_EQ(fill(kAlice, path), "ENOSPC");
  EXPECT_EQ(as_user(kAlice,
                    [&]() -> std::string {
                      std::string at = small;
                      for (int i = 0; i < 400; ++i) {
                        const std::string dir = *this / ("d" + std::to_string(i));
                        if (::mkdir(dir.c_str(), 0700) < 0) return "mkdir: " + errno_name(errno);
                        if (::rename(at.c_str(), (dir + "/small").c_str()) < 0)
                          return errno_name(errno);
                        at = dir + "/small";
                      }
                      return "ok";
                    }),
            "ENOSPC");
  expect_reserve(*fast_, "repeated directories");
  ASSERT_EQ(::mkdir((*this / "root").c_str(), 0755), 0);
  EXPECT_EQ(::rename((*this / "second").c_str(), (*this / "root/second").c_str()), 0)
      << errno_name(errno);
  EXPECT_TRUE(exists(fast_->path() + "/all/root/second"));
}

// The pages of a mapping reach the daemon without the name of the user who stored to them.
TEST_P(ReserveTest, StoresAfterARestartStopBeforeIt) {
  start();
  const std::string path = make("f");
  ASSERT_EQ(::truncate(path.c_str(), 64 * kMiB), 0);
  ASSERT_EQ(::seteuid(kAlice.uid), 0);
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::seteuid(0), 0);
  ASSERT_TRUE(fd);
  auto* bytes = static_cast<char*>(
      ::mmap(nullptr, 64 * kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
  ASSERT_NE(bytes, MAP_FAILED);

  const CommandResult restarted = sluice({"restart", mount_->path()});
  ASSERT_TRUE(restarted.ok()) << restarted.err;

  const std::string end = as_user(kAlice, [&]() -> std::string {
    for (std::uint64_t at = 0; at < 64 * kMiB; at += 1024) bytes[at] = 1;
    return ::msync(bytes, 64 * kMiB, MS_SYNC) == 0 ? "ok" : errno_name(errno);
  });
  // A store to a passthrough file without room kills the process.
  EXPECT_TRUE(end == "ENOSPC" || end.starts_with("died")) << end;
  expect_reserve(*fast_, "mmap");
  ::munmap(bytes, 64 * kMiB);
}

}  // namespace
}  // namespace sluice::test
