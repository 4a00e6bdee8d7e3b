// SPDX-License-Identifier: BSD-2-Clause
// Twins: a promoted file that goes back unchanged is not copied, and one that was changed in any
// way never comes back as it was before.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>

#include "base/unique_fd.hpp"
#include "tests/mount/tiering.hpp"

namespace sluice::test {
namespace {

constexpr std::size_t kSize = 3 << 20;

class TwinTest : public TieringTest {
 protected:
  // A file on hdd that is not new, so that its twin is kept.
  void put_old(const std::string& name, std::size_t size = kSize) {
    put("hdd", name, pattern(size, 1));
    set_old(on("hdd", name));
  }
  static void set_old(const std::string& path) {
    const std::array<timespec, 2> times{{{1'500'000'000, 1}, {1'400'000'000, 2}}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times.data(), 0), 0);
  }
  Strings twins() const { return names_in(on("hdd", ".sluice/twins")); }
  bool last_was_twin() const {
    const Json newest = receipts()[0];
    return newest.at("reason").get<std::string>().find("twin") != std::string::npos &&
           newest.at("bytes") == 0;
  }
  std::uint64_t copied_bytes() const {
    return ask({"status"}).at("migration").at("copied_bytes").get<std::uint64_t>();
  }
};

TEST_F(TwinTest, GoingBackUnchangedCopiesNothing) {
  put_old("d/f");
  const ino_t inode = lstat_of(on("hdd", "d/f")).st_ino;
  start();
  const struct stat before = lstat_of(*this / "d/f");
  move("d/f", "nvme");
  EXPECT_EQ(tiers_with("d/f"), "nvme");
  ASSERT_EQ(twins().size(), 1u);
  EXPECT_EQ(explain("d/f").at("twin").at("tier"), "hdd");
  const std::uint64_t copied = copied_bytes();
  move("d/f", "hdd");
  EXPECT_TRUE(last_was_twin());
  EXPECT_EQ(copied_bytes(), copied);
  EXPECT_EQ(tiers_with("d/f"), "hdd");
  EXPECT_EQ(lstat_of(on("hdd", "d/f")).st_ino, inode) << "the original itself is back";
  EXPECT_TRUE(twins().empty());
  EXPECT_FALSE(xattr_of(on("hdd", "d/f"), "trusted.sluice.twin"));
  const struct stat after = lstat_of(*this / "d/f");
  EXPECT_EQ(after.st_ino, before.st_ino);
  EXPECT_EQ(after.st_ctim.tv_nsec, before.st_ctim.tv_nsec);
  EXPECT_EQ(read_file(*this / "d/f"), pattern(kSize, 1));
  stop();
  EXPECT_TRUE(fsck().ok());
}

TEST_F(TwinTest, ChangedMetadataComesAlong) {
  put_old("f");
  start();
  move("f", "nvme");
  ASSERT_EQ(::chown((*this / "f").c_str(), 12, 34), 0);
  ASSERT_EQ(::chmod((*this / "f").c_str(), 0640), 0);
  ASSERT_EQ(::setxattr((*this / "f").c_str(), "user.k", "v", 1, 0), 0);
  ASSERT_EQ(::mkdir((*this / "e").c_str(), 0755), 0);
  ASSERT_EQ(::rename((*this / "f").c_str(), (*this / "e/g").c_str()), 0);
  ASSERT_EQ(::link((*this / "e/g").c_str(), (*this / "h").c_str()), 0);
  move("e/g", "hdd");
  EXPECT_TRUE(last_was_twin());
  for (const char* name : {"e/g", "h"}) {
    EXPECT_EQ(tiers_with(name), "hdd") << name;
    EXPECT_EQ(read_file(*this / name), pattern(kSize, 1)) << name;
    EXPECT_EQ(lstat_of(*this / name).st_uid, 12u);
    EXPECT_EQ(lstat_of(*this / name).st_mode & 07777, 0640u);
    EXPECT_EQ(xattr_of(*this / name, "user.k"), "v");
  }
  EXPECT_EQ(lstat_of(on("hdd", "h")).st_nlink, 2u);
}

// A way to change a file's bytes. The twin must not be used afterwards.
struct Change {
  const char* name;
  std::function<void(const std::string& path)> act;
};

UniqueFd writable(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
}

const std::vector<Change>& changes() {
  static const std::vector<Change> kChanges{
      {"write",
       [](const std::string& path) {
         ASSERT_EQ(::pwrite(writable(path).get(), "X", 1, 12345), 1);
       }},
      {"write with the old times",
       [](const std::string& path) {
         const struct stat st = lstat_of(path);
         ASSERT_EQ(::pwrite(writable(path).get(), "X", 1, 12345), 1);
         const std::array<timespec, 2> times{st.st_atim, st.st_mtim};
         ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times.data(), 0), 0);
       }},
      {"truncate", [](const std::string& path) { ASSERT_EQ(::truncate(path.c_str(), 1000), 0); }},
      {"truncate and grow",
       [](const std::string& path) {
         ASSERT_EQ(::truncate(path.c_str(), 1000), 0);
         ASSERT_EQ(::truncate(path.c_str(), kSize), 0);
       }},
      {"punch a hole",
       [](const std::string& path) {
         ASSERT_EQ(::fallocate(writable(path).get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                               4096, 8192),
                   0);
       }},
      {"store to a mapping",
       [](const std::string& path) {
         UniqueFd fd = writable(path);
         void* at = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
         ASSERT_NE(at, MAP_FAILED);
         fd.reset();
         static_cast<char*>(at)[12345] ^= 1;
         ASSERT_EQ(::munmap(at, kSize), 0);
       }},
  };
  return kChanges;
}

TEST_F(TwinTest, AChangedFileIsNeverReplacedByItsTwin) {
  for (std::size_t i = 0; i < changes().size(); ++i) put_old("f" + std::to_string(i));
  start();
  for (std::size_t i = 0; i < changes().size(); ++i) {
    const std::string name = "f" + std::to_string(i);
    move(name, "nvme");
    ASSERT_FALSE(explain(name).at("twin").is_null()) << changes()[i].name;
    changes()[i].act(*this / name);
    const std::string content = read_file(*this / name);
    ASSERT_NE(content, pattern(kSize, 1)) << changes()[i].name;
    move(name, "hdd");
    EXPECT_FALSE(last_was_twin()) << changes()[i].name;
    EXPECT_EQ(read_file(*this / name), content) << changes()[i].name;
    ASSERT_EQ(::unlink((*this / name).c_str()), 0);
  }
}

TEST_F(TwinTest, SurvivesTheDaemonAndARemount) {
  put_old("f");
  start();
  move("f", "nvme");
  mount().kill_daemon();
  mount().detach();
  mount().mount();
  move("f", "hdd");
  EXPECT_TRUE(last_was_twin());
  move("f", "nvme");
  mount().remount();
  move("f", "hdd");
  EXPECT_TRUE(last_was_twin());
  EXPECT_EQ(read_file(*this / "f"), pattern(kSize, 1));
}

TEST_F(TwinTest, AFileThatIsRemovedTakesItsTwinAlong) {
  put_old("f");
  put_old("g");
  start();
  move("f", "nvme");
  move("g", "nvme");
  ASSERT_EQ(twins().size(), 2u);
  ASSERT_EQ(::unlink((*this / "f").c_str()), 0);
  write_file(*this / "other", "x");
  ASSERT_EQ(::rename((*this / "other").c_str(), (*this / "g").c_str()), 0);
  EXPECT_TRUE(eventually([&] { return twins().empty(); }));
}

TEST_F(TwinTest, CountsAsFreeAndGoesBeforeENOSPC) {
  for (int i = 0; i < 6; ++i) put_old("f" + std::to_string(i), 12 << 20);
  leave_out("ssd");
  start();
  for (int i = 0; i < 6; ++i) move("f" + std::to_string(i), "nvme");
  EXPECT_EQ(twins().size(), 6u);
  const Json tier = ask({"status"}).at("tiers").at(1);
  EXPECT_EQ(tier.at("twins"), 6);
  struct statvfs all {};
  ASSERT_EQ(::statvfs((*this / "").c_str(), &all), 0);
  // Fill hdd to its end through the mount.
  ASSERT_TRUE(tell({"pin", "hdd", *this / ""}).ok());
  const std::uint64_t room = tier.at("free").get<std::uint64_t>();
  const std::string piece = pattern(1 << 20, 3);
  const UniqueFd fd(::open((*this / "big").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  std::uint64_t written = 0;
  while (written + piece.size() < room - (16 << 20)) {
    ASSERT_EQ(::pwrite(fd.get(), piece.data(), piece.size(), static_cast<off_t>(written)),
              static_cast<ssize_t>(piece.size()))
        << "after " << written << " of " << room << ": " << errno_name(errno);
    written += piece.size();
  }
  EXPECT_LT(twins().size(), 6u);
}

TEST_F(TwinTest, CanBeTurnedOff) {
  put_old("f");
  start();
  move("f", "nvme");
  ASSERT_EQ(twins().size(), 1u);
  start({"--no-twins"});
  EXPECT_TRUE(eventually([&] { return twins().empty(); }));
  move("f", "hdd");
  EXPECT_FALSE(last_was_twin());
  move("f", "nvme");
  EXPECT_TRUE(twins().empty());
}

TEST_F(TwinTest, BringsFilesOfALostDiskBack) {
  put_old("d/f");
  start();
  write_file(*this / "only-fast", "x");
  move("d/f", "nvme");
  disk("nvme").vanish();
  ASSERT_TRUE(eventually([&] { return !ask({"status"}).at("tiers").at(0).at("online"); }));
  const CommandResult said = tell({"tier", "drain", "nvme", "--lost"});
  ASSERT_TRUE(said.ok()) << said.err;
  EXPECT_NE(said.out.find("/d/f"), std::string::npos) << said.out;
  EXPECT_EQ(said.out.find("only-fast"), std::string::npos) << said.out;
  EXPECT_EQ(read_file(*this / "d/f"), pattern(kSize, 1));
  EXPECT_EQ(tiers_with("d/f"), "hdd");
}

}  // namespace
}  // namespace sluice::test
