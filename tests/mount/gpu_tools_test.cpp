// SPDX-License-Identifier: BSD-2-Clause
// `sluice-lab gpu-bench` and `sluice doctor` on a mount, with host memory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/unique_fd.hpp"
#include "tests/mount/tiering.hpp"

namespace sluice::test {
namespace {

class GpuToolsTest : public TieringTest {
 protected:
  // A short run of `sluice-lab gpu-bench`, a program beside `sluice`.
  static CommandResult run_bench(const std::string& path, const Strings& flags = {}) {
    const std::string lab = std::filesystem::path(sluice_binary()).replace_filename("sluice-lab");
    Strings command{lab, "gpu-bench", "--host", "--quick", "--size", "8MiB", path};
    command.insert(command.end(), flags.begin(), flags.end());
    // It drops the page cache of the machine, after which a busy one needs long for everything.
    return run_command(command, std::chrono::minutes(5));
  }
  // The same without --host on a machine without a GPU.
  static CommandResult run_without_gpu(const std::string& path) {
    const std::string lab = std::filesystem::path(sluice_binary()).replace_filename("sluice-lab");
    return run_command({"env", "CUDA_VISIBLE_DEVICES=", lab, "gpu-bench", "--quick", path});
  }
  // Its report; `code` is set to its exit status.
  Json bench(const std::string& path, int& code) const {
    const CommandResult run = run_bench(path, {"--json", "-"});
    code = run.exit_code;
    EXPECT_EQ(run.err, "");
    return Json::parse(run.out, nullptr, false);
  }
  static const Json* find(const Json& report, const std::string& phase, const std::string& way) {
    for (const auto& row : report.at("rows")) {
      if (row.at("phase") == phase && row.at("way") == way) return &row;
    }
    return nullptr;
  }
};

TEST_F(GpuToolsTest, BenchWithoutAGpuSaysOneLine) {
  start();
  const CommandResult run = run_without_gpu(mount().path());
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  EXPECT_NE(run.err.find("--host"), std::string::npos) << run.err;
  EXPECT_FALSE(exists(*this / "sluice-gpu-bench.dat"));
}

TEST_F(GpuToolsTest, BenchMeasuresTheDaemonAndChecksEveryWord) {
  start();
  int code = 0;
  const Json report = bench(mount().path(), code);
  ASSERT_EQ(code, 0);
  EXPECT_EQ(report.at("mount"), mount().path());
  for (const char* phase : {"warm", "cold"}) {
    const Json* row = find(report, phase, "daemon auto");
    ASSERT_NE(row, nullptr) << phase;
    EXPECT_EQ(row->at("skipped"), Json()) << *row;
    EXPECT_EQ(row->at("seconds").size(), 2u);
    EXPECT_GT(row->at("gb_per_s"), 0);
  }
  EXPECT_NE(find(report, "warm", "daemon pageable"), nullptr) << "every route must have a row";
  for (const auto& row : report.at("rows")) EXPECT_EQ(row.at("wrong_words"), 0) << row;
  EXPECT_TRUE(exists(*this / "sluice-gpu-bench.dat"));
}

TEST_F(GpuToolsTest, BenchDetectsAWrongWord) {
  start();
  int code = 0;
  bench(mount().path(), code);
  ASSERT_EQ(code, 0);
  const UniqueFd file(::open((*this / "sluice-gpu-bench.dat").c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(::pwrite(file.get(), "x", 1, 5'000'003), 1);
  const CommandResult run = run_bench(mount().path());
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_NE(run.out.find("WRONG: "), std::string::npos) << run.out;
}

TEST_F(GpuToolsTest, BenchLeavesOtherFilesAlone) {
  start();
  write_file(*this / "mine", "not a test file");
  const CommandResult run = run_bench(*this / "mine");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(read_file(*this / "mine"), "not a test file");
}

TEST_F(GpuToolsTest, DoctorChecksEachTierAndAFile) {
  put("hdd", "f", "x");
  start();
  const CommandResult all = sluice({"doctor", "--json", mount().path()});
  ASSERT_TRUE(all.ok()) << all.err;
  const Json report = Json::parse(all.out);
  std::string titles;
  bool has_host_route = false;
  for (const auto& section : report.at("sections")) {
    titles += section.at("title").get<std::string>() + "\n";
    for (const auto& check : section.at("checks")) {
      has_host_route |= check.at("what") == "host" && check.at("verdict") == "ok";
      EXPECT_EQ(check.at("fix").is_null(), check.at("verdict") == "ok") << check;
    }
  }
  for (const char* title : {"kernel\n", "gpu\n", "tier nvme, ", "tier ssd, ", "tier hdd, "}) {
    EXPECT_NE(titles.find(title), std::string::npos) << titles;
  }
  EXPECT_TRUE(has_host_route) << all.out;
  const CommandResult one = sluice({"doctor", *this / "f"});
  EXPECT_TRUE(one.ok()) << one.err;
  EXPECT_NE(one.out.find(on("hdd", "f")), std::string::npos) << one.out;
  EXPECT_EQ(one.out.find("tier nvme"), std::string::npos) << one.out;
  const CommandResult both = sluice({"doctor", root(), *this / "f"});
  EXPECT_TRUE(both.ok()) << both.err;
  EXPECT_NE(both.out.find("tier nvme"), std::string::npos) << both.out;
  EXPECT_NE(both.out.find(on("hdd", "f")), std::string::npos) << both.out;
}

TEST_F(GpuToolsTest, DoctorSaysHowToTurnAFeatureOn) {
  start({"--debug=passthrough=off", "--debug=keeper=off"});
  const CommandResult said = sluice({"doctor", root()});
  EXPECT_NE(said.out.find("-> set passthrough = true in [debug], then mount again"),
            std::string::npos)
      << said.out;
  EXPECT_NE(said.out.find("-> set keeper = true in [debug], then mount again"), std::string::npos)
      << said.out;
}

TEST_F(GpuToolsTest, DoctorReportsADaemonThatDoesNotAnswer) {
  start();
  ASSERT_EQ(::kill(mount().pid(), SIGSTOP), 0);
  std::vector<CommandResult> all;
  for (const Strings& words : {Strings{root()}, {root(), *this / "d/f"}}) {
    Strings arguments{"doctor"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    all.push_back(sluice(arguments));
  }
  ASSERT_EQ(::kill(mount().pid(), SIGCONT), 0);
  for (const CommandResult& said : all) {
    EXPECT_EQ(said.exit_code, 3) << said.err;
    EXPECT_NE(said.out.find("was stopped"), std::string::npos) << said.out;
  }
}

TEST_F(GpuToolsTest, DoctorTrustsTierAttributesOnlyOnASluiceMount) {
  const std::string file = base_ / "file";
  write_file(file, "x");
  const std::string value = "/etc/hostname";
  ASSERT_EQ(::setxattr(file.c_str(), "user.sluice.location", value.data(), value.size(), 0), 0);
  const CommandResult said = sluice({"doctor", file});
  EXPECT_NE(said.out.find(file), std::string::npos) << said.out;
  EXPECT_EQ(said.out.find(value), std::string::npos) << said.out;
}

TEST_F(GpuToolsTest, DoctorExitsWithFailureIfATierFails) {
  LoopFs& disk = add_disk("spare", 32 * kMiB);
  start();
  const CommandResult before = sluice({"doctor", root()});
  EXPECT_EQ(before.exit_code, 0) << before.out;
  EXPECT_EQ(before.out.find("fail"), std::string::npos) << before.out;
  disk.vanish();
  CommandResult after{};
  EXPECT_TRUE(eventually([&] {
    after = sluice({"doctor", "--json", root()});
    return after.exit_code == 3;
  })) << after.out;
  EXPECT_NE(after.out.find("\"verdict\": \"fail\""), std::string::npos) << after.out;
}

}  // namespace
}  // namespace sluice::test
