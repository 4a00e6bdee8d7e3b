// SPDX-License-Identifier: BSD-2-Clause
// A daemon that crashes because of a request, again and again, or that is stopped: what others see.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <functional>
#include <ostream>
#include <thread>

#include "base/sanitizers.hpp"
#include "base/unique_fd.hpp"
#include "tests/fault/daemon_killer.hpp"
#include "tests/fault/tree_stage.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

constexpr std::uint32_t bits(CallKind kind) { return static_cast<std::uint32_t>(kind); }

class CrashTest : public testing::Test {
 protected:
  void SetUp() override {
    [[maybe_unused]] const bool able = require_mounts("fault");
    if (kSanitized) GTEST_SKIP() << "a sanitizer handles crashes itself";
  }

  Pool pool() {
    Pool out = stage_.pool();
    out.flags.insert(out.flags.end(), {"--debug=passthrough=off", "--no-migrate"});
    for (const std::string& each : shim_.environment(FaultShim::Afterwards::Successor))
      out.environment.push_back(each);
    return out;
  }
  // Each call of these kinds with this file, or below this directory, has this effect.
  void arm(FaultAction action, std::uint32_t kinds, const std::string& path) {
    shim_.arm({.action = action, .for_good = true, .kinds = kinds, .path = path});
  }
  static bool logged(const Mount& mount, const std::string& text) {
    return eventually([&] { return mount.log().find(text) != std::string::npos; });
  }

  TempDir base_;
  MoveStage stage_{base_.path()};
  FaultShim shim_{base_ / "faults"};
};

// Makes and removes names, looks at files and reads until it is destroyed. No request may fail.
class Others {
 public:
  explicit Others(const Mount& mount) {
    for (int i = 0; i < 3; ++i) threads_.emplace_back([this, &mount, i] { work(mount, i); });
  }
  ~Others() {
    stop_ = true;
    for (std::jthread& each : threads_) each.join();
    EXPECT_GT(rounds_, 0u);
    EXPECT_EQ(failures_, 0u) << "the first: " << errno_name(first_);
  }
  Others(const Others&) = delete;
  Others& operator=(const Others&) = delete;

 private:
  void work(const Mount& mount, int number) {
    const std::string directory = mount / ("d" + std::to_string(number));
    const auto check = [&](int result) {
      if (result >= 0) return;
      if (failures_++ == 0) first_ = errno;
    };
    while (!stop_) {
      check(::mkdir(directory.c_str(), 0755));
      const UniqueFd file(::open((directory + "/f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
      check(file.get());
      check(static_cast<int>(::pwrite(file.get(), "x", 1, 0)));
      struct stat st {};
      check(::lstat((mount / "good").c_str(), &st));
      check(::unlink((directory + "/f").c_str()));
      check(::rmdir(directory.c_str()));
      ++rounds_;
    }
  }

  std::atomic<bool> stop_{false};
  std::atomic<unsigned> rounds_{0}, failures_{0};
  std::atomic<int> first_{0};
  std::vector<std::jthread> threads_;
};

// A request that makes the daemon call something with the file "bad".
struct Poison {
  const char* name;
  std::uint32_t kinds;
  std::function<int(const std::string& path, int fd)> request;
};

void PrintTo(const Poison& given, std::ostream* out) { *out << given.name; }

class PoisonTest : public CrashTest, public testing::WithParamInterface<Poison> {};

TEST_P(PoisonTest, CostsOneRequest) {
  Mount mount(pool());
  write_file(mount / "bad", "content");
  write_file(mount / "good", "content");
  const UniqueFd open(::open((mount / "bad").c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  ASSERT_TRUE(open) << errno_name(errno);
  // The shim asks the kernel for the path of a descriptor. A successor opens the file by its
  // handle, and the kernel may not know the path then.
  const UniqueFd known(::open(stage_.on("nvme", "bad").c_str(), O_PATH | O_CLOEXEC));
  const pid_t keeper = mount.keeper();
  {
    const Others others(mount);
    arm(FaultAction::Crash, GetParam().kinds, stage_.on("nvme", "bad"));

    EXPECT_EQ(GetParam().request(mount / "bad", open.get()), EIO) << shim_.where();

    shim_.disarm();
  }
  EXPECT_FALSE(has_ended(keeper));
  EXPECT_EQ(read_file(mount / "good"), "content");
  EXPECT_EQ(GetParam().request(mount / "bad", open.get()), 0) << "without the fault";
  const std::string log = mount.log();
  const auto named = log.find("a request has crashed the daemon 2 times");
  ASSERT_NE(named, std::string::npos) << log;
  EXPECT_NE(log.find(std::string("request=") + GetParam().name, named), std::string::npos) << log;
}

INSTANTIATE_TEST_SUITE_P(
    Requests, PoisonTest,
    testing::Values(Poison{"UNLINK", bits(CallKind::Unlink),
                           [](const std::string& path, int) {
                             return ::unlink(path.c_str()) == 0 ? 0 : errno;
                           }},
                    Poison{"RENAME", bits(CallKind::Rename),
                           [](const std::string& path, int) {
                             return ::rename(path.c_str(), (path + "2").c_str()) == 0 ? 0 : errno;
                           }},
                    Poison{"SETATTR", bits(CallKind::Resize),
                           [](const std::string& path, int) {
                             return ::truncate(path.c_str(), 1) == 0 ? 0 : errno;
                           }},
                    Poison{"READ", bits(CallKind::Read),
                           [](const std::string&, int fd) {
                             alignas(4096) static char bytes[4096];
                             return ::pread(fd, bytes, sizeof bytes, 0) < 0 ? errno : 0;
                           }}),
    [](const testing::TestParamInfo<Poison>& each) { return std::string(each.param.name); });

TEST_F(CrashTest, ManyCrashesDoNotEndTheMount) {
  Mount mount(pool());
  write_file(mount / "bad", "content");
  const pid_t keeper = mount.keeper();
  const UniqueFd open(::open((mount / "bad").c_str(), O_RDONLY | O_CLOEXEC));
  arm(FaultAction::Crash, bits(CallKind::Unlink), stage_.on("nvme", "bad"));

  // Each of them is another request, and crashes two daemons.
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(::unlink((mount / "bad").c_str()), -1);
    EXPECT_EQ(errno, EIO);
  }

  EXPECT_FALSE(has_ended(keeper));
  EXPECT_TRUE(logged(mount, "starting another daemon, in 2 s: crashes=6")) << mount.log();
  char content[8] = "";
  EXPECT_EQ(::pread(open.get(), content, sizeof content, 0), 7);
  shim_.disarm();
  EXPECT_EQ(::unlink((mount / "bad").c_str()), 0);
}

TEST_F(CrashTest, RequestsWaitForADaemonThatCanStart) {
  Mount mount(pool());
  write_file(mount / "file", "content");
  arm(FaultAction::KillBefore, kAllCalls, stage_.on("nvme"));
  DaemonKiller(mount.keeper()).kill();
  ASSERT_TRUE(logged(mount, "starting another daemon, in 1 s: crashes=5")) << mount.log();
  shim_.disarm();
  EXPECT_EQ(read_file(mount / "file"), "content");
}

TEST_F(CrashTest, AMountWhoseDaemonsCannotStartCanBeUnmounted) {
  Mount mount(pool());
  const pid_t keeper = mount.keeper();
  write_file(mount / "file", "content");
  arm(FaultAction::KillBefore, kAllCalls, stage_.on("nvme"));
  DaemonKiller(keeper).kill();
  ASSERT_TRUE(logged(mount, "starting another daemon, in 8 s: crashes=8")) << mount.log();

  const CommandResult status = sluice({"status", mount.path()});
  EXPECT_EQ(status.exit_code, 1);
  EXPECT_NE(status.err.find("no daemon runs: it has crashed several times"), std::string::npos)
      << status.err;
  ASSERT_NO_THROW(mount.umount());

  EXPECT_TRUE(has_ended(keeper));
  shim_.disarm();
  ASSERT_NO_THROW(mount.mount());
  EXPECT_EQ(read_file(mount / "file"), "content");
}

TEST_F(CrashTest, AStoppedDaemonIsNamedByTheStatusAndTheLog) {
  Mount mount(pool());
  ::kill(mount.pid(), SIGSTOP);
  const std::string advice = "'kill -CONT " + std::to_string(mount.pid()) + "' continues it";

  EXPECT_TRUE(logged(mount, advice)) << mount.log();
  const CommandResult status = sluice({"status", mount.path()});
  EXPECT_EQ(status.exit_code, 1);
  EXPECT_NE(status.err.find(advice), std::string::npos) << status.err;

  ::kill(mount.pid(), SIGCONT);
  EXPECT_TRUE(sluice({"status", mount.path()}).ok());
  EXPECT_TRUE(logged(mount, "the daemon continues")) << mount.log();
}

TEST_F(CrashTest, UmountWaitsForTheSuccessorOfADaemonThatWasKilledMeanwhile) {
  Mount mount(pool());
  const pid_t keeper = mount.keeper(), daemon = mount.pid();
  arm(FaultAction::Block, kAllCalls, mount.pool().state + "/db");
  std::atomic<bool> returned{false}, kept{false};
  std::jthread umount([&] {
    const CommandResult result = sluice({"umount", mount.path()});
    EXPECT_TRUE(result.ok()) << result.err;
    kept = !has_ended(keeper);
    returned = true;
  });
  // The mount is gone, and the daemon closes its database.
  ASSERT_TRUE(eventually([&] { return shim_.blocks(); }));
  ::kill(daemon, SIGKILL);
  ASSERT_TRUE(eventually([&] {
    const auto children = children_of(keeper);
    return !children.empty() && children[0] != daemon;
  }));
  // Longer than it used to wait.
  eventually([&] { return returned.load(); }, std::chrono::seconds(6));
  shim_.disarm();
  umount.join();
  EXPECT_FALSE(kept) << "the keeper outlived 'sluice umount'";
}

}  // namespace
}  // namespace sluice::test
