// SPDX-License-Identifier: BSD-2-Clause
// A keeper in a process of its own, with daemons that do what the test tells them (fake_daemon).
#include "fs/keeper/keeper.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "fs/keeper/protocol.hpp"
#include "tests/support/files.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/user.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/fs/fake_daemon.hpp"

namespace sluice {
namespace {

constexpr int kLimitMs = 20'000;
constexpr std::chrono::hours kForGood(1);

void wait_readable(int fd, const std::string& what) {
  pollfd ready{fd, POLLIN, 0};
  if (::poll(&ready, 1, kLimitMs) != 1) throw std::runtime_error("waited too long for " + what);
}

UniqueFd file_with(const std::string& text) {
  UniqueFd file(::memfd_create("file", MFD_CLOEXEC));
  EXPECT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return file;
}

// One process of fake_daemon.
class Daemon {
 public:
  explicit Daemon(UniqueFd socket) : socket_(std::move(socket)), hello_(heard()) {}

  void tell(const std::string& command) { ASSERT_TRUE(send_packet(socket_.get(), command)); }
  // The next thing it says; "ended" if it has ended.
  std::string heard() {
    wait_readable(socket_.get(), "a daemon's words");
    const auto packet = receive_packet(socket_.get(), Wait::Yes);
    return packet ? packet->text : "ended";
  }
  // What it said about its start: "role".
  std::string hello(const std::string& key) const {
    const std::size_t at = (" " + hello_).find(" " + key + "=");
    if (at == std::string::npos) return "?";
    const std::size_t begin = at + key.size() + 1;
    return hello_.substr(begin,
                         key == "failure" ? std::string::npos : hello_.find(' ', begin) - begin);
  }
  pid_t pid() const { return std::stoi(hello("pid")); }

 private:
  UniqueFd socket_;
  std::string hello_;
};

// As in KeeperSettings.
struct Waits {
  unsigned crash_limit = 5;
  std::chrono::milliseconds first_wait{1000}, longest_wait{60'000}, patience{600'000};
};

class KeeperTest : public testing::Test {
 protected:
  KeeperTest() : listener_(test::listen_for_daemons(dir_ / "test")) {
    std::filesystem::copy_file(SLUICE_FAKE_DAEMON, program_);
  }
  ~KeeperTest() override {
    if (keeper_ > 0) ::kill(keeper_, SIGKILL);
    if (keeper_ > 0) ::waitpid(keeper_, nullptr, 0);
  }

  void start_keeper(const Waits& waits = {}, NamedDescriptors held = {}) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    report_.reset(ends[0]);
    UniqueFd writer(ends[1]);
    keeper_ = ::fork();
    ASSERT_GE(keeper_, 0);
    if (keeper_ > 0) return;
    if (as_alice_ && (::setgid(test::kAlice.gid) < 0 || ::setuid(test::kAlice.uid) < 0)) ::_exit(1);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    other_end_.reset();
    KeeperSettings settings;
    settings.crash_limit = waits.crash_limit;
    settings.first_wait = waits.first_wait;
    settings.longest_wait = waits.longest_wait;
    settings.patience = waits.patience;
    settings.executable = program_;
    settings.arguments = {"fake", dir_ / "test"};
    settings.detached = true;
    settings.log_name = "the log";
    settings.held = std::move(held);
    settings.started = [&](const Result<void>& mounted) {
      const std::string text = mounted ? "+" : mounted.error().text();
      [[maybe_unused]] const auto put = ::write(writer.get(), text.data(), text.size());
    };
    ::_exit(run_keeper(std::move(settings)));
  }

  Daemon next_daemon() {
    wait_readable(listener_.get(), "a daemon's start");
    return Daemon(UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }

  // Starts a keeper and a daemon that holds "fuse" and "state".
  Daemon serving_daemon(const Waits& waits = {}) {
    start_keeper(waits);
    Daemon daemon = next_daemon();
    daemon.tell("hold fuse F");
    daemon.tell("hold state S");
    daemon.tell("ready");
    EXPECT_EQ(report(), "+");
    return daemon;
  }

  // Upgrades to another program, which fails after `old` has handed over to it. Returns the daemon
  // that is started then.
  Daemon next_after_failed_takeover(Daemon& old) {
    replace_program();
    old.tell("restart");
    Daemon fresh = next_daemon();
    fresh.tell("prepared");
    old.heard(), old.heard();  // "hand over" and "restarted"
    old.tell("exit " + std::to_string(kHandedOver));
    EXPECT_EQ(fresh.heard(), "go");
    fresh.tell("failed the database is damaged");
    fresh.tell("exit 1");
    return next_daemon();
  }

  std::string report() {
    wait_readable(report_.get(), "the keeper's report");
    std::array<char, 1000> text{};
    const ssize_t got = ::read(report_.get(), text.data(), text.size());
    return {text.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
  }

  int exit_code() {
    int status = -1;
    EXPECT_TRUE(test::eventually([&] { return ::waitpid(keeper_, &status, WNOHANG) == keeper_; }));
    keeper_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  // The file that the daemon gave the keeper with "hold log L", if it has it already.
  UniqueFd log_of_keeper() const {
    const std::string fds = "/proc/" + std::to_string(keeper_) + "/fd/";
    for (const auto& each : std::filesystem::directory_iterator(fds)) {
      UniqueFd file(::open(each.path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
      char letter = 0;
      if (file && ::pread(file.get(), &letter, 1, 0) == 1 && letter == 'L') return file;
    }
    return {};
  }
  static std::string text_of(const UniqueFd& file) {
    std::string text(16384, '\0');
    const ssize_t size = ::pread(file.get(), text.data(), text.size(), 0);
    text.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
    return text;
  }

  // Puts another file with the same content, or with this one, at the program's path.
  void replace_program(const std::string& content = {}) {
    if (content.empty()) {
      std::filesystem::copy_file(SLUICE_FAKE_DAEMON, dir_ / "new");
    } else {
      test::write_file(dir_ / "new", content);
      ::chmod((dir_ / "new").c_str(), 0755);
    }
    std::filesystem::rename(dir_ / "new", program_);
  }

  test::TempDir dir_;
  const std::string program_ = dir_ / "daemon";
  UniqueFd listener_;
  UniqueFd report_;
  UniqueFd other_end_;     // of what a keeper holds, closed in the keeper itself
  bool as_alice_ = false;  // the keeper runs as this user
  pid_t keeper_ = -1;
};

TEST_F(KeeperTest, StartsTheDaemonAndEndsWithIt) {
  start_keeper();
  Daemon daemon = next_daemon();
  EXPECT_EQ(daemon.hello("role"), "start");
  EXPECT_EQ(daemon.hello("held"), "");
  EXPECT_EQ(daemon.hello("keeper"), std::to_string(keeper_));
  EXPECT_EQ(daemon.hello("restarts"), "0");
  EXPECT_EQ(daemon.hello("name"), "sluice");
  EXPECT_EQ(daemon.hello("variable"), "gone");
  EXPECT_EQ(daemon.hello("directory"), std::filesystem::current_path());
  EXPECT_NE(daemon.hello("oom"), "-1000");
  daemon.tell("ready");
  EXPECT_EQ(report(), "+");
  daemon.tell("exit 0");
  EXPECT_EQ(exit_code(), 0);
}

TEST_F(KeeperTest, PassesOnAFailureBeforeTheMountAnswers) {
  start_keeper();
  Daemon daemon = next_daemon();
  daemon.tell("failed there is no disk");
  daemon.tell("exit 2");
  EXPECT_EQ(report(), "there is no disk");
  EXPECT_EQ(exit_code(), 2);
}

TEST_F(KeeperTest, ReportsACrashBeforeTheMountAnswers) {
  start_keeper();
  next_daemon().tell("crash");
  EXPECT_EQ(report(), "the daemon ended (signal 9, Killed) before the mount answered; see the log");
  EXPECT_EQ(exit_code(), 1);
}

TEST_F(KeeperTest, ReportsAProgramThatCannotRun) {
  replace_program("no program");
  start_keeper();
  EXPECT_EQ(report(), "can't run " + program_ + ": Exec format error");
  EXPECT_EQ(exit_code(), 1);
}

TEST_F(KeeperTest, ASuccessorGetsTheDescriptorsOfACrashedDaemon) {
  Daemon first = serving_daemon();
  const std::string program = first.hello("program");
  replace_program();  // crashes do not upgrade
  first.tell("hold state T");
  first.tell("crash");
  Daemon second = next_daemon();
  EXPECT_EQ(second.hello("role"), "take");
  EXPECT_EQ(second.hello("held"), "fuse:F,state:T");
  EXPECT_EQ(second.hello("restarts"), "1");
  EXPECT_EQ(second.hello("program"), program);
  EXPECT_EQ(second.hello("name"), "sluice");
  EXPECT_EQ(second.hello("failure"), "");
  second.tell("ready");
  second.tell("crash");
  Daemon third = next_daemon();
  EXPECT_EQ(third.hello("held"), "fuse:F,state:T");
  EXPECT_EQ(third.hello("restarts"), "2");
  third.tell("ready");
  third.tell("exit 0");
  EXPECT_EQ(exit_code(), 0);
}

TEST_F(KeeperTest, WaitsBeforeItStartsADaemonThatCrashesAgainAndAgain) {
  constexpr int kCrashes = 9;
  Daemon daemon = serving_daemon(
      {.crash_limit = 3, .first_wait = std::chrono::milliseconds(1), .longest_wait = kForGood});
  daemon.tell("hold log L");
  UniqueFd log;
  for (int i = 0; i < kCrashes; ++i) {
    daemon.tell("crash");
    daemon = next_daemon();
    if (i == 0) log = log_of_keeper();
    daemon.tell("ready");
  }
  const std::string text = text_of(log);
  EXPECT_NE(text.find("daemon: crashes=2 why=the daemon ended: signal 9, Killed"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("daemon, in 1 s: crashes=3"), std::string::npos) << text;
  EXPECT_NE(text.find("daemon, in 1 s: crashes=9"), std::string::npos) << text;
  daemon.tell("exit 0");
  EXPECT_EQ(exit_code(), 0);
}

TEST_F(KeeperTest, ADaemonThatServedForLongCrashesAsIfForTheFirstTime) {
  // However short it serves is long enough.
  Daemon daemon = serving_daemon({.crash_limit = 2, .longest_wait = std::chrono::milliseconds(0)});
  daemon.tell("hold log L");
  UniqueFd log;
  for (int i = 0; i < 3; ++i) {
    daemon.tell("crash");
    daemon = next_daemon();
    if (i == 0) log = log_of_keeper();
    daemon.tell("ready");
  }
  EXPECT_EQ(text_of(log).find("crashes=2"), std::string::npos) << text_of(log);
  daemon.tell("exit 0");
  EXPECT_EQ(exit_code(), 0);
}

TEST_F(KeeperTest, GivesUpIfNoDaemonCanBeStarted) {
  UniqueFd log;
  {
    Daemon first = serving_daemon({.patience = std::chrono::milliseconds(1)});
    first.tell("hold log L");
    first.tell("crash");
    Daemon second = next_daemon();
    log = log_of_keeper();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    second.tell("failed no memory");
    second.tell("exit 1");
  }
  EXPECT_EQ(exit_code(), kGaveUp);
  const std::string text = text_of(log);
  for (const char* part : {"signal 9, Killed", "no memory", "critical",
                           "no daemon could be started for 1 s", "sluice umount"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
}

TEST_F(KeeperTest, ASignalEndsTheWaitForTheNextDaemon) {
  for (const int signal : {SIGHUP, SIGTERM}) {
    Daemon first =
        serving_daemon({.crash_limit = 1, .first_wait = kForGood, .longest_wait = kForGood});
    first.tell("hold log L");
    first.tell("crash");
    EXPECT_EQ(first.heard(), "ended");
    ::kill(keeper_, signal);
    Daemon second = next_daemon();
    second.tell("ready");
    // After SIGHUP it has read the configuration already.
    if (signal == SIGTERM) {
      EXPECT_EQ(second.heard(), "signal 15");
    }
    second.tell("exit 0");
    EXPECT_EQ(exit_code(), 0);
  }
}

TEST_F(KeeperTest, TheEndOfTheMountEndsTheWaitForTheNextDaemon) {
  for (const bool succeeds : {true, false}) {
    // Its other end is closed: as /dev/fuse after the unmount.
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    other_end_.reset(ends[0]);
    NamedDescriptors held;
    held["fuse"].reset(ends[1]);
    start_keeper({.crash_limit = 1, .first_wait = kForGood, .longest_wait = kForGood},
                 std::move(held));
    Daemon first = next_daemon();
    first.tell("crash");
    EXPECT_EQ(first.heard(), "ended");
    other_end_.reset();
    Daemon second = next_daemon();
    EXPECT_EQ(second.hello("role"), "take");
    second.tell(succeeds ? "exit 0" : "exit 1");
    EXPECT_EQ(exit_code(), succeeds ? 0 : kGaveUp);
  }
}

TEST_F(KeeperTest, SaysThatTheDaemonWasStopped) {
  Daemon daemon = serving_daemon();
  daemon.tell("hold log L");
  daemon.tell("keeper");
  daemon.heard();  // it has sent the log
  UniqueFd log;
  ASSERT_TRUE(test::eventually([&] { return static_cast<bool>(log = log_of_keeper()); }));
  const std::string pid = std::to_string(daemon.pid());
  ::kill(daemon.pid(), SIGSTOP);
  EXPECT_TRUE(test::eventually([&] {
    return text_of(log).find("'kill -CONT " + pid + "' continues it") != std::string::npos;
  })) << text_of(log);
  ::kill(daemon.pid(), SIGCONT);
  EXPECT_TRUE(test::eventually([&] {
    return text_of(log).find("the daemon continues: pid=" + pid) != std::string::npos;
  })) << text_of(log);
  daemon.tell("exit 0");
  EXPECT_EQ(exit_code(), 0);
}

TEST_F(KeeperTest, GivesUpAtOnceIfTheDaemonLeftNothing) {
  start_keeper();
  Daemon daemon = next_daemon();
  daemon.tell("ready");
  EXPECT_EQ(report(), "+");
  daemon.tell("crash");
  EXPECT_EQ(exit_code(), kGaveUp);
}

TEST_F(KeeperTest, UpgradesToTheProgramAtItsPath) {
  Daemon old = serving_daemon();
  replace_program();
  old.tell("restart");
  Daemon fresh = next_daemon();
  EXPECT_EQ(fresh.hello("role"), "prepare");
  EXPECT_EQ(fresh.hello("held"), "fuse:F,state:S");
  EXPECT_NE(fresh.hello("program"), old.hello("program"));
  fresh.tell("prepared");
  // The first is said by the thread that listens, the second by the one that asked.
  const std::string one = old.heard(), other = old.heard();
  EXPECT_TRUE((one == "hand over" && other == "restarted") ||
              (one == "restarted" && other == "hand over"))
      << one << ", " << other;
  old.tell("exit " + std::to_string(kHandedOver));
  EXPECT_EQ(fresh.heard(), "go");
  fresh.tell("ready");
  // From now on, the new program is the one that is started again.
  fresh.tell("crash");
  Daemon third = next_daemon();
  EXPECT_EQ(third.hello("role"), "take");
  EXPECT_EQ(third.hello("program"), fresh.hello("program"));
  third.tell("ready");
  third.tell("exit 0");
  EXPECT_EQ(exit_code(), 0);
}

TEST_F(KeeperTest, UpgradesToAScript) {
  Daemon old = serving_daemon();
  replace_program("#!/bin/sh\nexec " SLUICE_FAKE_DAEMON " \"$@\"\n");
  old.tell("restart");
  Daemon fresh = next_daemon();
  EXPECT_EQ(fresh.hello("role"), "prepare");
  EXPECT_EQ(fresh.hello("held"), "fuse:F,state:S");
}

TEST_F(KeeperTest, ADaemonThatTakesLongToEndHasNotCrashed) {
  Daemon old = serving_daemon({.crash_limit = 1, .first_wait = kForGood});
  old.tell("restart");
  Daemon fresh = next_daemon();
  fresh.tell("prepared");
  old.heard(), old.heard();  // "hand over" and "restarted"
  old.tell("exit slowly " + std::to_string(kHandedOver));
  EXPECT_EQ(fresh.heard(), "go");
  fresh.tell("ready");
  fresh.tell("exit slowly 0");
  EXPECT_EQ(exit_code(), 0);
}

TEST_F(KeeperTest, ASuccessorThatIsNotPreparedLeavesTheOldDaemonServing) {
  Daemon old = serving_daemon();
  old.tell("restart");
  {
    Daemon fresh = next_daemon();
    fresh.tell("failed the format is too old");
    fresh.tell("exit 1");
  }
  EXPECT_EQ(old.heard(), "refused the format is too old");
  old.tell("restart");
  next_daemon().tell("crash");
  EXPECT_EQ(old.heard(), "refused the daemon ended: signal 9, Killed");
  replace_program("no program");
  old.tell("restart");
  EXPECT_EQ(old.heard(), "refused can't run " + program_ + ": Exec format error");
  replace_program("#!/no/such/interpreter\n");
  old.tell("restart");
  EXPECT_EQ(old.heard(),
            "refused can't run " + program_ + ": the interpreter that it names is missing");
  ASSERT_EQ(::unlink(program_.c_str()), 0);
  old.tell("restart");
  EXPECT_EQ(old.heard(), "refused can't start " + program_ + ": No such file or directory");
  old.tell("exit 0");
  EXPECT_EQ(exit_code(), 0);
}

TEST_F(KeeperTest, ASecondRestartAtTheSameTimeIsRefused) {
  Daemon old = serving_daemon();
  old.tell("restart");
  Daemon fresh = next_daemon();
  old.tell("restart");
  EXPECT_EQ(old.heard(), "refused another restart is in progress");
}

TEST_F(KeeperTest, ADaemonMayRefuseToHandOver) {
  Daemon old = serving_daemon();
  old.tell("restart");
  Daemon fresh = next_daemon();
  fresh.tell("prepared");
  old.heard();
  old.heard();
  old.tell("stay a move takes too long");
  EXPECT_EQ(fresh.heard(), "ended");
  old.tell("exit 0");
  EXPECT_EQ(exit_code(), 0);
}

TEST_F(KeeperTest, AfterAFailedTakeoverTheOldProgramServesAgain) {
  Daemon old = serving_daemon();
  Daemon again = next_after_failed_takeover(old);
  EXPECT_EQ(again.hello("role"), "take");
  EXPECT_EQ(again.hello("program"), old.hello("program"));
  EXPECT_EQ(again.hello("restarts"), "2");
  EXPECT_EQ(again.hello("failure"), "the database is damaged");
}

TEST_F(KeeperTest, AFailedTakeoverLongAfterACrashIsNoReasonToGiveUp) {
  Daemon first = serving_daemon({.patience = std::chrono::milliseconds(1)});
  first.tell("crash");
  Daemon old = next_daemon();
  old.tell("ready");
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const Daemon again = next_after_failed_takeover(old);
  EXPECT_EQ(again.hello("role"), "take");
  EXPECT_EQ(again.hello("program"), old.hello("program"));
}

TEST_F(KeeperTest, AnUpgradeThatFindsNoRoomForAProcessEndsNone) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs a user whose processes it can count";
  as_alice_ = true;
  ASSERT_EQ(::chmod((dir_ / "test").c_str(), 0666), 0);
  Daemon daemon = serving_daemon();
  // By Alice: root may not do this in every container.
  ASSERT_EQ(test::as_user(test::kAlice,
                          [&] {
                            const rlimit none{};
                            const int set = ::prlimit(keeper_, RLIMIT_NPROC, &none, nullptr);
                            return std::string(set == 0 ? "" : std::strerror(errno));
                          }),
            "");
  daemon.tell("restart");
  EXPECT_EQ(daemon.heard(),
            "refused can't start " + program_ + ": Resource temporarily unavailable");
  daemon.tell("exit 0");
  EXPECT_EQ(exit_code(), 0);
}

TEST_F(KeeperTest, ACrashDuringAnUpgradeIsTakenOverByTheOldProgram) {
  Daemon old = serving_daemon();
  replace_program();
  old.tell("restart");
  Daemon fresh = next_daemon();
  fresh.tell("prepared");
  old.heard();
  old.heard();
  old.tell("crash");
  EXPECT_EQ(fresh.heard(), "ended");
  Daemon again = next_daemon();
  EXPECT_EQ(again.hello("role"), "take");
  EXPECT_EQ(again.hello("program"), old.hello("program"));
}

TEST_F(KeeperTest, TheDaemonOutlivesTheKeeper) {
  Daemon daemon = serving_daemon();
  ::kill(keeper_, SIGKILL);
  EXPECT_EQ(exit_code(), -1);
  EXPECT_TRUE(test::eventually([&] {
    daemon.tell("keeper");
    return daemon.heard() == "0";
  }));
  daemon.tell("restart");
  EXPECT_EQ(daemon.heard(),
            "refused the mount has no keeper any more; unmount it and mount it again");
  daemon.tell("hold state X");
  EXPECT_FALSE(test::has_ended(daemon.pid()));
}

TEST_F(KeeperTest, SignalsGoToTheDaemon) {
  Daemon daemon = serving_daemon();
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    ::kill(keeper_, signal);
    EXPECT_EQ(daemon.heard(), "signal " + std::to_string(signal));
  }
  daemon.tell("exit 0");
  EXPECT_EQ(exit_code(), 0);
}

TEST_F(KeeperTest, ASuccessorGetsTheSignalWhenItIsReady) {
  Daemon first = serving_daemon();
  first.tell("crash");
  Daemon second = next_daemon();
  ::kill(keeper_, SIGTERM);
  second.tell("ready");
  EXPECT_EQ(second.heard(), "signal 15");
  second.tell("exit 0");
  EXPECT_EQ(exit_code(), 0);
}

TEST_F(KeeperTest, DescriptorsAreStoredWithTheServiceManager) {
  const UniqueFd manager(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = test::address_of(dir_ / "notify");
  ASSERT_EQ(::bind(manager.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const auto heard = [&] {
    wait_readable(manager.get(), "a message to the service manager");
    const auto packet = receive_packet(manager.get(), Wait::Yes);
    return packet->text + (packet->fds.empty() ? "" : " with a descriptor");
  };
  ::setenv("NOTIFY_SOCKET", (dir_ / "notify").c_str(), 1);
  start_keeper();
  ::unsetenv("NOTIFY_SOCKET");
  Daemon daemon = next_daemon();
  daemon.tell("hold fuse F");
  EXPECT_EQ(heard(), "FDSTOREREMOVE=1\nFDNAME=fuse");
  EXPECT_EQ(heard(), "FDSTORE=1\nFDNAME=fuse with a descriptor");
  daemon.tell("exit 0");
  EXPECT_EQ(heard(), "FDSTOREREMOVE=1\nFDNAME=fuse");
  EXPECT_EQ(heard(), "BARRIER=1 with a descriptor");
  EXPECT_EQ(exit_code(), 0);
}

TEST_F(KeeperTest, AKeeperWithStoredDescriptorsTakesOver) {
  NamedDescriptors held;
  held["fuse"] = file_with("F");
  held["state"] = file_with("S");
  start_keeper({.patience = std::chrono::milliseconds(1)}, std::move(held));
  Daemon first = next_daemon();
  EXPECT_EQ(first.hello("role"), "take");
  EXPECT_EQ(first.hello("held"), "fuse:F,state:S");
  first.tell("crash");
  Daemon second = next_daemon();
  EXPECT_EQ(second.hello("role"), "take");
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  second.tell("failed no");
  second.tell("exit 1");
  EXPECT_NE(report().find("could be started for 1 s; the last one: no"), std::string::npos);
  EXPECT_EQ(exit_code(), kGaveUp);
}

}  // namespace
}  // namespace sluice
