// SPDX-License-Identifier: BSD-2-Clause
// Moving a file to another tier: what stays the same, use during the move, and crashes.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "base/unique_fd.hpp"
#include "tests/mount/tiering.hpp"

namespace sluice::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

class KeepTest : public TieringTest {};

TEST_F(KeepTest, MoveKeepsInodeNumberTimesModeOwnerAndXattrs) {
  start();
  const std::string path = *this / "f";
  write_file(path, pattern(150'000, 1));
  ASSERT_EQ(::chown(path.c_str(), 12, 34), 0);
  ASSERT_EQ(::chmod(path.c_str(), 04751), 0);
  ASSERT_EQ(::setxattr(path.c_str(), "user.colour", "blue", 4, 0), 0);
  ASSERT_EQ(::setxattr(path.c_str(), "trusted.kept", "yes", 3, 0), 0);
  const std::array<timespec, 2> times{{{1'500'000'000, 123'456'789}, {1'400'000'000, 987'654'321}}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times.data(), 0), 0);
  const struct stat before = lstat_of(path);
  for (const char* tier : {"hdd", "ssd", "nvme"}) {
    move("f", tier);
    const struct stat after = lstat_of(path);
    EXPECT_EQ(after.st_ino, before.st_ino) << tier;
    EXPECT_EQ(after.st_mode, before.st_mode) << tier;
    EXPECT_EQ(after.st_uid, 12u) << tier;
    EXPECT_EQ(after.st_gid, 34u) << tier;
    EXPECT_EQ(after.st_size, before.st_size) << tier;
    EXPECT_EQ(after.st_mtim.tv_sec, 1'400'000'000) << tier;
    EXPECT_EQ(after.st_mtim.tv_nsec, 987'654'321) << tier;
    EXPECT_EQ(after.st_atim.tv_sec, 1'500'000'000) << tier;
    EXPECT_EQ(after.st_atim.tv_nsec, 123'456'789) << tier;
    EXPECT_EQ(xattr_of(path, "user.colour"), "blue") << tier;
    EXPECT_EQ(xattr_of(path, "trusted.kept"), "yes") << tier;
  }
  mount().remount();
  EXPECT_EQ(lstat_of(path).st_ino, before.st_ino);
}

TEST_F(KeepTest, MoveKeepsAcls) {
  put("hdd", "f", "x");
  start();
  const std::string path = *this / "f";
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  // The format of linux/posix_acl_xattr.h: version 2; tag, permissions and id of each entry.
  const std::array<std::uint32_t, 11> acl{2,   0x0006'0001, ~0u, 0x0004'0002, 12001, 0x0000'0004,
                                          ~0u, 0x0004'0010, ~0u, 0x0000'0020, ~0u};
  ASSERT_EQ(::setxattr(path.c_str(), "system.posix_acl_access", acl.data(), sizeof acl, 0), 0)
      << errno_name(errno);
  const auto before = xattr_of(path, "system.posix_acl_access");
  const mode_t mode = lstat_of(path).st_mode;
  move("f", "nvme");
  EXPECT_EQ(xattr_of(path, "system.posix_acl_access"), before);
  EXPECT_EQ(xattr_of(on("nvme", "f"), "system.posix_acl_access"), before);
  EXPECT_EQ(lstat_of(path).st_mode, mode);
}

TEST_F(KeepTest, HolesStayHoles) {
  start();
  const std::string path = *this / "f";
  {
    const UniqueFd fd(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
    ASSERT_EQ(::pwrite(fd.get(), "begin", 5, 0), 5);
    ASSERT_EQ(::pwrite(fd.get(), "middle", 6, 300 << 20), 6);
    ASSERT_EQ(::ftruncate(fd.get(), 1LL << 30), 0);  // larger than any tier
  }
  move("f", "hdd");
  EXPECT_EQ(lstat_of(path).st_size, 1LL << 30);
  EXPECT_LE(lstat_of(path).st_blocks * 512, 64 << 10);
  EXPECT_LE(lstat_of(on("hdd", "f")).st_blocks * 512, 64 << 10);
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 8> text{};
  ASSERT_EQ(::pread(fd.get(), text.data(), 6, 300 << 20), 6);
  EXPECT_STREQ(text.data(), "middle");
  EXPECT_EQ(::lseek(fd.get(), 8 << 20, SEEK_DATA), 300 << 20);
}

TEST_F(KeepTest, AllHardLinksOfAFileMoveTogether) {
  start();
  ASSERT_EQ(::mkdir((*this / "d").c_str(), 0755), 0);
  write_file(*this / "a", "shared");
  ASSERT_EQ(::link((*this / "a").c_str(), (*this / "d/b").c_str()), 0);
  ASSERT_EQ(::link((*this / "a").c_str(), (*this / "c").c_str()), 0);
  const ino_t inode = lstat_of(*this / "a").st_ino;
  move("d/b", "hdd");
  for (const char* name : {"a", "d/b", "c"}) {
    EXPECT_EQ(tiers_with(name), "hdd") << name;
    EXPECT_EQ(lstat_of(*this / name).st_ino, inode) << name;
    EXPECT_EQ(lstat_of(*this / name).st_nlink, 3u) << name;
  }
  write_file(*this / "c", "changed");
  EXPECT_EQ(read_file(*this / "a"), "changed");
}

// For users, nothing in the directory was created, renamed or removed.
TEST_F(KeepTest, MoveKeepsTheTimesOfTheDirectory) {
  put("hdd", "d/f", "x");
  put("nvme", "d/other", "y");
  start();
  const std::array<timespec, 2> times{{{1'500'000'000, 1}, {1'400'000'000, 2}}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (*this / "d").c_str(), times.data(), 0), 0);
  for (const char* tier : {"ssd", "nvme", "hdd"}) {
    move("d/f", tier);
    const struct stat after = lstat_of(*this / "d");
    EXPECT_EQ(after.st_mtim.tv_sec, 1'400'000'000) << tier;
    EXPECT_EQ(after.st_mtim.tv_nsec, 2) << tier;
  }
  mount().remount();
  EXPECT_EQ(lstat_of(*this / "d").st_mtim.tv_sec, 1'400'000'000);
}

TEST_F(KeepTest, EmptyFileCanMove) {
  put("hdd", "empty", "");
  start();
  move("empty", "nvme");
  EXPECT_EQ(tiers_with("empty"), "nvme");
  EXPECT_EQ(lstat_of(*this / "empty").st_size, 0);
}

class BusyTest : public TieringTest {
 protected:
  void ask_for(const std::string& name, const std::string& tier) const {
    ASSERT_EQ(::setxattr((*this / name).c_str(), "user.sluice.tier", tier.data(), tier.size(), 0),
              0)
        << errno_name(errno);
  }
  bool arrives(const std::string& name, const std::string& tier,
               milliseconds limit = seconds(60)) const {
    return eventually([&] { return tier_of(name) == tier; }, limit);
  }
};

TEST_F(BusyTest, ReaderSeesTheRightBytesWhileTheFileMoves) {
  const std::string content = pattern(24 * kMiB, 5);
  put("hdd", "f", content);
  start();
  std::atomic<bool> over{false};
  std::atomic<int> wrong{0};
  std::atomic<int> reads{0};
  std::thread reader([&] {
    std::string got(256 << 10, '\0');
    while (!over) {
      const UniqueFd fd(::open((*this / "f").c_str(), O_RDONLY | O_CLOEXEC));
      if (!fd) ++wrong;
      for (std::size_t at = 0; fd && at < content.size(); at += got.size()) {
        const ssize_t count = ::pread(fd.get(), got.data(), got.size(), static_cast<off_t>(at));
        if (count != static_cast<ssize_t>(got.size()) ||
            content.compare(at, got.size(), got) != 0) {
          ++wrong;
        }
      }
      ++reads;
    }
  });
  int moved = 0;
  for (const char* tier : {"nvme", "hdd", "ssd", "nvme"}) {
    ask_for("f", tier);
    if (arrives("f", tier)) ++moved;
  }
  over = true;
  reader.join();
  EXPECT_EQ(moved, 4);
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(reads, 0);
}

TEST_F(BusyTest, OpenDescriptorWorksAfterTheMove) {
  const std::string content = pattern(16 * kMiB, 6);
  put("hdd", "f", content);
  start({"--bandwidth", "16MiB"});
  ask_for("f", "nvme");
  ASSERT_TRUE(eventually([&] { return !left_overs().empty(); }));
  const UniqueFd fd(::open((*this / "f").c_str(), O_RDONLY | O_CLOEXEC));
  std::string got(content.size(), '\0');
  const std::size_t half = got.size() / 2;
  ASSERT_EQ(::pread(fd.get(), got.data(), half, 0), static_cast<ssize_t>(half));
  ASSERT_TRUE(arrives("f", "nvme"));
  EXPECT_EQ(tiers_with("f"), "nvme");
  for (std::size_t at = half; at < got.size();) {
    const ssize_t count =
        ::pread(fd.get(), got.data() + at, got.size() - at, static_cast<off_t>(at));
    ASSERT_GT(count, 0);
    at += static_cast<std::size_t>(count);
  }
  EXPECT_TRUE(got == content);
}

TEST_F(BusyTest, FileOpenForWritingMovesAfterClose) {
  put("hdd", "f", "old");
  start();
  UniqueFd writer(::open((*this / "f").c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(::pwrite(writer.get(), "new", 3, 0), 3);
  const CommandResult result = sluice({"move", "--to", "nvme", "--wait", *this / "f"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("open for writing"), std::string::npos) << result.err;
  const Json waiting = pending();
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_EQ(waiting[0].at("path"), "/f");
  EXPECT_EQ(waiting[0].at("to"), "nvme");
  EXPECT_NE(waiting[0].at("why").get<std::string>().find("open for writing"), std::string::npos);
  EXPECT_EQ(explain("f").at("pending").at("to"), "nvme");
  EXPECT_EQ(tiers_with("f"), "hdd");
  writer.reset();
  EXPECT_TRUE(arrives("f", "nvme", seconds(3))) << "at once, not at the next retry";
  EXPECT_EQ(read_file(*this / "f"), "new");
  EXPECT_TRUE(pending().empty());
}

TEST_F(BusyTest, WriterDoesNotWaitForAMoveAndLosesNothing) {
  const std::string content = pattern(16 * kMiB, 7);
  put("hdd", "f", content);
  start({"--bandwidth", "4MiB"});
  ask_for("f", "nvme");
  ASSERT_TRUE(eventually([&] { return !left_overs().empty(); }));
  {
    const UniqueFd writer(::open((*this / "f").c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(::pwrite(writer.get(), "changed", 7, 1000), 7);
    EXPECT_LT(mount().status().at("migration").at("copied_bytes"), content.size())
        << "the writer waited for the copy";
    EXPECT_EQ(tiers_with("f"), "hdd") << "the writer waited for the move";
  }
  std::string expected = content;
  expected.replace(1000, 7, "changed");
  EXPECT_TRUE(read_file(*this / "f") == expected);
  EXPECT_TRUE(arrives("f", "nvme")) << pending();
  EXPECT_TRUE(read_file(*this / "f") == expected);
}

// Overlapping readers: there is always at least one.
class OverlappingReaders {
 public:
  explicit OverlappingReaders(const std::string& path) {
    fd_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    thread_ = std::thread([this, path] {
      char byte = 0;
      while (!over_) {
        UniqueFd next(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        if (!next || ::pread(next.get(), &byte, 1, 0) != 1) ++failed_;
        std::this_thread::sleep_for(milliseconds(5));
        fd_ = std::move(next);
      }
    });
  }
  ~OverlappingReaders() {
    over_ = true;
    thread_.join();
  }
  OverlappingReaders(const OverlappingReaders&) = delete;
  OverlappingReaders& operator=(const OverlappingReaders&) = delete;
  int failed() const { return failed_; }

 private:
  std::atomic<bool> over_{false};
  std::atomic<int> failed_{0};
  UniqueFd fd_;
  std::thread thread_;
};

TEST_F(BusyTest, SmallFileWithOverlappingReadersIsMovedEventually) {
  put("hdd", "f", pattern(10'000, 1));
  start();
  const OverlappingReaders readers(*this / "f");
  ask_for("f", "nvme");
  EXPECT_TRUE(arrives("f", "nvme")) << pending();
  EXPECT_EQ(readers.failed(), 0);
}

TEST_F(BusyTest, FileRenamedDuringItsMoveHasItsNewName) {
  const std::string content = pattern(8 * kMiB, 2);
  put("hdd", "f", content);
  start({"--bandwidth", "8MiB"});
  ask_for("f", "nvme");
  ASSERT_TRUE(eventually([&] { return !left_overs().empty(); }));
  ASSERT_EQ(::rename((*this / "f").c_str(), (*this / "g").c_str()), 0);
  EXPECT_TRUE(read_file(*this / "g") == content);
  // Whether this move continues or stops, the next one finds the file.
  eventually([&] { return mount().status().at("migration").at("active") == 0; });
  move("g", "nvme");
  EXPECT_EQ(tiers_with("g"), "nvme");
  EXPECT_EQ(tiers_with("f"), "");
  EXPECT_TRUE(read_file(*this / "g") == content);
}

TEST_F(BusyTest, FileRemovedDuringItsMoveLeavesNothing) {
  put("hdd", "f", pattern(8 * kMiB, 2));
  start({"--bandwidth", "8MiB"});
  ask_for("f", "nvme");
  ASSERT_TRUE(eventually([&] { return !left_overs().empty(); }));
  ASSERT_EQ(::unlink((*this / "f").c_str()), 0);
  EXPECT_TRUE(eventually([&] { return left_overs().empty(); }));
  EXPECT_EQ(tiers_with("f"), "");
}

// Lists in small pieces, so that moves happen in between.
std::vector<std::string> slow_listing(const std::string& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  alignas(8) std::array<char, 1024> piece{};
  std::vector<std::string> names;
  for (;;) {
    const long got = ::syscall(SYS_getdents64, fd.get(), piece.data(), piece.size());
    if (got <= 0) break;
    for (long at = 0; at < got;) {
      std::uint16_t length = 0;
      std::memcpy(&length, piece.data() + at + 16, sizeof length);
      const std::string name(piece.data() + at + 19);
      if (name != "." && name != "..") names.push_back(name);
      at += length;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  std::ranges::sort(names);
  return names;
}

TEST_F(BusyTest, ListingDuringMovesShowsEachFileOnce) {
  std::vector<std::string> expected;
  for (int i = 0; i < 300; ++i) {
    char name[16];
    std::snprintf(name, sizeof name, "f%05d", i);
    expected.push_back(name);
    put("hdd", std::string("d/") + name, name);
  }
  start();
  std::atomic<bool> over{false};
  std::atomic<int> wrong{0};
  std::atomic<int> listings{0};
  const auto keep_listing = [&](auto list) {
    while (!over) {
      if (list(*this / "d") != expected) ++wrong;
      ++listings;
      std::this_thread::sleep_for(milliseconds(20));
    }
  };
  std::thread whole([&] { keep_listing(names_in); });
  std::thread slow([&] { keep_listing(slow_listing); });
  for (const char* tier : {"ssd", "nvme", "hdd"}) {
    const CommandResult result = sluice({"move", "--to", tier, "--wait", *this / "d"});
    EXPECT_TRUE(result.ok()) << tier << ": " << result.err.substr(0, 300);
  }
  over = true;
  whole.join();
  slow.join();
  EXPECT_EQ(wrong, 0) << "of " << listings;
  EXPECT_GT(listings, 4);
  EXPECT_GE(receipts().size(), 300u) << "else nothing was shown";
}

// An open directory that is listed in pieces.
class SlowListing {
 public:
  explicit SlowListing(const std::string& directory)
      : fd_(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {}

  // Lists at most `bytes` of entries. False at the end.
  bool go_on(std::size_t bytes) {
    std::vector<char> piece(bytes);
    const long got = ::syscall(SYS_getdents64, fd_.get(), piece.data(), piece.size());
    for (long at = 0; at < got;) {
      std::uint16_t length = 0;
      std::memcpy(&length, piece.data() + at + 16, sizeof length);
      names.push_back(piece.data() + at + 19);
      at += length;
    }
    return got > 0;
  }

  std::vector<std::string> names;

 private:
  const UniqueFd fd_;
};

class CachedListingTest : public TieringTest {
 protected:
  static constexpr int kFiles = 300;

  void prepare() {
    for (int i = 0; i < kFiles; ++i) put("nvme", "d/f" + std::to_string(i), "");
    start();
    names_in(*this / "d");  // now the kernel has the names in its cache
  }
  // Lists the rest, and compares with all names.
  void expect_all(SlowListing& listing) {
    while (listing.go_on(2048)) {
    }
    const std::set<std::string> listed(listing.names.begin(), listing.names.end());
    EXPECT_EQ(listed.size(), listing.names.size()) << "a name was listed twice";
    for (int i = 0; i < kFiles; ++i) {
      const std::string name = "f" + std::to_string(i);
      EXPECT_TRUE(listed.contains(name) || removed_ == name) << name;
    }
  }

  std::string removed_;
};

TEST_F(CachedListingTest, GoesOnWhenTheDirectoryGetsASecondCopyAndTheCacheIsDropped) {
  prepare();
  SlowListing listing(*this / "d");
  ASSERT_TRUE(listing.go_on(2048));
  move("d/f7", "hdd");
  write_file(*this / "d/new", "");
  names_in(*this / "d");  // drops the names that the kernel had
  expect_all(listing);
}

TEST_F(CachedListingTest, GoesOnAfterANameThatIsNoLongerInTheCache) {
  prepare();
  write_file(*this / "d/new", "");  // the kernel reads the names anew
  SlowListing listing(*this / "d");
  ASSERT_TRUE(listing.go_on(2048));
  removed_ = listing.names.back();
  ASSERT_EQ(::unlink((*this / ("d/" + removed_)).c_str()), 0);
  names_in(*this / "d");
  names_in(*this / "d");
  expect_all(listing);
}

// The kernel would go on from the names of the listing that was started first.
TEST_F(CachedListingTest, IsNotMixedWithOneThatWasStartedBeforeAName) {
  prepare();
  write_file(*this / "d/new", "");  // the kernel reads the names anew
  SlowListing before(*this / "d");
  ASSERT_TRUE(before.go_on(2048));
  for (int i = 0; i < kFiles; ++i) write_file(*this / ("d/later" + std::to_string(i)), "");
  SlowListing after(*this / "d");
  ASSERT_TRUE(after.go_on(2048));
  expect_all(before);
  expect_all(after);
  for (int i = 0; i < kFiles; ++i)
    EXPECT_EQ(std::ranges::count(after.names, "later" + std::to_string(i)), 1) << i;
}

class PaceTest : public TieringTest {
 protected:
  std::uint64_t bytes_read_by_daemon() {
    std::ifstream file("/proc/" + std::to_string(mount().pid()) + "/io");
    std::string word;
    std::uint64_t value = 0;
    while (file >> word >> value) {
      if (word == "read_bytes:") return value;
    }
    return 0;
  }
};

TEST_F(PaceTest, VerifyReadsEachCopyBackFromTheDisk) {
  const std::string content = pattern(12 * kMiB, 4);
  std::map<bool, std::uint64_t> read;
  for (const bool verify : {false, true}) {
    start(verify ? Strings{"--verify"} : Strings{});
    write_file(*this / "f", content);  // the copy reads from the page cache
    const std::uint64_t before = bytes_read_by_daemon();
    move("f", "ssd");
    read[verify] = bytes_read_by_daemon() - before;
    EXPECT_EQ(tiers_with("f"), "ssd");
    EXPECT_TRUE(read_file(*this / "f") == content);
    ASSERT_EQ(::unlink((*this / "f").c_str()), 0);
  }
  EXPECT_GE(read[true], content.size());
  EXPECT_LT(read[false], content.size());
}

TEST_F(PaceTest, MovesStayWithinTheBandwidthLimit) {
  put("hdd", "a", pattern(4 * kMiB, 1));
  put("hdd", "b", pattern(4 * kMiB, 2));
  start({"--bandwidth", "4MiB"});
  const auto begun = steady_clock::now();
  const CommandResult result = sluice({"move", "--to", "ssd", "--wait", *this / "a", *this / "b"});
  EXPECT_TRUE(result.ok()) << result.err;
  EXPECT_GE(steady_clock::now() - begun, milliseconds(1700)) << "8 MiB take two seconds";
}

class CrashTest : public TieringTest {
 protected:
  // After a kill and a new mount, every file is complete. When the requested moves, which go on,
  // have ended, it is on one tier only, and no copies remain.
  void expect_all_well(const std::map<std::string, std::string>& contents) {
    mount().kill_daemon();
    mount().detach();
    mount().mount();
    for (const auto& [name, content] : contents) {
      EXPECT_TRUE(read_file(*this / name) == content) << name;
    }
    for (const auto& [name, content] : contents) {
      EXPECT_TRUE(eventually([&] { return tiers_with(name) == tier_of(name); }, kEnough)) << name;
    }
    EXPECT_TRUE(eventually([&] { return left_overs().empty(); }, kEnough));
    mount().umount();
    const CommandResult check = fsck();
    EXPECT_EQ(check.exit_code, 0) << check.out << check.err;
    mount().mount();
  }
  static constexpr std::chrono::seconds kEnough{60};
  // Bytes in unfinished copies.
  std::uint64_t copied() const {
    std::uint64_t bytes = 0;
    for (const std::string& each : left_overs()) {
      const auto colon = each.find(':');
      const std::string path = on(each.substr(0, colon), ".sluice/tmp/" + each.substr(colon + 1));
      struct stat st {};
      if (::lstat(path.c_str(), &st) == 0) bytes += static_cast<std::uint64_t>(st.st_size);
    }
    return bytes;
  }
};

TEST_F(CrashTest, KillDuringTheMoveOfALargeFileLosesNothing) {
  const std::map<std::string, std::string> contents{{"f", pattern(48 * kMiB, 9)}};
  put("hdd", "f", contents.at("f"));
  start({"--bandwidth", "64MiB"});
  const ino_t inode = lstat_of(*this / "f").st_ino;
  const std::vector<std::pair<std::string, std::uint64_t>> rounds{{"nvme", 1}, {"ssd", 20 * kMiB}};
  for (const auto& [to, at] : rounds) {
    ASSERT_TRUE(sluice({"move", "--to", to, *this / "f"}).ok());
    ASSERT_TRUE(eventually([&] { return copied() >= at; })) << receipts();
    expect_all_well(contents);
    EXPECT_TRUE(eventually([&] { return tier_of("f") == to; }, kEnough)) << "it goes on";
    EXPECT_EQ(lstat_of(*this / "f").st_ino, inode);
  }
  move("f", "nvme");
  EXPECT_TRUE(read_file(*this / "f") == contents.at("f"));
}

TEST_F(CrashTest, KillDuringManyMovesLosesNoFile) {
  std::map<std::string, std::string> contents;
  for (int i = 0; i < 300; ++i) {
    const std::string name = "d/" + std::to_string(i);
    contents[name] = pattern(5000 + static_cast<std::size_t>(i), static_cast<std::uint64_t>(i));
    put("hdd", name, contents[name]);
  }
  start();
  int round = 0;
  for (const std::size_t arrived : {1u, 70u, 200u}) {
    const std::string from = round % 2 == 0 ? "hdd" : "nvme";
    const std::string to = round % 2 == 0 ? "nvme" : "hdd";
    const CommandResult gathered = sluice({"move", "--to", from, "--wait", *this / "d"});
    ASSERT_TRUE(gathered.ok()) << gathered.err;
    ASSERT_TRUE(sluice({"move", "--to", to, *this / "d"}).ok());
    ASSERT_TRUE(
        eventually([&] { return exists(on(to, "d")) && names_in(on(to, "d")).size() >= arrived; }));
    expect_all_well(contents);
    ++round;
  }
}

}  // namespace
}  // namespace sluice::test
