// SPDX-License-Identifier: BSD-2-Clause
// Mounts that `sluice mount` refuses: exit status 1, or 2 for wrong options, and a message that
// names the tier or the path.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <stdexcept>

#include "base/unique_fd.hpp"
#include "tests/support/files.hpp"
#include "tests/support/janitor.hpp"
#include "tests/support/loop_fs.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

class MountErrorsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!require_mounts("mount")) return;
    mountpoint_ = base_.make_dir("mnt");
    janitor::watch_mount(mountpoint_);
  }
  void TearDown() override {
    // A mount that should have been refused must not outlive the test.
    ::umount2(mountpoint_.c_str(), MNT_DETACH);
    janitor::forget(mountpoint_);
  }

  Pool pool(std::vector<std::string> tiers) const {
    return {std::move(tiers), base_ / "state", mountpoint_};
  }

  static CommandResult mount(const Pool& pool) {
    std::vector<std::string> arguments = pool.mount_arguments();
    arguments.insert(arguments.begin(), "mount");
    return sluice(arguments);
  }

  // Expects a failure whose message contains `word`, and that nothing is mounted.
  void expect_refused(const Pool& wanted, const std::string& word, int exit_code = 1) const {
    const CommandResult result = mount(wanted);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_NE(result.err.find(word), std::string::npos) << "the message: " << result.err;
    EXPECT_EQ(lstat_of(mountpoint_).st_dev, lstat_of(base_.path()).st_dev)
        << "something is mounted";
    if (result.ok()) sluice({"umount", wanted.mountpoint});
  }

  TempDir base_;
  std::string mountpoint_;
};

TEST_F(MountErrorsTest, RefusesOneDirectoryAsTwoTiers) {
  const std::string a = base_.make_dir("a");
  expect_refused(pool({"fast=" + a, "slow=" + a}), a);
}

TEST_F(MountErrorsTest, RefusesOneDirectoryAsTwoTiersByALink) {
  const std::string a = base_.make_dir("a");
  ASSERT_EQ(::symlink("a", (base_ / "alias").c_str()), 0);
  expect_refused(pool({"fast=" + a, "slow=" + (base_ / "alias")}), "slow");
  expect_refused(pool({"fast=" + a, "slow=" + a + "/../a/."}), "slow");
}

TEST_F(MountErrorsTest, RefusesATierInsideAnother) {
  const std::string outer = base_.make_dir("a");
  const std::string inner = base_.make_dir("a/b/c");
  expect_refused(pool({"fast=" + outer, "slow=" + inner}), inner);
  expect_refused(pool({"fast=" + inner, "slow=" + outer}), outer);
}

TEST_F(MountErrorsTest, AcceptsTiersWithACommonPrefix) {
  const Mount mount(pool({"fast=" + base_.make_dir("a"), "slow=" + base_.make_dir("ab")}));
  write_file(mount / "f", "x");
}

TEST_F(MountErrorsTest, RefusesATierInsideTheMountPoint) {
  const std::string inside = base_.make_dir("mnt/tier");
  expect_refused(pool({"fast=" + inside}), inside);
}

TEST_F(MountErrorsTest, RefusesAMountPointInsideATier) {
  const std::string tier = base_.make_dir("a");
  Pool wanted = pool({"fast=" + tier});
  wanted.mountpoint = base_.make_dir("a/mnt");
  expect_refused(wanted, tier);
}

TEST_F(MountErrorsTest, RefusesAMountPointWithFilesUnlessAsked) {
  base_.make_file("mnt/notes", "x");
  Pool wanted = pool({"fast=" + base_.make_dir("a")});
  expect_refused(wanted, "notes would be hidden");
  wanted.flags = {"--over"};
  {
    const Mount mount(wanted);
    EXPECT_EQ(names_in(mount.path()), std::vector<std::string>{});
  }
  EXPECT_EQ(read_file(mountpoint_ + "/notes"), "x");
}

TEST_F(MountErrorsTest, RefusesATierThatIsTheMountPoint) {
  expect_refused(pool({"fast=" + mountpoint_}), mountpoint_);
}

TEST_F(MountErrorsTest, RefusesATierThatIsNotADirectory) {
  const std::string file = base_.make_file("file", "x");
  expect_refused(pool({"fast=" + base_.make_dir("a"), "slow=" + file}), file);
}

TEST_F(MountErrorsTest, RefusesATierThatDoesNotExist) {
  const std::string missing = base_ / "missing";
  expect_refused(pool({"fast=" + base_.make_dir("a"), "slow=" + missing}), missing);
  EXPECT_FALSE(exists(missing)) << "the directory was created";
}

TEST_F(MountErrorsTest, RefusesAReadOnlyTier) {
  if (!require_loop("mount", "ext4")) return;
  LoopFs disk(base_ / "disk", "ext4", 16 << 20);
  disk.remount_read_only();
  expect_refused(pool({"fast=" + base_.make_dir("a"), "slow=" + disk.path()}), disk.path());
}

TEST_F(MountErrorsTest, RefusesADirectoryThatIsNotOnADisk) {
  for (const char* path : {"/proc", "/sys"})
    expect_refused(pool({std::string("fast=") + path}), "give a directory on a disk");
}

TEST_F(MountErrorsTest, RefusesTwoTiersWithTheSameName) {
  expect_refused(pool({"fast=" + base_.make_dir("a"), "fast=" + base_.make_dir("b")}), "fast", 2);
}

TEST_F(MountErrorsTest, RefusesAMountWithoutTiers) {
  const CommandResult result = mount(pool({}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("tier"), std::string::npos) << result.err;
}

TEST_F(MountErrorsTest, RefusesAMissingMountPoint) {
  Pool wanted = pool({"fast=" + base_.make_dir("a")});
  wanted.mountpoint = base_ / "missing";
  expect_refused(wanted, wanted.mountpoint);
}

TEST_F(MountErrorsTest, RefusesAMountPointThatIsAFile) {
  Pool wanted = pool({"fast=" + base_.make_dir("a")});
  wanted.mountpoint = base_.make_file("file", "x");
  expect_refused(wanted, wanted.mountpoint);
}

TEST_F(MountErrorsTest, RefusesAMountPointInUse) {
  const Mount first(pool({"fast=" + base_.make_dir("a")}));
  Pool second = pool({"fast=" + base_.make_dir("b")});
  second.state = base_ / "state2";
  const CommandResult result = mount(second);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find(mountpoint_), std::string::npos) << result.err;
  write_file(first / "f", "x");
  EXPECT_TRUE(exists(base_ / "a/f")) << "the first mount still works";
}

TEST_F(MountErrorsTest, RefusesASecondMountOfTheSamePool) {
  const Mount first(pool({"fast=" + base_.make_dir("a"), "slow=" + base_.make_dir("b")}));
  Pool second = first.pool();
  second.mountpoint = base_.make_dir("mnt2");
  for (const char* state : {"state", "state2"}) {
    second.state = base_ / state;
    const CommandResult result = mount(second);
    EXPECT_EQ(result.exit_code, 1) << "with state directory " << state;
    EXPECT_FALSE(result.err.empty());
    if (result.ok()) sluice({"umount", second.mountpoint});
  }
  second.tiers = {"slow=" + base_ / "b"};
  second.state = base_ / "state3";
  const CommandResult part = mount(second);
  EXPECT_EQ(part.exit_code, 1) << "one tier of a mounted pool";
  if (part.ok()) sluice({"umount", second.mountpoint});
  write_file(first / "f", "x");
}

TEST_F(MountErrorsTest, RefusesAStateDirectoryThatIsAFile) {
  Pool wanted = pool({"fast=" + base_.make_dir("a")});
  wanted.state = base_.make_file("file", "x");
  expect_refused(wanted, wanted.state);
}

TEST_F(MountErrorsTest, RefusesInvalidTierOptions) {
  const std::string a = base_.make_dir("a");
  for (const char* options : {"reserve=lots", "capacity=-1", "high_watermark=101",
                              "high_watermark=x", "unknown=1", "high_watermark"}) {
    const CommandResult result = mount(pool({"fast=" + a + "," + options}));
    const std::string key = std::string(options).substr(0, std::string(options).find('='));
    // Without '=' it is part of the path, which may exist later.
    EXPECT_EQ(result.exit_code, key == options ? 1 : 2) << options;
    EXPECT_NE(result.err.find(key), std::string::npos) << options << ": " << result.err;
    if (result.ok()) sluice({"umount", mountpoint_});
  }
}

// systemd restarts the service after exit status 1, but not after 2.
TEST_F(MountErrorsTest, RefusesAnInvalidConfiguration) {
  const std::string tier = "[[tier]]\nname = \"fast\"\npath = \"" + base_.make_dir("a") + "\"\n";
  for (const std::string text : {"mountpont = \"/mnt\"\n", "interval = 30\n", "degraded = \n"}) {
    const std::string file = base_ / "pool.toml";
    write_file(file, text + tier);
    const CommandResult result = sluice({"mount", "--config", file, mountpoint_});
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_NE(result.err.find(file + ":1"), std::string::npos) << result.err;
    if (result.ok()) sluice({"umount", mountpoint_});
  }
}

TEST_F(MountErrorsTest, UnmountFailsIfNothingIsMounted) {
  const CommandResult result = sluice({"umount", mountpoint_});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find(mountpoint_), std::string::npos) << result.err;
}

// A process in its own mount namespace that has a file of the mount open.
class Elsewhere {
 public:
  explicit Elsewhere(const std::string& file) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) < 0) throw std::runtime_error("pipe");
    UniqueFd reader(ends[0]), writer(ends[1]);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const bool ready = ::unshare(CLONE_NEWNS) == 0 &&
                         ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         ::open(file.c_str(), O_RDONLY) >= 0;
      if (ready && ::write(writer.get(), "+", 1) == 1) {
        for (;;) ::pause();
      }
      ::_exit(1);
    }
    writer.reset();
    char word = 0;
    if (::read(reader.get(), &word, 1) != 1) throw std::runtime_error("unshare");
  }
  ~Elsewhere() { end(); }
  Elsewhere(const Elsewhere&) = delete;
  Elsewhere& operator=(const Elsewhere&) = delete;
  void end() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

TEST_F(MountErrorsTest, UnmountReportsUsersInAnotherNamespace) {
  Mount mount(pool({"fast=" + base_.make_dir("a")}));
  write_file(mount / "f", "x");
  const pid_t daemon = mount.pid();
  Elsewhere elsewhere(mount / "f");
  const CommandResult result = sluice({"umount", "--timeout", "1s", mountpoint_});
  EXPECT_EQ(result.exit_code, 1);
  for (const std::string& word :
       {"process " + std::to_string(elsewhere.pid()), std::string("in another mount namespace"),
        "open by " + std::to_string(elsewhere.pid()), mount / "f",
        "nsenter -t " + std::to_string(elsewhere.pid()) + " -m umount " + mountpoint_,
        "kill " + std::to_string(daemon)}) {
    EXPECT_NE(result.err.find(word), std::string::npos) << word << " in: " << result.err;
  }
  EXPECT_EQ(lstat_of(mountpoint_).st_dev, lstat_of(base_.path()).st_dev) << "not unmounted here";
  EXPECT_FALSE(has_ended(daemon)) << "the daemon ended although the mount is in use";
  elsewhere.end();
  EXPECT_TRUE(eventually([&] { return has_ended(daemon); }));
}

TEST_F(MountErrorsTest, LazyUnmountDoesNotWait) {
  Mount mount(pool({"fast=" + base_.make_dir("a")}));
  write_file(mount / "f", "x");
  const pid_t daemon = mount.pid();
  Elsewhere elsewhere(mount / "f");
  const CommandResult result = sluice({"umount", "--lazy", mountpoint_});
  EXPECT_TRUE(result.ok()) << result.err;
  EXPECT_FALSE(has_ended(daemon));
  elsewhere.end();
  EXPECT_TRUE(eventually([&] { return has_ended(daemon); }));
}

TEST_F(MountErrorsTest, UnmountReportsBindMounts) {
  Mount mount(pool({"fast=" + base_.make_dir("a")}));
  const std::string part = base_.make_dir("part");
  ASSERT_TRUE(run_command({"mount", "--bind", mount.path(), part}).ok());
  const CommandResult result = sluice({"umount", "--timeout", "1", mountpoint_});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("umount " + part), std::string::npos) << result.err;
  EXPECT_TRUE(run_command({"umount", part}).ok());
}

// Stops all threads of a daemon in a way that SIGCONT does not end, as a debugger does.
class Tracer {
 public:
  explicit Tracer(pid_t daemon) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) < 0) throw std::runtime_error("pipe");
    UniqueFd reader(ends[0]), writer(ends[1]);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (const auto& task :
           std::filesystem::directory_iterator("/proc/" + std::to_string(daemon) + "/task")) {
        const auto thread = static_cast<pid_t>(std::stol(task.path().filename().string()));
        if (::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) < 0 ||
            ::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) < 0 ||
            ::waitpid(thread, nullptr, __WALL) < 0)
          ::_exit(1);
      }
      if (::write(writer.get(), "+", 1) != 1) ::_exit(1);
      while (::waitpid(-1, nullptr, __WALL) > 0) {
      }
      ::_exit(0);
    }
    writer.reset();
    char word = 0;
    if (::read(reader.get(), &word, 1) != 1) throw std::runtime_error("ptrace");
  }
  ~Tracer() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

 private:
  pid_t pid_ = -1;
};

TEST_F(MountErrorsTest, UnmountContinuesAStoppedDaemon) {
  Mount mount(pool({"fast=" + base_.make_dir("a")}));
  write_file(mount / "f", "x");
  const pid_t daemon = mount.pid();
  ASSERT_EQ(::kill(daemon, SIGSTOP), 0);
  const CommandResult result = sluice({"umount", mountpoint_});
  EXPECT_TRUE(result.ok()) << result.err;
  EXPECT_NE(result.err.find("was stopped; it continues"), std::string::npos) << result.err;
  EXPECT_TRUE(has_ended(daemon));
  EXPECT_EQ(read_file(base_ / "a/f"), "x");
}

TEST_F(MountErrorsTest, UnmountEndsADaemonThatHangs) {
  Mount mount(pool({"fast=" + base_.make_dir("a")}));
  write_file(mount / "f", "x");
  const pid_t daemon = mount.pid(), keeper = mount.keeper();
  const Tracer tracer(daemon);
  const CommandResult result = sluice({"umount", mountpoint_});
  EXPECT_TRUE(result.ok()) << result.err;
  EXPECT_NE(result.err.find("did not answer and was removed"), std::string::npos) << result.err;
  EXPECT_EQ(lstat_of(mountpoint_).st_dev, lstat_of(base_.path()).st_dev) << "still mounted";
  EXPECT_TRUE(has_ended(daemon) && has_ended(keeper));
  EXPECT_EQ(read_file(base_ / "a/f"), "x");
  mount.mount();
  EXPECT_EQ(read_file(mount / "f"), "x");
}

TEST_F(MountErrorsTest, UnmountOfAHangingMountWithOpenFilesNeedsLazy) {
  Mount mount(pool({"fast=" + base_.make_dir("a")}));
  write_file(mount / "f", "x");
  const UniqueFd open(::open((mount / "f").c_str(), O_RDONLY | O_CLOEXEC));
  const pid_t daemon = mount.pid();
  const Tracer tracer(daemon);
  const CommandResult refused = sluice({"umount", mountpoint_});
  EXPECT_EQ(refused.exit_code, 1);
  for (const std::string& word : {"open by " + std::to_string(::getpid()), std::string("--lazy")})
    EXPECT_NE(refused.err.find(word), std::string::npos) << refused.err;
  EXPECT_FALSE(has_ended(daemon));
  const CommandResult lazy = sluice({"umount", "--lazy", mountpoint_});
  EXPECT_TRUE(lazy.ok()) << lazy.err;
  EXPECT_TRUE(has_ended(daemon));
}

TEST_F(MountErrorsTest, UnmountDoesNotWaitForADiskThatDoesNotAnswer) {
  if (!require_loop("mount", "ext4")) return;
  LoopFs disk(base_ / "disk", "ext4", 64 << 20);
  Pool wanted = pool({"fast=" + base_.make_dir("a")});
  wanted.state = disk.path() + "/state";
  Mount mount(wanted);
  write_file(mount / "f", "x");
  const pid_t daemon = mount.pid();
  ASSERT_TRUE(run_command({"fsfreeze", "--freeze", disk.path()}).ok());
  const CommandResult result = sluice({"umount", mountpoint_});
  const bool ended = has_ended(daemon);
  EXPECT_TRUE(run_command({"fsfreeze", "--unfreeze", disk.path()}).ok());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("waits for a disk that does not answer"), std::string::npos)
      << result.err;
  EXPECT_FALSE(ended);
  EXPECT_TRUE(eventually([&] { return has_ended(daemon); }));
}

TEST_F(MountErrorsTest, StatusFailsIfNothingIsMounted) {
  const CommandResult result = sluice({"status", mountpoint_});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find(mountpoint_), std::string::npos) << result.err;
}

TEST_F(MountErrorsTest, PoolCanBeMountedAfterTheDaemonWasKilled) {
  Mount mount(pool({"fast=" + base_.make_dir("a")}));
  write_file(mount / "f", "x");
  mount.kill_daemon();
  EXPECT_LT(::access((mount / "f").c_str(), R_OK), 0);
  mount.detach();
  mount.mount();
  EXPECT_EQ(read_file(mount / "f"), "x");
}

TEST_F(MountErrorsTest, CrashIsLogged) {
  Mount mount(pool({"fast=" + base_.make_dir("a")}));
  mount.kill_daemon(SIGSEGV);
  EXPECT_NE(mount.log().find("crashed: signal 11"), std::string::npos) << mount.log();
  EXPECT_NE(mount.log().find("libc.so"), std::string::npos) << "the log has no backtrace";
}

}  // namespace
}  // namespace sluice::test
