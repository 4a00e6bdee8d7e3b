// SPDX-License-Identifier: BSD-2-Clause
// Nobody can see from times that files move, also if the daemon is restarted, killed, or killed
// with its keeper meanwhile.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/fault/move_stage.hpp"
#include "tests/support/files.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice::test {
namespace {

constexpr int kTimesDirectories = 3;
constexpr int kTimesFiles = 8;  // in each

// mtime, ctime and time of birth, as the daemon knows them: the kernel must not use its cache.
std::string times_of(int fd, const std::string& path, int flags) {
  struct statx st {};
  if (::statx(fd, path.c_str(), flags | AT_STATX_FORCE_SYNC | AT_SYMLINK_NOFOLLOW,
              STATX_BASIC_STATS | STATX_BTIME, &st) < 0) {
    return "statx: " + errno_name(errno);
  }
  std::string out = "inode " + std::to_string(st.stx_ino);
  const auto add = [&](const char* what, const statx_timestamp& time) {
    std::array<char, 64> text{};
    std::snprintf(text.data(), text.size(), " %s %lld.%09u", what,
                  static_cast<long long>(time.tv_sec), time.tv_nsec);
    out += text.data();
  };
  add("mtime", st.stx_mtime);
  add("ctime", st.stx_ctime);
  add("born", st.stx_btime);
  return out;
}

class TimesStormTest : public testing::Test {
 protected:
  void SetUp() override {
    ::umask(022);
    [[maybe_unused]] const bool able = require_mounts("fault");
  }

  void make_files(const Mount& mount) {
    paths_.push_back("");
    for (int d = 0; d < kTimesDirectories; ++d) {
      const std::string directory = "d" + std::to_string(d);
      ASSERT_EQ(::mkdir((mount / directory).c_str(), 0755), 0);
      for (int f = 0; f < kTimesFiles; ++f) {
        const std::string name = directory + "/f" + std::to_string(f);
        write_file(mount / name, pattern(100 + 5000 * static_cast<std::size_t>(f), 1));
        files_.push_back(name);
        paths_.push_back(name);
      }
      ASSERT_EQ(::link((mount / files_.back()).c_str(), (mount / (directory + "/link")).c_str()),
                0);
      paths_.push_back(directory + "/link");
      paths_.push_back(directory);
    }
  }

  // While these are open, the kernel asks for attributes without a lookup.
  void hold(const Mount& mount) {
    held_.clear();
    for (const std::string& path : paths_)
      held_[path] = UniqueFd(::open((mount / path).c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  }
  std::map<std::string, std::string> look_at_held() const {
    std::map<std::string, std::string> out;
    for (const auto& [path, fd] : held_) out[path] = times_of(fd.get(), "", AT_EMPTY_PATH);
    return out;
  }
  std::map<std::string, std::string> look_up(const Mount& mount) const {
    std::map<std::string, std::string> out;
    for (const std::string& path : paths_) out[path] = times_of(AT_FDCWD, mount / path, 0);
    return out;
  }

  std::vector<std::string> files_, paths_;  // relative to the mount
  std::map<std::string, UniqueFd> held_;
};

TEST_F(TimesStormTest, NoMoveRestartOrCrashChangesTheTimes) {
  const TempDir base;
  const MoveStage stage(base.path());
  Pool pool = stage.pool();
  pool.flags.push_back("--debug=crash_limit=0");
  Mount mount(pool);
  make_files(mount);
  hold(mount);
  const auto before = look_up(mount);
  ASSERT_EQ(look_at_held(), before);
  std::mt19937_64 random(test_seed());
  enum Event { kNothing, kRestart, kCrash, kCrashOfAll, kRemount, kEvents };
  std::map<std::string, int> moves;
  std::map<std::string, std::string> tiers;
  for (int round = 0; round < rounds(20, 1000); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    for (const std::string& file : files_) {
      if (random() % 2) send_to(mount / file, MoveStage::tiers()[random() % 3]);
    }
    // Some moves are over then, some have begun, some wait.
    for (std::uint64_t i = random() % 4; i > 0; --i) ASSERT_EQ(look_at_held(), before);
    const auto event = static_cast<Event>(round % kEvents);
    SCOPED_TRACE("event " + std::to_string(event));
    if (event == kRestart) {
      ASSERT_TRUE(sluice({"restart", mount.path()}).ok());
    }
    if (event == kCrash) mount.crash_daemon();
    if (event == kCrashOfAll || event == kRemount) {
      held_.clear();
      if (event == kRemount) {
        mount.remount();
      } else {
        mount.kill_daemon();
        mount.detach();
        mount.mount();
      }
      hold(mount);
    }
    ASSERT_EQ(look_at_held(), before) << "without lookups";
    ASSERT_EQ(look_up(mount), before);
    for (const std::string& file : files_) {
      std::string& last = tiers[file];
      const std::string now = tier_of(mount / file);
      moves[file] += !last.empty() && last != now;
      last = now;
    }
  }
  int moved = 0;
  for (const auto& [file, count] : moves) moved += count;
  std::printf("%d moves seen\n", moved);
  EXPECT_GT(moved, 0) << "no file was moved, so the test tests nothing";
  held_.clear();
}

}  // namespace
}  // namespace sluice::test
