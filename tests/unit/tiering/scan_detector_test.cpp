// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/heat/scan_detector.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <thread>

#include "tests/support/fake_clock.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr pid_t kOpener = 42;
constexpr bool kNew = false;
constexpr bool kKnown = true;

// A detector with a clock and a /proc of its own.
class ScanDetectorTest : public testing::Test {
 protected:
  ScanDetectorTest() { ignore({"updatedb", "/system.slice/backup"}); }

  void ignore(std::vector<std::string> ignored) {
    detector_ = std::make_unique<ScanDetector>(
        ScanDetector::Settings{.ignored = std::move(ignored), .proc = proc_.path()}, clock_);
  }

  void run(pid_t pid, const std::string& name,
           const std::string& cgroup = "0::/user.slice/session-1.scope\n") const {
    proc_.make_file(std::to_string(pid) + "/comm", name + "\n");
    proc_.make_file(std::to_string(pid) + "/cgroup", cgroup);
  }

  bool counts(pid_t pid = kOpener, bool before = kKnown) { return detector_->counts(pid, before); }
  void open_many(int opens, bool before, pid_t pid = kOpener) {
    for (int i = 0; i < opens; ++i) counts(pid, before);
  }
  void advance(milliseconds by) { clock_.advance(by); }

  test::TempDir proc_;
  test::FakeClock clock_;
  std::unique_ptr<ScanDetector> detector_;
};

TEST_F(ScanDetectorTest, OpensByOrdinaryProgramsCount) {
  run(kOpener, "python3");
  EXPECT_TRUE(counts(kOpener, kNew));
  EXPECT_TRUE(counts(kOpener, kKnown));
}

TEST_F(ScanDetectorTest, OpensByAnIgnoredCommandDoNotCount) {
  run(kOpener, "updatedb");
  EXPECT_FALSE(counts());
  run(43, "updatedb2");
  EXPECT_TRUE(counts(43));
  run(44, "updated");
  EXPECT_TRUE(counts(44));
}

TEST_F(ScanDetectorTest, NamesAreComparedUpToTheKernelsLimit) {
  ignore({"baloo_file_extractor"});
  run(kOpener, "baloo_file_extr");
  EXPECT_FALSE(counts());
  run(43, "baloo_file_ext");
  EXPECT_TRUE(counts(43));
}

TEST_F(ScanDetectorTest, OpensFromAnIgnoredCgroupDoNotCount) {
  run(kOpener, "sh", "0::/system.slice/backup@home.service\n");
  EXPECT_FALSE(counts());
  run(43, "sh", "12:memory:/\n4:cpu,cpuacct:/system.slice/backup.service\n0::/\n");
  EXPECT_FALSE(counts(43));
  run(44, "sh", "0::/user.slice/system.slice/backup.service\n");
  EXPECT_TRUE(counts(44));
  run(45, "/system.slice/backup", "nonsense\n:\n\n");
  EXPECT_TRUE(counts(45));
}

TEST_F(ScanDetectorTest, TheUsualScannersAreIgnoredByDefault) {
  detector_ = std::make_unique<ScanDetector>(ScanDetector::Settings{.proc = proc_.path()});
  pid_t pid = 100;
  for (const std::string_view name : kUsualScanners) {
    run(++pid, std::string(name.substr(0, 15)));
    EXPECT_FALSE(counts(pid)) << name;
  }
  run(++pid, "python3");
  EXPECT_TRUE(counts(pid));
}

TEST_F(ScanDetectorTest, ProcIsNotReadIfNothingIsIgnored) {
  ignore({});
  run(kOpener, "updatedb");
  EXPECT_TRUE(counts());
}

TEST_F(ScanDetectorTest, OpensByUnknownOrEndedProcessesCount) {
  EXPECT_TRUE(counts(kOpener));
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(counts(0, kNew));
  EXPECT_TRUE(counts(-1, kNew));
}

TEST_F(ScanDetectorTest, ProcIsReadAtMostOnceASecond) {
  run(kOpener, "sh");
  EXPECT_TRUE(counts());
  run(kOpener, "updatedb");  // as after fork and exec
  advance(milliseconds(999));
  EXPECT_TRUE(counts());
  advance(milliseconds(1));
  EXPECT_FALSE(counts());
  run(kOpener, "sh");
  EXPECT_FALSE(counts());
  advance(seconds(1));
  EXPECT_TRUE(counts());
}

TEST_F(ScanDetectorTest, AScanIs256NewFilesWithoutReopens) {
  for (int i = 1; i < 256; ++i) ASSERT_TRUE(counts(kOpener, kNew)) << i;
  EXPECT_FALSE(counts(kOpener, kNew));
  EXPECT_FALSE(counts(kOpener, kNew));
  EXPECT_TRUE(counts(43, kNew)) << "another opener is not affected";
}

TEST_F(ScanDetectorTest, ReopeningAQuarterOfTheFilesIsNotAScan) {
  for (int i = 0; i < 100'000; ++i) {
    ASSERT_TRUE(counts(kOpener, i % 4 == 0 ? kKnown : kNew)) << i;
  }
}

TEST_F(ScanDetectorTest, ReopeningFewerFilesIsAScan) {
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(!counts(kOpener, i % 5 == 0 ? kKnown : kNew) || i < 320) << i;
  }
}

TEST_F(ScanDetectorTest, AScanEndsAfterEnoughReopens) {
  open_many(300, kNew);
  EXPECT_FALSE(counts(kOpener, kNew));
  open_many(100, kKnown);
  EXPECT_FALSE(counts(kOpener, kNew));
  EXPECT_TRUE(counts(kOpener, kKnown));
}

TEST_F(ScanDetectorTest, ALongScanIsSoonForgotten) {
  open_many(1'000'000, kNew);
  EXPECT_FALSE(counts(kOpener, kNew));
  open_many(2000, kKnown);
  EXPECT_TRUE(counts(kOpener, kKnown));
}

TEST_F(ScanDetectorTest, AnOpenerIdleForAMinuteIsForgotten) {
  open_many(300, kNew);
  advance(seconds(59));
  EXPECT_FALSE(counts(kOpener, kNew));
  advance(seconds(60));
  for (int i = 1; i < 256; ++i) ASSERT_TRUE(counts(kOpener, kNew));
  EXPECT_FALSE(counts(kOpener, kNew));
}

TEST_F(ScanDetectorTest, NewOpenersReplaceTheOldest) {
  constexpr pid_t kFirst = 1000;
  open_many(300, kNew, kFirst);
  for (pid_t pid = kFirst + 1; pid < kFirst + 1024; ++pid) {
    advance(milliseconds(1));
    counts(pid, kNew);
  }
  EXPECT_FALSE(counts(kFirst, kNew)) << "1024 are remembered";
  for (pid_t pid = kFirst + 1024; pid < kFirst + 2048; ++pid) {
    advance(milliseconds(1));
    counts(pid, kNew);
  }
  EXPECT_TRUE(counts(kFirst, kNew)) << "more are not";
}

TEST_F(ScanDetectorTest, FindsTheProcessOfAThread) {
  proc_.make_file("43/status", "Name:\tworker\nUmask:\t0022\nTgid:\t42\nPid:\t43\n");
  proc_.make_file("44/status", "Tgid:\tno number\n");
  EXPECT_EQ(detector_->process_of(43), 42);
  EXPECT_EQ(detector_->process_of(44), 44);
  EXPECT_EQ(detector_->process_of(45), 45) << "gone";
  EXPECT_EQ(detector_->process_of(0), 0);
  proc_.make_file("43/status", "Tgid:\t50\n");
  EXPECT_EQ(detector_->process_of(43), 42) << "read once a second";
  advance(seconds(1));
  EXPECT_EQ(detector_->process_of(43), 50);
}

TEST_F(ScanDetectorTest, ReadsTheRealProc) {
  ScanDetector usual({});
  EXPECT_TRUE(usual.counts(::getpid(), kKnown));
  std::jthread([&] { EXPECT_EQ(usual.process_of(::gettid()), ::getpid()); });
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").filename();
  ScanDetector of_self({.ignored = {self}});
  EXPECT_FALSE(of_self.counts(::getpid(), kKnown));
}

TEST_F(ScanDetectorTest, IsThreadSafe) {
  run(1, "updatedb");
  std::vector<std::jthread> threads;
  for (pid_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 20'000; ++i) {
        EXPECT_TRUE(counts(2 + t, kKnown));
        counts(100 + i % 3000, kNew);
        detector_->process_of(100 + i % 7);
        if (i % 1000 == 0) advance(milliseconds(100));
      }
    });
  }
}

}  // namespace
}  // namespace sluice
