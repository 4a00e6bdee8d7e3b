// SPDX-License-Identifier: BSD-2-Clause
// What happens if the successor of a killed daemon dies as well, or if there is no keeper to start
// one.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <set>
#include <string_view>
#include <thread>

#include "base/unique_fd.hpp"
#include "tests/fault/daemon_killer.hpp"
#include "tests/fault/tree_stage.hpp"
#include "tests/support/fault_shim.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

int code_of(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) < 0 ? errno : 0;
}

// Files that stay open while daemons come and go.
class OpenFiles {
 public:
  explicit OpenFiles(const Mount& mount) : mount_(mount) {
    for (const char* name : {"named", "deleted"}) {
      fds_.emplace_back(::open((mount / name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    }
    fds_.emplace_back(::open(mount.path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    ::unlink((mount / "deleted").c_str());
    for (const UniqueFd& fd : fds_) {
      if (!fd) fail("open a file in " + mount.path());
    }
  }

  // Reads what was written last, writes something else, and makes and removes names. Returns what
  // is wrong.
  std::string use() {
    for (const UniqueFd& fd : fds_) {
      std::string got(content_.size(), '\0');
      const ssize_t size = ::pread(fd.get(), got.data(), got.size(), 0);
      if (size < 0) return std::string("read = ") + errno_name(errno);
      if (got != content_) return "an open file has \"" + got + "\" instead of " + content_;
    }
    content_ = "round " + std::to_string(++round_);
    for (const UniqueFd& fd : fds_) {
      if (::pwrite(fd.get(), content_.data(), content_.size(), 0) < 0)
        return std::string("write = ") + errno_name(errno);
    }
    const std::string directory = mount_ / ("d" + std::to_string(round_));
    if (::mkdir(directory.c_str(), 0755) < 0) return std::string("mkdir = ") + errno_name(errno);
    if (::rmdir(directory.c_str()) < 0) return std::string("rmdir = ") + errno_name(errno);
    const std::string named = read_file(mount_ / "named");
    return named == content_ ? "" : "the named file has \"" + named + "\"";
  }
  const std::string& content() const { return content_; }
  void close() { fds_.clear(); }

 private:
  const Mount& mount_;
  std::vector<UniqueFd> fds_;
  std::string content_;
  int round_ = 0;
};

class HandoverStartTest : public testing::Test {
 protected:
  void SetUp() override {
    ::umask(0);
    [[maybe_unused]] const bool able = require_mounts("fault");
  }

  Pool pool(const std::vector<std::string>& flags = {}) {
    Pool out = stage_.pool();
    out.flags.insert(out.flags.end(), flags.begin(), flags.end());
    for (const std::string& each : shim_.environment(FaultShim::Afterwards::Successor))
      out.environment.push_back(each);
    return out;
  }

  // Kills the daemon; its successor is killed before its call number `at` below `path`. Returns
  // whether it came that far. 0: only counts its calls.
  bool kill_successor_at(const Mount& mount, std::uint64_t at, const std::string& path) {
    shim_.arm({.at = at, .action = FaultAction::KillBefore, .kinds = kAllCalls, .path = path});
    DaemonKiller(mount.keeper()).kill();
    struct statvfs st {};
    EXPECT_EQ(::statvfs(mount.path().c_str(), &st), 0) << errno_name(errno);  // waits for a daemon
    const bool reached = shim_.reached();
    shim_.disarm();
    return reached;
  }

  // Kills a successor before each of its calls below `path`.
  void kill_at_each_call(const std::string& path) {
    Mount mount(pool({"--debug=crash_limit=0"}));
    OpenFiles files(mount);
    ASSERT_EQ(files.use(), "");
    kill_successor_at(mount, 0, path);
    const std::uint64_t calls = shim_.calls();
    ASSERT_EQ(files.use(), "");
    const std::uint64_t step =
        std::max<std::uint64_t>(1, calls / static_cast<unsigned>(samples(30, 100'000)));
    std::uint64_t deaths = 0;
    for (std::uint64_t at = 1; at <= calls; at += step) {
      SCOPED_TRACE("killed before call " + std::to_string(at) + ", " + shim_.where());
      deaths += kill_successor_at(mount, at, path);
      ASSERT_EQ(files.use(), "");
    }
    std::printf("%llu calls, %llu successors died\n", static_cast<unsigned long long>(calls),
                static_cast<unsigned long long>(deaths));
    EXPECT_GT(deaths, 0u);
  }

  TempDir base_;
  MoveStage stage_{base_.path()};
  FaultShim shim_{base_ / "faults"};
};

TEST_F(HandoverStartTest, SuccessorMayDieAtEachCallOnATier) {
  kill_at_each_call(stage_.on("nvme"));
}

TEST_F(HandoverStartTest, SuccessorMayDieAtEachCallOnItsDatabase) {
  kill_at_each_call(stage_.pool().state + "/db");
}

TEST_F(HandoverStartTest, WhatIsMountedInsideStaysMounted) {
  Mount mount(pool({"--debug=crash_limit=0"}));
  const std::string inside = mount / "inside";
  ASSERT_EQ(::mkdir(inside.c_str(), 0755), 0);
  ASSERT_EQ(::mount("none", inside.c_str(), "tmpfs", 0, nullptr), 0);
  write_file(inside + "/file", "content");

  ASSERT_NO_THROW(mount.crash_daemon());

  EXPECT_TRUE(exists(inside + "/file"));
  ::umount2(inside.c_str(), MNT_DETACH);
}

TEST_F(HandoverStartTest, AnOpenFileCanBeMovedByASuccessor) {
  // With passthrough, the reader could share the choice of the writer, whose close takes effect
  // later, and the file could not move.
  Mount mount(pool({"--debug=crash_limit=0", "--debug=passthrough=off"}));
  write_file(mount / "file", "content");
  const UniqueFd fd(::open((mount / "file").c_str(), O_RDONLY | O_CLOEXEC));

  ASSERT_NO_THROW(mount.crash_daemon());

  // The kernel does not look the name up again.
  ASSERT_EQ(::fsetxattr(fd.get(), "user.sluice.tier", "hdd", 3, 0), 0) << errno_name(errno);
  EXPECT_TRUE(eventually([&] { return exists(stage_.on("hdd", "file")); })) << mount.log();
}

// A file that is opened after its last name was removed, for instance by a program that looked the
// name up just before.
TEST_F(HandoverStartTest, AFileOpenedWithoutANameCanBeReadFromASuccessor) {
  Mount mount(pool({"--debug=crash_limit=0", "--debug=passthrough=off"}));
  write_file(mount / "file", "content");
  const UniqueFd found(::open((mount / "file").c_str(), O_PATH | O_CLOEXEC));
  ASSERT_EQ(::unlink((mount / "file").c_str()), 0);
  const UniqueFd fd(
      ::open(("/proc/self/fd/" + std::to_string(found.get())).c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(fd) << errno_name(errno);

  ASSERT_NO_THROW(mount.crash_daemon());

  std::array<char, 7> content{};
  ASSERT_EQ(::read(fd.get(), content.data(), content.size()), 7) << errno_name(errno);
  EXPECT_EQ(std::string_view(content.data(), content.size()), "content");
}

TEST_F(HandoverStartTest, AListingThatHasBegunMissesNoFileThatMoves) {
  constexpr int kFiles = 1000;
  Mount mount(pool({"--debug=crash_limit=0"}));
  ASSERT_EQ(::mkdir((mount / "d").c_str(), 0755), 0);
  for (int i = 0; i < kFiles; ++i) write_file(mount / ("d/f" + std::to_string(i)), "");
  const UniqueFd fd(::open((mount / "d").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::multiset<std::string> listed;
  const auto list_some = [&] {
    alignas(8) std::array<char, 2048> buffer;
    const long got = ::getdents64(fd.get(), buffer.data(), buffer.size());
    for (long at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const dirent64*>(buffer.data() + at);
      listed.insert(entry->d_name);
      at += entry->d_reclen;
    }
    return got > 0;
  };
  ASSERT_TRUE(list_some());
  const std::vector<std::string> names = names_in(stage_.on("nvme", "d"));
  const auto later =
      std::ranges::find_if(names, [&](const std::string& name) { return !listed.contains(name); });
  ASSERT_NE(later, names.end());

  ASSERT_NO_THROW(mount.crash_daemon());
  ASSERT_EQ(send_to(mount / ("d/" + *later), "hdd"), 0);
  // Gives the move time to be wrong.
  eventually([&] { return exists(stage_.on("hdd", "d/" + *later)); }, std::chrono::seconds(1));
  while (list_some()) {
  }

  for (const std::string& name : names) EXPECT_EQ(listed.count(name), 1u) << name;
}

// The states of the threads of a process with that name, as in ps(1): "D" is blocked.
std::string states_of(pid_t pid, const std::string& thread) {
  std::string states;
  for (const std::string& task : names_in("/proc/" + std::to_string(pid) + "/task")) {
    const std::string stat = read_file("/proc/" + std::to_string(pid) + "/task/" + task + "/stat");
    const auto name = stat.find("(" + thread + ") ");
    if (name != std::string::npos) states += stat[name + thread.size() + 3];
  }
  return states;
}

// A reader has a page locked and waits for the daemon, and the daemon waits for the page. If the
// daemon is killed now, that thread of it cannot end before a successor has answered the reader.
TEST_F(HandoverStartTest, ADaemonThatWaitsForAPageCanBeReplaced) {
  Mount mount(pool({"--debug=crash_limit=0", "--debug=passthrough=off"}));
  const std::string content(1 << 20, 'c');
  write_file(mount / "file", content);
  const UniqueFd direct(::open((mount / "file").c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
  const UniqueFd file(::open((mount / "file").c_str(), O_RDONLY | O_CLOEXEC));
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_RANDOM);  // it locks no other page
  shim_.arm({.action = FaultAction::Block,
             .for_good = true,
             .kinds = static_cast<std::uint32_t>(CallKind::Read),
             .path = stage_.on("nvme")});
  std::string got(4096, '\0');
  std::thread reader([&] { ::pread(file.get(), got.data(), got.size(), 0); });
  ASSERT_TRUE(eventually([&] { return shim_.blocks(); }));
  alignas(4096) static std::array<char, 4096> bytes;
  bytes.fill('d');
  constexpr off_t kAt = 512 << 10;
  std::thread writer([&] { ::pwrite(direct.get(), bytes.data(), bytes.size(), kAt); });

  EXPECT_TRUE(eventually([&] { return states_of(mount.pid(), "sluice-notice") == "D"; }));
  ::kill(mount.pid(), SIGKILL);
  shim_.disarm();

  reader.join();
  writer.join();
  EXPECT_EQ(got, content.substr(0, got.size()));
  EXPECT_EQ(read_file(mount / "file").substr(kAt, bytes.size()),
            std::string(bytes.data(), bytes.size()));
}

TEST_F(HandoverStartTest, MountGoesOnWithoutItsKeeperUntilTheDaemonDies) {
  Mount mount(pool());
  OpenFiles files(mount);
  ASSERT_EQ(files.use(), "");
  ::kill(mount.keeper(), SIGKILL);
  ASSERT_TRUE(eventually([&] { return has_ended(mount.keeper()); }));

  EXPECT_EQ(files.use(), "");
  EXPECT_TRUE(sluice({"status", mount.path()}).ok());

  ::kill(mount.pid(), SIGKILL);
  ASSERT_TRUE(eventually([&] { return code_of(mount / "named") == ENOTCONN; }));
  files.close();
  const CommandResult umounted = sluice({"umount", mount.path()});
  EXPECT_TRUE(umounted.ok()) << umounted.err;
  ASSERT_NO_THROW(mount.mount());
  EXPECT_EQ(read_file(mount / "named"), files.content());
}

}  // namespace
}  // namespace sluice::test
