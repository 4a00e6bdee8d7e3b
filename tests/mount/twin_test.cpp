// SPDX-License-Identifier: BSD-2-Clause
// Twins: a promoted file that goes back unchanged is not copied, and one that was changed in any
// way never comes back as it was before.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <ostream>
#include <string>

#include "base/unique_fd.hpp"
#include "tests/mount/tiering.hpp"
#include "tests/support/wait.hpp"

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
  // A twin gets its note after the move has ended.
  bool twins_have_notes() const {
    return std::ranges::all_of(twins(), [this](const std::string& name) {
      return xattr_of(on("hdd", ".sluice/twins/" + name), "trusted.sluice.twin").has_value();
    });
  }
  testing::AssertionResult last_was_twin() const {
    const Json newest = receipts()[0];
    if (newest.at("reason").get<std::string>().find("twin") != std::string::npos &&
        newest.at("bytes") == 0)
      return testing::AssertionSuccess();
    return testing::AssertionFailure() << newest;
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

// Filesystems whose times do not tell every change. They are mounted over the fast tier.
class BlindTierTest : public TwinTest {
 protected:
  void TearDown() override {
    stop();
    if (is_covered_) ::umount2(on("nvme", "").c_str(), MNT_DETACH);
  }
  void cover(const std::string& source, const char* type) {
    ASSERT_EQ(::mount(source.c_str(), on("nvme", "").c_str(), type, 0, nullptr), 0);
    is_covered_ = true;
  }
  bool is_covered_ = false;
};

// tmpfs maps a page that is read writable, and does not hear of the stores to it.
TEST_F(BlindTierTest, AStoreThatTmpfsDoesNotNoticeIsNotLost) {
  put_old("f");
  put_old("g");
  cover("tmpfs", "tmpfs");
  start({"--small-file", "0"});  // in passthrough
  for (const char* name : {"f", "g"}) move(name, "nvme");
  ASSERT_EQ(twins().size(), 2u);
  const struct stat before = lstat_of(on("nvme", "f"));
  UniqueFd fd = writable(*this / "f");
  void* at = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(at, MAP_FAILED);
  fd.reset();
  static_cast<volatile char*>(at)[12345] = static_cast<volatile char*>(at)[12345] ^ 1;
  ASSERT_EQ(::munmap(at, kSize), 0);
  const struct stat after = lstat_of(on("nvme", "f"));
  if (before.st_ctim.tv_nsec != after.st_ctim.tv_nsec) std::printf("this tmpfs noticed\n");
  const std::string content = read_file(*this / "f");
  ASSERT_NE(content, pattern(kSize, 1));
  for (const char* name : {"f", "g"}) move(name, "hdd");
  EXPECT_TRUE(last_was_twin()) << "g, by its bytes";
  EXPECT_EQ(read_file(*this / "f"), content);
  EXPECT_EQ(read_file(*this / "g"), pattern(kSize, 1));
}

// ext4 with small inodes keeps whole seconds: a write right after the move may leave all times as
// they were.
TEST_F(BlindTierTest, AWriteInTheSameSecondIsNotLost) {
  const std::string image = base_ / "small.img";
  ASSERT_TRUE(run_command({"truncate", "-s", "64M", image}).ok());
  ASSERT_TRUE(run_command({"mkfs.ext4", "-q", "-F", "-I", "128", image}).ok());
  const LoopFs seconds(on("nvme", ""), "ext4", image);
  for (int i = 0; i < 8; ++i) put("hdd", "f" + std::to_string(i), pattern(1000, 1));
  start();
  for (int i = 0; i < 8; ++i) {
    const std::string name = "f" + std::to_string(i);
    // Its mtime is this second, so that the write does not change it.
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    const std::array<timespec, 2> times{{{now.tv_sec, 0}, {now.tv_sec, 0}}};
    ASSERT_EQ(::utimensat(AT_FDCWD, on("hdd", name).c_str(), times.data(), 0), 0);
    if (now.tv_nsec < 150'000'000) ::usleep(150'000);
    move(name, "nvme");
    ASSERT_EQ(::pwrite(writable(*this / name).get(), "X", 1, 500), 1);
    const std::string content = read_file(*this / name);
    move(name, "hdd");
    EXPECT_EQ(read_file(*this / name), content) << name;
  }
  stop();
}

TEST_F(TwinTest, SurvivesTheDaemonAndARemount) {
  put_old("f");
  start();
  move("f", "nvme");
  ASSERT_TRUE(eventually([&] { return twins_have_notes(); }));
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

// Something that needs a little room on hdd.
struct Act {
  const char* name;
  std::function<long(const std::string& root)> act;
};

void PrintTo(const Act& act, std::ostream* out) { *out << act.name; }

class FullTierTest : public TwinTest, public testing::WithParamInterface<Act> {};

// Twins must not be the reason why any operation finds the disk full.
TEST_P(FullTierTest, TwinsGoBeforeItFails) {
  for (int i = 0; i < 8; ++i) put_old("f" + std::to_string(i), 4 << 20);
  put("hdd", "d/target", "x");
  leave_out("ssd");
  start();
  for (int i = 0; i < 8; ++i) move("f" + std::to_string(i), "nvme");
  ASSERT_TRUE(tell({"pin", "hdd", *this / ""}).ok());
  // Past the mount and at once, so that hardly anybody can make room before.
  const UniqueFd fd(::open(on("hdd", "ballast").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600));
  struct statvfs all {};
  ASSERT_EQ(::statvfs(on("hdd", "").c_str(), &all), 0);
  const auto free = static_cast<off_t>(all.f_bavail * all.f_frsize);
  ASSERT_EQ(::fallocate(fd.get(), 0, 0, free - (64 << 10)), 0);
  const std::string piece(1024, 'b');
  while (::write(fd.get(), piece.data(), piece.size()) > 0) continue;
  const std::size_t before = twins().size();
  EXPECT_GE(GetParam().act(*this / ""), 0) << errno_name(errno);
  EXPECT_GT(before, 0u) << "the test was too slow to test anything";
  EXPECT_LT(twins().size(), 8u);
}

const std::string kLong(200, 'n');

INSTANTIATE_TEST_SUITE_P(
    For, FullTierTest,
    testing::Values(
        Act{"mkdir", [](const std::string& root) { return ::mkdir((root + "new").c_str(), 0755); }},
        Act{"symlink",
            [](const std::string& root) {
              return ::symlink(kLong.c_str(), (root + "d/symlink").c_str());
            }},
        Act{"setxattr",
            [](const std::string& root) {
              const std::string value(600, 'v');  // more than an inode has room for
              return ::setxattr((root + "d/target").c_str(), "user.k", value.data(), value.size(),
                                0);
            }},
        Act{"link",
            [](const std::string& root) {
              int done = 0;  // a directory needs another block for some of these
              for (int i = 0; i < 40 && done == 0; ++i) {
                done = ::link((root + "d/target").c_str(),
                              (root + "d/" + kLong + std::to_string(i)).c_str());
              }
              return done;
            }},
        Act{"write",
            [](const std::string& root) {
              const std::string piece = pattern(1 << 20, 5);
              return ::pwrite(writable(root + "d/target").get(), piece.data(), piece.size(), 0);
            }},
        Act{"fallocate",
            [](const std::string& root) {
              return ::fallocate(writable(root + "d/target").get(), 0, 0, 1 << 20);
            }}),
    [](const auto& act) { return std::string(act.param.name); });

TEST_F(TwinTest, ATierThatGoesAwayIsLetGoAndItsTwinsAreFoundAgain) {
  put_old("f");
  put_old("g");
  start();
  for (const char* name : {"f", "g"}) move(name, "nvme");
  disk("hdd").vanish();
  EXPECT_TRUE(eventually([&] { return disk("hdd").is_free(); })) << "the daemon holds it";
  ASSERT_EQ(::pwrite(writable(*this / "g").get(), "X", 1, 12345), 1);
  ASSERT_EQ(::chmod((*this / "f").c_str(), 0640), 0);
  disk("hdd").come_back();
  ASSERT_TRUE(eventually([&] { return ask({"status"}).at("tiers").at(2).at("online"); }));
  move("f", "hdd");
  EXPECT_TRUE(last_was_twin());
  EXPECT_EQ(lstat_of(*this / "f").st_mode & 07777, 0640u);
  const std::string content = read_file(*this / "g");
  move("g", "hdd");
  EXPECT_FALSE(last_was_twin());
  EXPECT_EQ(read_file(*this / "g"), content);
  EXPECT_NE(content, pattern(kSize, 1));
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

// f went from hdd to ssd and on to nvme, and got another name. A twin that is left of its first
// move must not come back as a second f when ssd dies.
TEST_F(TwinTest, ALostDiskThatTheFileHadLeftBringsNothingBack) {
  put_old("f");
  start();
  move("f", "ssd");
  ASSERT_EQ(twins().size(), 1u);
  const std::string twin = on("hdd", ".sluice/twins/") + twins()[0], kept = on("hdd", "kept");
  // What a crash right after the switch may leave.
  ASSERT_EQ(::link(twin.c_str(), kept.c_str()), 0);
  move("f", "nvme");
  EXPECT_TRUE(eventually([&] { return twins().empty(); }));
  ASSERT_EQ(::rename(kept.c_str(), twin.c_str()), 0);
  ASSERT_EQ(::rename((*this / "f").c_str(), (*this / "g").c_str()), 0);
  // A kernel that is short of memory forgets files, and the daemon then knows no place of theirs.
  const UniqueFd remembered(::open((*this / "g").c_str(), O_PATH | O_CLOEXEC));
  disk("ssd").vanish();
  ASSERT_TRUE(eventually([&] { return !ask({"status"}).at("tiers").at(1).at("online"); }));
  const CommandResult said = tell({"tier", "drain", "ssd", "--lost"});
  ASSERT_TRUE(said.ok()) << said.err;
  EXPECT_FALSE(exists(*this / "f")) << said.out;
  EXPECT_EQ(read_file(*this / "g"), pattern(kSize, 1));
}

}  // namespace
}  // namespace sluice::test
