// SPDX-License-Identifier: BSD-2-Clause
// Extended attributes, times, statx, statfs, inode numbers and file handles.
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/mount/parity.hpp"
#include "tests/support/command.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

class AttributeParityTest : public ParityTest {};

TEST_F(AttributeParityTest, XattrsAreCreatedReplacedListedAndRemoved) {
  same([](Side& side) {
    side.write("f", "x");
    side.list_xattrs("f");
    side.get_xattr("f", "user.a");
    side.set_xattr("f", "user.a", "1", XATTR_REPLACE);
    side.set_xattr("f", "user.a", "1", XATTR_CREATE);
    side.set_xattr("f", "user.a", "2", XATTR_CREATE);
    side.set_xattr("f", "user.a", "3", XATTR_REPLACE);
    side.get_xattr("f", "user.a");
    side.set_xattr("f", "user.empty", "");
    side.get_xattr("f", "user.empty");
    side.set_xattr("f", "user.bytes", std::string("\0\x01\xff\n", 4));
    side.get_xattr("f", "user.bytes");
    side.list_xattrs("f");
    side.remove_xattr("f", "user.a");
    side.remove_xattr("f", "user.a");
    side.get_xattr("f", "user.a");
    side.list_xattrs("f");
    side.set_xattr("missing", "user.a", "1");
    side.moves_times("setxattr", {"f"}, [&] { side.set_xattr("f", "user.t", "1"); });
    side.moves_times("removexattr", {"f"}, [&] { side.remove_xattr("f", "user.t"); });
  });
}

TEST_F(AttributeParityTest, XattrNamesAndValuesHaveLimits) {
  same([](Side& side) {
    side.write("f", "x");
    const std::string longest = "user." + std::string(250, 'n');
    side.set_xattr("f", longest.c_str(), "v");
    side.get_xattr("f", longest.c_str());
    side.set_xattr("f", (longest + "n").c_str(), "v");
    side.set_xattr("f", "user.", "v");
    side.set_xattr("f", "", "v");
    side.set_xattr("f", "unknown.key", "v");
    side.set_xattr("f", "nodot", "v");
    side.set_xattr("f", "user.fits", std::string(2000, 'v'));
    side.set_xattr("f", "user.big", std::string(5000, 'v'));
    side.set_xattr("f", "user.big", std::string(65536, 'v'));
    side.set_xattr("f", "user.big", std::string(65537, 'v'));
    side.get_xattr("f", "user.fits");
    side.list_xattrs("f");
  });
}

TEST_F(AttributeParityTest, SmallXattrBufferFailsWithErange) {
  same([](Side& side) {
    side.write("f", "x");
    side.set_xattr("f", "user.a", "0123456789");
    std::array<char, 4> buffer{};
    side.call("size of value", ::lgetxattr((side / "f").c_str(), "user.a", nullptr, 0));
    side.call("value in 4", ::lgetxattr((side / "f").c_str(), "user.a", buffer.data(), 4));
    side.call("size of list", ::llistxattr((side / "f").c_str(), nullptr, 0));
    side.call("list in 4", ::llistxattr((side / "f").c_str(), buffer.data(), 4));
  });
}

TEST_F(AttributeParityTest, EachXattrNamespaceHasItsRules) {
  same([](Side& side) {
    side.write("f", "x");
    side.chmod("f", 0666);
    side.mkdir("d");
    side.chmod("d", 01777);
    side.symlink("f", "s");
    side.mknod("p", S_IFIFO | 0666);
    for (const char* key : {"user.k", "trusted.k", "security.k"}) {
      for (const char* name : {"f", "d", "s", "p"}) {
        side.set_xattr(name, key, "v");
        side.get_xattr(name, key);
        side.list_xattrs(name);
      }
    }
    side.as(kNobody, [](Side& nobody) {
      for (const char* key : {"user.n", "trusted.n", "security.n"}) {
        for (const char* name : {"f", "d", "s", "p"}) {
          nobody.set_xattr(name, key, "v");
          nobody.get_xattr(name, key);
        }
      }
      nobody.get_xattr("f", "trusted.k");
      nobody.list_xattrs("f");
      nobody.remove_xattr("f", "trusted.k");
      nobody.remove_xattr("f", "user.k");
    });
  });
}

TEST_F(AttributeParityTest, XattrsNeedTheFilesPermissions) {
  same([](Side& side) {
    side.write("f", "x");
    side.set_xattr("f", "user.a", "1");
    for (const mode_t mode : {0600, 0604, 0602, 0606}) {
      side.chmod("f", mode);
      side.as(kNobody, [](Side& nobody) {
        nobody.get_xattr("f", "user.a");
        nobody.set_xattr("f", "user.a", "2");
        nobody.list_xattrs("f");
      });
    }
  });
}

TEST_F(AttributeParityTest, XattrsOfAnOpenAndUnlinkedFileWork) {
  same([](Side& side) {
    const UniqueFd fd = side.open("f", O_CREAT | O_RDWR);
    side.call("fsetxattr", ::fsetxattr(fd.get(), "user.a", "1", 1, 0));
    side.unlink("f");
    side.call("fsetxattr", ::fsetxattr(fd.get(), "user.b", "22", 2, 0));
    std::array<char, 64> buffer{};
    side.call("fgetxattr", ::fgetxattr(fd.get(), "user.a", buffer.data(), buffer.size()));
    side.call("flistxattr", ::flistxattr(fd.get(), buffer.data(), buffer.size()));
    side.call("fremovexattr", ::fremovexattr(fd.get(), "user.a"));
    side.call("flistxattr", ::flistxattr(fd.get(), buffer.data(), buffer.size()));
  });
}

std::string times_of(const struct stat& st) {
  return std::to_string(st.st_atim.tv_sec) + "." + std::to_string(st.st_atim.tv_nsec) + " " +
         std::to_string(st.st_mtim.tv_sec) + "." + std::to_string(st.st_mtim.tv_nsec);
}

TEST_F(AttributeParityTest, TimesAreSetToTheNanosecond) {
  same([](Side& side) {
    side.write("f", "x");
    side.mkdir("d");
    side.symlink("f", "s");
    const std::vector<std::array<timespec, 2>> values = {
        {{{1'000'000'000, 1}, {2'000'000'000, 999'999'999}}},
        {{{0, 0}, {0, 0}}},
        {{{-1, 5}, {-2, 6}}},
        {{{4'294'967'295, 7}, {4'294'967'296, 8}}}};
    for (const auto& value : values) {
      for (const char* name : {"f", "d", "s"}) {
        side.done("utimensat",
                  ::utimensat(AT_FDCWD, (side / name).c_str(), value.data(), AT_SYMLINK_NOFOLLOW));
        side.note(std::string("times of ") + name, times_of(lstat_of(side / name)));
      }
    }
    const std::array<timespec, 2> invalid{{{0, 1'000'000'000}, {0, 0}}};
    side.done("utimensat", ::utimensat(AT_FDCWD, (side / "f").c_str(), invalid.data(), 0));
  });
}

TEST_F(AttributeParityTest, TimesCanBeNowOrLeftAlone) {
  same([](Side& side) {
    side.write("f", "x");
    const auto set = [&](timespec access, timespec modification) {
      const std::array<timespec, 2> times{access, modification};
      side.done("utimensat", ::utimensat(AT_FDCWD, (side / "f").c_str(), times.data(), 0));
    };
    const timespec omit{0, UTIME_OMIT}, now{0, UTIME_NOW}, fixed{1'234'567'890, 123'456'789};
    set(fixed, fixed);
    set(omit, {5, 6});
    side.note("atime kept", times_of(lstat_of(side / "f")));
    set({7, 8}, omit);
    side.note("mtime kept", times_of(lstat_of(side / "f")));
    set(omit, omit);
    side.note("both kept", times_of(lstat_of(side / "f")));
    set(now, omit);
    side.note("atime is now", lstat_of(side / "f").st_atim.tv_sec > fixed.tv_sec);
    set(omit, now);
    side.note("mtime is now", lstat_of(side / "f").st_mtim.tv_sec > fixed.tv_sec);
    set(fixed, fixed);
    side.done("null", ::utimensat(AT_FDCWD, (side / "f").c_str(), nullptr, 0));
    side.note("both are now", lstat_of(side / "f").st_mtim.tv_sec > fixed.tv_sec &&
                                  lstat_of(side / "f").st_atim.tv_sec > fixed.tv_sec);
    side.moves_times("utimensat", {"f"}, [&] { set(fixed, fixed); });
  });
}

TEST_F(AttributeParityTest, OnlyTheOwnerSetsTimesAndWritersSetThemToNow) {
  same([](Side& side) {
    side.write("f", "x");
    side.chown("f", kAlice.uid, kAlice.gid);
    for (const mode_t mode : {0644, 0666}) {
      side.chmod("f", mode);
      for (const User& user : {kAlice, kBob}) {
        side.as(user, [](Side& other) {
          const std::array<timespec, 2> fixed{{{1, 2}, {3, 4}}};
          const std::array<timespec, 2> now{{{0, UTIME_NOW}, {0, UTIME_NOW}}};
          const std::array<timespec, 2> half{{{0, UTIME_OMIT}, {0, UTIME_NOW}}};
          const std::array<timespec, 2> nothing{{{0, UTIME_OMIT}, {0, UTIME_OMIT}}};
          const std::string path = other / "f";
          other.done("fixed", ::utimensat(AT_FDCWD, path.c_str(), fixed.data(), 0));
          other.done("now", ::utimensat(AT_FDCWD, path.c_str(), now.data(), 0));
          other.done("null", ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0));
          other.done("half", ::utimensat(AT_FDCWD, path.c_str(), half.data(), 0));
          other.done("nothing", ::utimensat(AT_FDCWD, path.c_str(), nothing.data(), 0));
        });
      }
    }
  });
}

TEST_F(AttributeParityTest, TimesSetOnAnOpenFileSurviveItsClose) {
  same([](Side& side) {
    for (const std::size_t size : {std::size_t{10}, std::size_t{300'000}}) {
      const std::string name = "f" + std::to_string(size);
      {
        const UniqueFd fd = side.open(name, O_CREAT | O_RDWR);
        const std::string content = pattern(size, 1);
        side.call("write", ::write(fd.get(), content.data(), content.size()));
        const std::array<timespec, 2> times{{{11, 22}, {33, 44}}};
        side.done("futimens", ::futimens(fd.get(), times.data()));
      }
      side.note("times", times_of(lstat_of(side / name)));
    }
  });
}

TEST_F(AttributeParityTest, StatxAnswersTheBasicFields) {
  same([](Side& side) {
    side.write("f", "hello");
    struct statx stx {};
    side.done("statx", ::statx(AT_FDCWD, (side / "f").c_str(), AT_SYMLINK_NOFOLLOW,
                               STATX_BASIC_STATS | STATX_BTIME, &stx));
    side.note("basic fields", (stx.stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS);
    side.note("size", static_cast<long>(stx.stx_size));
    side.note("mode", stx.stx_mode);
    side.done("force sync", ::statx(AT_FDCWD, (side / "f").c_str(), AT_STATX_FORCE_SYNC,
                                    STATX_BASIC_STATS, &stx));
    side.done("dont sync",
              ::statx(AT_FDCWD, (side / "f").c_str(), AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &stx));
    side.done("statx of nothing",
              ::statx(AT_FDCWD, (side / "missing").c_str(), 0, STATX_BASIC_STATS, &stx));
    side.note("blocks are counted", lstat_of(side / "f").st_blksize > 0);
  });
}

TEST_F(AttributeParityTest, StatfsLooksLikeARealFilesystem) {
  same([](Side& side) {
    struct statvfs fs {};
    side.done("statvfs", ::statvfs(side.directory().c_str(), &fs));
    side.note("block size", fs.f_frsize > 0 && fs.f_bsize > 0);
    side.note("blocks", fs.f_blocks > 0 && fs.f_bfree <= fs.f_blocks && fs.f_bavail <= fs.f_bfree);
    side.note("inodes", fs.f_files > 0 && fs.f_ffree <= fs.f_files);
    side.note("longest name", static_cast<long>(fs.f_namemax));
    const UniqueFd fd = side.open(".", O_RDONLY | O_DIRECTORY);
    side.done("fstatvfs", ::fstatvfs(fd.get(), &fs));
  });
}

TEST_F(AttributeParityTest, InodeNumbersAreUniqueAndStable) {
  same([](Side& side) {
    std::vector<ino_t> inodes;
    for (int i = 0; i < 200; ++i) {
      const std::string name = "f" + std::to_string(i);
      write_file(side / name, name);
      inodes.push_back(lstat_of(side / name).st_ino);
    }
    std::vector<ino_t> sorted = inodes;
    std::ranges::sort(sorted);
    side.note("unique", std::ranges::adjacent_find(sorted) == sorted.end());
    side.rename("f0", "g");
    side.note("rename keeps it", lstat_of(side / "g").st_ino == inodes[0]);
    run_command({"sh", "-c", "echo 2 > /proc/sys/vm/drop_caches"});
    side.note("forgetting keeps it", lstat_of(side / "f1").st_ino == inodes[1]);
    const UniqueFd fd = side.open("f2", O_RDONLY);
    struct stat st {};
    side.done("fstat", ::fstat(fd.get(), &st));
    side.note("fstat agrees", st.st_ino == inodes[2]);
  });
}

// A file handle as name_to_handle_at fills it in.
class Handle {
 public:
  Handle() : bytes_(sizeof(file_handle) + MAX_HANDLE_SZ) { get()->handle_bytes = MAX_HANDLE_SZ; }
  file_handle* get() { return reinterpret_cast<file_handle*>(bytes_.data()); }

  int name(const std::string& path) {
    int mount_id = 0;
    return ::name_to_handle_at(AT_FDCWD, path.c_str(), get(), &mount_id, 0);
  }
  UniqueFd open(const std::string& in, int flags) {
    const UniqueFd mount(::open(in.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return UniqueFd(::open_by_handle_at(mount.get(), get(), flags | O_CLOEXEC));
  }

 private:
  std::vector<char> bytes_;
};

std::string content_of(const UniqueFd& fd) {
  if (!fd) return errno_name(errno);
  std::string content(100, '\0');
  const ssize_t got = ::pread(fd.get(), content.data(), content.size(), 0);
  return got < 0 ? errno_name(errno) : content.substr(0, static_cast<std::size_t>(got));
}

TEST_F(AttributeParityTest, FileHandlesWorkAfterCachesAreDropped) {
  same([](Side& side) {
    side.mkdir("d");
    side.write("d/f", "by handle");
    Handle file, directory;
    side.done("name file", file.name(side / "d/f"));
    side.done("name directory", directory.name(side / "d"));
    side.note("content", content_of(file.open(side.directory(), O_RDONLY)));
    side.rename("d", "e");
    side.rename("e/f", "e/g");
    run_command({"sh", "-c", "echo 2 > /proc/sys/vm/drop_caches"});
    side.note("content, cold", content_of(file.open(side.directory(), O_RDONLY)));
    side.done("open directory, cold",
              directory.open(side.directory(), O_RDONLY | O_DIRECTORY).get());
    side.unlink("e/g");
    run_command({"sh", "-c", "echo 2 > /proc/sys/vm/drop_caches"});
    side.done("open of an unlinked file", file.open(side.directory(), O_RDONLY).get());
    side.write("e/g", "another");
    side.done("open after its name was reused", file.open(side.directory(), O_RDONLY).get());
  });
}

TEST_F(AttributeParityTest, FileHandlesAndInodeNumbersSurviveARemount) {
  if (!mount()) GTEST_SKIP() << "SLUICE_TEST_MOUNT can't be remounted";
  const std::string path = *mount() / "handle";
  write_file(path, "by handle");
  const ino_t inode = lstat_of(path).st_ino;
  Handle handle;
  ASSERT_EQ(handle.name(path), 0) << errno_name(errno);
  mount()->remount();
  EXPECT_EQ(content_of(handle.open(mount()->path(), O_RDONLY)), "by handle");
  EXPECT_EQ(lstat_of(path).st_ino, inode);
  ::unlink(path.c_str());
}

TEST_F(AttributeParityTest, InotifyReportsChanges) {
  same([](Side& side) {
    const UniqueFd watch(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    side.done("watch", ::inotify_add_watch(watch.get(), side.directory().c_str(), IN_ALL_EVENTS));
    side.write("f", "x");
    side.read("f");
    side.rename("f", "g");
    side.chmod("g", 0600);
    side.mkdir("d");
    side.unlink("g");
    side.rmdir("d");
    std::array<char, 8192> buffer{};
    const ssize_t size = ::read(watch.get(), buffer.data(), buffer.size());
    for (ssize_t at = 0; at < size;) {
      inotify_event event{};
      std::memcpy(&event, buffer.data() + at, sizeof event);
      const char* name = event.len ? buffer.data() + at + sizeof event : "";
      side.note(std::string("event on ") + name, event.mask);
      at += static_cast<ssize_t>(sizeof event + event.len);
    }
  });
}

}  // namespace
}  // namespace sluice::test
