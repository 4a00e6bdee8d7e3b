// SPDX-License-Identifier: BSD-2-Clause
// `sluice init` with options and at a terminal: the configuration that it writes can be mounted.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/unique_fd.hpp"
#include "tests/support/files.hpp"
#include "tests/support/loop_fs.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {
namespace {

using Strings = std::vector<std::string>;

class InitTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!require_mounts("mount") || !require_loop("mount", "ext4")) return;
    fast_ = std::make_unique<LoopFs>(base_ / "fast", "ext4", 48 << 20);
    slow_ = std::make_unique<LoopFs>(base_ / "slow", "ext4", 96 << 20);
  }

  CommandResult init(Strings more) const {
    more.insert(more.begin(), {"init", "--output", file()});
    return sluice(more);
  }
  Strings flags() const {
    return {"--tier",       "nvme=" + fast_->path(), "--tier", "hdd=" + slow_->path() + "/sluice",
            "--mountpoint", base_ / "mnt/pool"};
  }
  std::string file() const { return base_ / "etc/pool.toml"; }

  // Mounts the written configuration, uses the pool and unmounts it.
  void use() const {
    const CommandResult mounted = sluice({"mount", "--config", file(), "--state", base_ / "state"});
    ASSERT_TRUE(mounted.ok()) << mounted.err;
    const std::string root = base_ / "mnt/pool";
    EXPECT_NO_THROW(write_file(root + "/new", "written"));
    EXPECT_EQ(xattr_of(root + "/new", "user.sluice.tier"), "nvme");
    EXPECT_EQ(sluice({"move", "--to", "hdd", "--wait", root + "/new"}).exit_code, 0);
    EXPECT_EQ(read_file(slow_->path() + "/sluice/new"), "written");
    if (exists(slow_->path() + "/sluice/old")) {
      EXPECT_EQ(read_file(root + "/old"), "adopted");
    }
    const CommandResult unmounted = sluice({"umount", "--config", file()});
    EXPECT_TRUE(unmounted.ok()) << unmounted.err;
  }

  TempDir base_;
  std::unique_ptr<LoopFs> fast_, slow_;
};

TEST_F(InitTest, PoolFromOptionsCanBeMounted) {
  const CommandResult made = init(flags());
  ASSERT_TRUE(made.ok()) << made.err;
  EXPECT_NE(made.out.find("wrote " + file()), std::string::npos) << made.out;
  EXPECT_NE(made.out.find("sluice mount --config " + file()), std::string::npos) << made.out;
  EXPECT_EQ(made.out.find("will be part of the pool"), std::string::npos) << made.out;
  use();
}

TEST_F(InitTest, PoolForModelsPlacesFilesByItsRules) {
  Strings wanted = flags();
  wanted.insert(wanted.end(), {"--for", "models"});
  const CommandResult made = init(wanted);
  ASSERT_TRUE(made.ok()) << made.err;
  const std::string root = base_ / "mnt/pool";
  EXPECT_NE(made.out.find("export HF_HOME=" + root + "/hf"), std::string::npos) << made.out;
  const CommandResult mounted = sluice({"mount", "--config", file(), "--state", base_ / "state"});
  ASSERT_TRUE(mounted.ok()) << mounted.err;
  const auto tier_of_new = [&](const std::string& directory) {
    EXPECT_TRUE(run_command({"mkdir", "-p", root + directory}).ok());
    write_file(root + directory + "/new", "bytes");
    return xattr_of(root + directory + "/new", "user.sluice.tier");
  };
  EXPECT_EQ(tier_of_new("/hf/hub/models--org--name/blobs"), "nvme");
  EXPECT_EQ(tier_of_new("/hf/hub/datasets--org--name/blobs"), "hdd");
  EXPECT_EQ(tier_of_new("/hf/datasets/name"), "hdd");
  EXPECT_EQ(tier_of_new("/datasets/a/b"), "hdd");
  EXPECT_EQ(tier_of_new("/kv-cache/vllm"), "nvme");
  // The first tier was chosen; from then on, heat decides.
  EXPECT_EQ(sluice({"move", "--to", "nvme", "--wait", root + "/datasets"}).exit_code, 0);
  EXPECT_EQ(sluice({"tier", "run", root}).exit_code, 0);
  EXPECT_EQ(xattr_of(root + "/datasets/a/b/new", "user.sluice.tier"), "nvme");
  const CommandResult budgets = sluice({"budget", root});
  EXPECT_NE(budgets.out.find("/kv-cache"), std::string::npos) << budgets.out << budgets.err;
  EXPECT_TRUE(sluice({"umount", root}).ok());
}

TEST_F(InitTest, UnknownPurposeIsRefused) {
  Strings wanted = flags();
  wanted.insert(wanted.end(), {"--for", "modles"});
  const CommandResult refused = init(wanted);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("the only one is 'models'"), std::string::npos) << refused.err;
  EXPECT_FALSE(exists(file()));
}

TEST_F(InitTest, ExistingFilesAreReportedAndAdopted) {
  ASSERT_TRUE(run_command({"mkdir", slow_->path() + "/sluice"}).ok());
  write_file(slow_->path() + "/sluice/old", "adopted");
  const CommandResult made = init(flags());
  ASSERT_TRUE(made.ok()) << made.err;
  EXPECT_NE(made.out.find("tier hdd: 1 file (7 B) in " + slow_->path()), std::string::npos)
      << made.out;
  use();
}

// Whether a user who is not root can use a file and run a program of the mount.
std::string used_by_nobody(const std::string& directory) {
  return as_user(kNobody, [&]() -> std::string {
    const UniqueFd fd(::open((directory + "/f").c_str(), O_RDWR | O_CLOEXEC));
    std::array<char, 4> bytes{};
    if (!fd || ::pread(fd.get(), bytes.data(), bytes.size(), 0) != 4) return "can't read";
    if (::pwrite(fd.get(), "new", 3, 0) != 3) return "can't write";
    void* const map = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (map == MAP_FAILED) return "can't map";
    std::memcpy(static_cast<char*>(map) + 3, "map", 3);
    const pid_t child = ::fork();
    if (child == 0) {
      ::execl((directory + "/true").c_str(), "true", nullptr);
      ::_exit(1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return status == 0 ? "works" : "can't execute";
  });
}

TEST_F(InitTest, OpenTiersAreReportedAndCanBeClosedWhileMounted) {
  const std::string close = "sluice tier close " + fast_->path() + " " + slow_->path() + "/sluice";
  const CommandResult made = init(flags());
  ASSERT_TRUE(made.ok()) << made.err;
  EXPECT_NE(made.out.find(close), std::string::npos) << made.out;
  const Strings mount{"mount", "--config", file(), "--state", base_ / "state"};
  const CommandResult mounted = sluice(mount);
  ASSERT_TRUE(mounted.ok()) << mounted.err;
  EXPECT_NE(mounted.err.find(close), std::string::npos) << mounted.err;
  const std::string root = base_ / "mnt/pool", pub = root + "/pub";
  ASSERT_TRUE(run_command({"mkdir", "-m", "777", pub}).ok());
  ASSERT_TRUE(run_command({"cp", "/bin/true", pub + "/true"}).ok());
  write_file(pub + "/f", pattern(1 << 20, 1));  // large enough for passthrough
  ASSERT_EQ(::chmod((pub + "/f").c_str(), 0666), 0);
  const auto can_enter = [&](const std::string& path) {
    return as_user(
        kNobody, [&]() -> std::string { return ::access(path.c_str(), F_OK) == 0 ? "yes" : "no"; });
  };
  EXPECT_EQ(can_enter(fast_->path() + "/pub/f"), "yes");
  const auto access = [&] {
    Strings verdicts;
    const auto report = nlohmann::json::parse(sluice({"doctor", "--json", root}).out);
    for (const auto& section : report.at("sections")) {
      for (const auto& check : section.at("checks")) {
        if (check.at("what") == "access") verdicts.push_back(check.at("verdict"));
      }
    }
    return verdicts;
  };
  EXPECT_EQ(access(), (Strings{"warn", "warn"}));

  const CommandResult closed = sluice({"tier", "close", fast_->path(), slow_->path() + "/sluice"});
  EXPECT_TRUE(closed.ok()) << closed.err;
  EXPECT_EQ(can_enter(fast_->path() + "/pub/f"), "no");
  EXPECT_EQ(can_enter(slow_->path() + "/sluice"), "no");
  EXPECT_EQ(used_by_nobody(pub), "works");
  EXPECT_EQ(read_file(fast_->path() + "/pub/f").substr(0, 6), "newmap");
  EXPECT_EQ(access(), (Strings{"ok", "ok"}));
  EXPECT_EQ(sluice({"move", "--to", "hdd", "--wait", pub + "/f"}).exit_code, 0);
  EXPECT_EQ(used_by_nobody(pub), "works");
  EXPECT_TRUE(sluice({"umount", root}).ok());

  const CommandResult again = sluice(mount);
  ASSERT_TRUE(again.ok()) << again.err;
  EXPECT_EQ(again.err.find("warning"), std::string::npos) << again.err;
  EXPECT_EQ(read_file(pub + "/f").substr(0, 6), "newmap");
  EXPECT_TRUE(sluice({"umount", root}).ok());
}

TEST_F(InitTest, OnlyTiersCanBeClosed) {
  const CommandResult result = sluice({"tier", "close", slow_->path()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("is not a tier"), std::string::npos) << result.err;
  EXPECT_FALSE(exists(slow_->path() + ".private"));
}

TEST_F(InitTest, ExistingFileIsNotReplaced) {
  ASSERT_TRUE(init(flags()).ok());
  const std::string before = read_file(file());
  Strings other = flags();
  other.back() = base_ / "mnt/other";
  const CommandResult again = init(other);
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_NE(again.err.find("--force"), std::string::npos) << again.err;
  EXPECT_EQ(read_file(file()), before);
  EXPECT_FALSE(exists(base_ / "mnt/other"));
}

TEST_F(InitTest, DryRunAndJsonWriteNothing) {
  Strings dry = flags();
  dry.push_back("--dry-run");
  const CommandResult shown = init(dry);
  ASSERT_TRUE(shown.ok()) << shown.err;
  EXPECT_NE(shown.out.find("path = \"" + fast_->path() + "\""), std::string::npos) << shown.out;
  Strings json = flags();
  json.push_back("--json");
  const CommandResult told = init(json);
  ASSERT_TRUE(told.ok()) << told.err;
  const auto report = nlohmann::json::parse(told.out);
  EXPECT_EQ(report.at("written"), false);
  EXPECT_EQ(report.at("mountpoint"), base_ / "mnt/pool");
  EXPECT_EQ(report.at("tiers").size(), 2u);
  // The loop devices are found and recognised.
  bool seen = false;
  for (const auto& each : report.at("filesystems")) {
    if (each.at("mounted_at") != fast_->path()) continue;
    seen = true;
    EXPECT_TRUE(each.at("tier").is_null());
    EXPECT_EQ(each.at("why"), "a mounted image file, not a disk");
  }
  EXPECT_TRUE(seen) << told.out;
  EXPECT_FALSE(exists(base_ / "etc"));
  EXPECT_FALSE(exists(base_ / "mnt"));
  EXPECT_FALSE(exists(slow_->path() + "/sluice"));
}

TEST_F(InitTest, DryRunFailsLikeTheRealRun) {
  const CommandResult inside =
      init({"--dry-run", "--tier", "a=" + fast_->path(), "--mountpoint", fast_->path() + "/mnt"});
  EXPECT_EQ(inside.exit_code, 1) << inside.out;
  EXPECT_NE(inside.err.find("is inside tier a"), std::string::npos) << inside.err;
  const CommandResult folder = sluice({"init", "--dry-run", "--output", base_ / "etc/", "--tier",
                                       "a=" + fast_->path(), "--mountpoint", base_ / "mnt"});
  EXPECT_EQ(folder.exit_code, 2) << folder.out;
}

TEST_F(InitTest, WithoutATerminalItNeedsOptions) {
  const CommandResult said = init({});
  EXPECT_EQ(said.exit_code, 2);
  EXPECT_NE(said.err.find("--yes"), std::string::npos) << said.err;
}

// Runs `sluice init` at a terminal, types these lines, and returns its output.
std::string typed(const Strings& arguments, const std::string& lines, int& code) {
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    const std::string binary = sluice_binary();
    std::vector<char*> argv{const_cast<char*>("sluice")};
    for (const auto& each : arguments) argv.push_back(const_cast<char*>(each.c_str()));
    argv.push_back(nullptr);
    ::execv(binary.c_str(), argv.data());
    ::_exit(127);
  }
  // The terminal buffers the lines.
  EXPECT_EQ(::write(terminal, lines.data(), lines.size()), static_cast<ssize_t>(lines.size()));
  std::string said;
  char piece[4096];
  for (ssize_t got; (got = ::read(terminal, piece, sizeof piece)) > 0;) {
    said.append(piece, static_cast<std::size_t>(got));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return said;
}

TEST_F(InitTest, ThreeAnswersAtATerminalCreateAPool) {
  int code = 0;
  const std::string said = typed({"init", "--output", file()},
                                 "nvme=" + fast_->path() + " hdd=" + slow_->path() +
                                     "/sluice\nmine\n" + (base_ / "mnt/pool") + "\n",
                                 code);
  ASSERT_EQ(code, 0) << said;
  for (const char* question :
       {"Tiers, fastest first", "Name of the pool", "Where to mount it", "/mnt/mine"}) {
    EXPECT_NE(said.find(question), std::string::npos) << question << "\n" << said;
  }
  use();
}

TEST_F(InitTest, PoolForModelsIsProposedAsModels) {
  int code = 0;
  const std::string said = typed({"init", "--for", "models", "--output", file()},
                                 "nvme=" + fast_->path() + " hdd=" + slow_->path() + "/sluice\n\n" +
                                     (base_ / "mnt/pool") + "\n",
                                 code);
  ASSERT_EQ(code, 0) << said;
  for (const char* words : {"[models]", "[/mnt/models]", "export OLLAMA_MODELS="}) {
    EXPECT_NE(said.find(words), std::string::npos) << words << "\n" << said;
  }
  use();
}

TEST_F(InitTest, BadAnswerIsExplainedAtOnceAndAskedForAgain) {
  const std::string full = base_.make_dir("full");
  write_file(full + "/file", "x");
  const std::string tiers = "nvme=" + fast_->path() + " hdd=" + slow_->path() + "/sluice\n";
  int code = 0;
  const std::string said =
      typed({"init", "--output", file()},
            "nvme=" + (base_ / "nowhere/tier") + "\nnvme\n" + tiers + "my pool\nmine\n" +
                fast_->path() + "\n" + full + "\n" + (base_ / "mnt/pool") + "\n",
            code);
  ASSERT_EQ(code, 0) << said;
  std::size_t at = 0;
  for (const std::string& word :
       {std::string("nowhere"), std::string("must be NAME=PATH"), std::string("Name of the pool"),
        std::string("'my pool' is not a valid pool name"), std::string("Where to mount it"),
        std::string("is the same directory as"), std::string("is not empty"),
        std::string("created ")}) {
    at = said.find(word, at);
    ASSERT_NE(at, std::string::npos) << word << "\n" << said;
  }
  use();
}

TEST_F(InitTest, EndOfInputAtAQuestionWritesNothing) {
  int code = 0;
  const std::string said = typed({"init", "--output", file()}, "nvme=/x\n\x04", code);
  EXPECT_EQ(code, 1);
  EXPECT_NE(said.find("nothing was written"), std::string::npos) << said;
  EXPECT_FALSE(exists(file()));
}

}  // namespace
}  // namespace sluice::test
