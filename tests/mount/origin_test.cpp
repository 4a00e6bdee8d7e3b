// SPDX-License-Identifier: BSD-2-Clause
// `sluice origin check` and `scan` on a plain directory. MooseFS: tests/engine/.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/command.hpp"
#include "tests/support/files.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/user.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

using Json = nlohmann::json;
using Strings = std::vector<std::string>;

class OriginTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!require("mount", ::geteuid() == 0, "only root can check a filesystem")) return;
    origin_ = base_.make_dir("origin");
  }

  CommandResult check(Strings more) const {
    more.insert(more.begin(), {"origin", "check"});
    more.push_back(origin_);
    return sluice(more);
  }
  // The same with a program `ssh` that does what `script` says. $2 is the host, $3 the command.
  CommandResult check_by_ssh(const std::string& script, Strings more) const {
    const std::string ssh = base_.make_file("bin/ssh", "#!/bin/bash\n" + script);
    ::chmod(ssh.c_str(), 0755);
    more.insert(more.begin(),
                {"env", "PATH=" + (base_ / "bin") + ":" + std::string(::getenv("PATH")),
                 sluice_binary(), "origin", "check"});
    more.push_back(origin_);
    return run_command(more);
  }
  // What is left in the origin.
  Strings left() const { return names_in(origin_); }
  void expect_refused(const CommandResult& result, const std::string& words) const {
    EXPECT_EQ(result.exit_code, 1) << result.out;
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
    EXPECT_EQ(left(), Strings{});
  }
  // A file that has not changed for an hour.
  std::string quiet_file(const std::string& name, const std::string& content) const {
    const std::string path = base_.make_file("origin/" + name, content);
    make_quiet(path);
    return path;
  }
  static void make_quiet(const std::string& path) {
    const timespec then{::time(nullptr) - 3600, 0};
    const timespec times[2] = {then, then};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
  }
  std::string scan(const std::string& path) const {
    const CommandResult result = sluice({"origin", "scan", path});
    EXPECT_TRUE(result.ok()) << result.err;
    return result.out;
  }
  static std::optional<std::string> stamp_of(const std::string& path) {
    return xattr_of(path, "trusted.sluice.v");
  }

  TempDir base_;
  std::string origin_;
};

// The script of an ssh that runs the command here.
std::string run_here() {
  return "PATH=" + sluice_binary().substr(0, sluice_binary().rfind('/')) +
         ":$PATH exec bash -c \"$3\"\n";
}

TEST_F(OriginTest, CheckTellsWhatAFilesystemCanDo) {
  const CommandResult result = check({"--json"});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  const Json report = Json::parse(result.out);
  EXPECT_EQ(report["close_to_open"], "unknown");
  EXPECT_TRUE(report["race"].is_null());
  std::set<std::string> names;
  for (const Json& each : report["abilities"]) {
    EXPECT_NE(each["verdict"], "fail") << each;
    names.insert(each["name"].get<std::string>());
  }
  for (const char* name : {"trusted xattr", "user xattr", "stamps", "flock", "fcntl", "NOREPLACE",
                           "EXCHANGE", "O_TMPFILE", "hard links", "handles", "times", "rewrites",
                           "SEEK_HOLE", "O_DIRECT", "mmap"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_EQ(left(), Strings{});
}

TEST_F(OriginTest, TwoViewsOfADirectoryRaceAndPass) {
  const CommandResult result = check({"--json", "--races", "300", "--with", origin_});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const Json report = Json::parse(result.out);
  EXPECT_EQ(report["close_to_open"], "yes");
  EXPECT_EQ(report["race"]["rounds"], 300);
  EXPECT_EQ(report["race"]["stale"], 0);
  EXPECT_GT(report["race"]["hits"], 270);
  EXPECT_EQ(left(), Strings{});
}

TEST_F(OriginTest, AMachineIsReachedBySsh) {
  const std::string log = base_ / "log";
  const CommandResult result = check_by_ssh("echo \"$1 $2 $3\" >" + log + "\n" + run_here(),
                                            {"--races", "20", "--with", "node2:" + origin_});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("20 races in"), std::string::npos) << result.out;
  EXPECT_EQ(read_file(log), "-T node2 sluice origin check --partner " + origin_ + "\n");
}

// The other machine says that its opens used old copies, as those of a filesystem with caches do.
TEST_F(OriginTest, OneStaleOpenIsEnoughToFail) {
  const CommandResult result =
      check_by_ssh("(" + run_here() + ") | sed -u '0,/^ok 1 0 [0-9]* [0-9]*$/s//ok 1 1 0 0/'\n",
                   {"--races", "50", "--with", "node2:" + origin_});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_NE(result.out.find("close-to-open: no, 1 open used an old copy"), std::string::npos)
      << result.out;
}

TEST_F(OriginTest, WithoutAttributesNothingCanBeStamped) {
  // In a mount namespace of its own. ramfs has no extended attributes.
  const CommandResult result =
      run_command({"unshare", "--mount", "bash", "-c",
                   "mount -t ramfs none \"$1\" && exec \"$0\" origin check --with \"$1\" \"$1\"",
                   sluice_binary(), origin_});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_NE(result.out.find("close-to-open: no, files can't be stamped"), std::string::npos)
      << result.out;
}

TEST_F(OriginTest, WhatTheOtherMachineDoesWrongIsSaid) {
  const std::string with = "node2:" + origin_;
  expect_refused(check_by_ssh("exit 255\n", {"--with", with}), "the check there has ended");
  expect_refused(check_by_ssh("echo hello; cat >/dev/null\n", {"--with", with}),
                 "another version of sluice");
  expect_refused(check_by_ssh("echo 'sluice origin partner 1'; while read; do echo what; done\n",
                              {"--with", with}),
                 "understand the other machine");
  expect_refused(check_by_ssh("echo 'sluice origin partner 1'; read\n", {"--with", with}),
                 "the check there has ended");
}

TEST_F(OriginTest, AnotherDirectoryIsNoSecondMount) {
  expect_refused(check({"--with", base_.make_dir("other")}), "must be the same directory");
  expect_refused(check({"--with", base_ / "none"}), "the check there has ended");
}

TEST_F(OriginTest, BadArgumentsAreRefused) {
  const std::string file = base_.make_file("file", "");
  EXPECT_NE(
      sluice({"origin", "check", file}).err.find(file + ": Not a directory; name a directory"),
      std::string::npos);
  EXPECT_EQ(sluice({"origin", "check", base_ / "none"}).exit_code, 1);
  EXPECT_EQ(check({"--with", "-oProxyCommand=x:/mnt"}).exit_code, 2);
  EXPECT_EQ(check({"--races", "many"}).exit_code, 2);
  EXPECT_EQ(sluice({"origin", "check"}).exit_code, 2);
  const std::string said = as_user(kNobody, [&] { return check({}).err; });
  EXPECT_NE(said.find("only root can check"), std::string::npos) << said;
}

TEST_F(OriginTest, CtrlCRemovesTheScratchDirectory) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGINT, SIG_DFL);
    ::execl(sluice_binary().c_str(), "sluice", "origin", "check", "--races", "100000000", "--with",
            origin_.c_str(), origin_.c_str(), nullptr);
    ::_exit(127);
  }
  // The race has begun.
  EXPECT_TRUE(eventually([&] {
    const Strings names = left();
    return !names.empty() && exists(origin_ + "/" + names[0] + "/stamped");
  }));
  ::kill(child, SIGINT);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  EXPECT_EQ(left(), Strings{});
}

TEST_F(OriginTest, ScanStampsEachFileOnce) {
  const std::string one = quiet_file("one", "1"), two = quiet_file("a/b/two", "2");
  ASSERT_EQ(::symlink("one", (origin_ + "/link").c_str()), 0);
  ASSERT_EQ(::mkfifo((origin_ + "/fifo").c_str(), 0600), 0);
  EXPECT_EQ(scan(origin_), "stamped 2 files, 0 had a stamp\n");
  const auto stamp = stamp_of(one);
  ASSERT_TRUE(stamp);
  EXPECT_NE(stamp, stamp_of(two));
  EXPECT_EQ(scan(origin_), "stamped 0 files, 2 had a stamp\n");
  EXPECT_EQ(stamp_of(one), stamp);
}

TEST_F(OriginTest, ScanStampsAChangedFileAnew) {
  const std::string one = quiet_file("one", "1");
  EXPECT_EQ(scan(one), "stamped 1 file, 0 had a stamp\n");
  const auto stamp = stamp_of(one);
  write_file(one, "changed");
  EXPECT_NE(scan(one).find("left out 1 file that changed in the last 5 s"), std::string::npos);
  make_quiet(one);
  EXPECT_EQ(scan(one), "stamped 1 file, 0 had a stamp\n");
  EXPECT_NE(stamp_of(one), stamp);
}

TEST_F(OriginTest, ScanLeavesOutWhatIsBeingWritten) {
  const std::string one = quiet_file("one", "1");
  ASSERT_EQ(::setxattr(one.c_str(), "trusted.sluice.w.0123456789abcdef", "", 0, 0), 0);
  EXPECT_EQ(scan(origin_),
            "stamped 0 files, 0 had a stamp\nleft out 1 file with the flag of a writer\n");
  EXPECT_EQ(stamp_of(one), std::nullopt);
}

TEST_F(OriginTest, ScanSaysWhatItCouldNotStamp) {
  quiet_file("one", "1");
  const CommandResult result = sluice({"origin", "scan", base_ / "none", origin_});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("none: No such file"), std::string::npos) << result.err;
  EXPECT_EQ(result.out, "stamped 1 file, 0 had a stamp\n");
  const std::string other = quiet_file("other", "2");
  const std::string said = as_user(kNobody, [&] { return sluice({"origin", "scan", other}).err; });
  EXPECT_NE(said.find("only root can stamp files here"), std::string::npos) << said;
}

}  // namespace
}  // namespace sluice::test
