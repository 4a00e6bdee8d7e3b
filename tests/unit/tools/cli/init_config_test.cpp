// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/init_config.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "tests/support/files.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice::tools::cli {
namespace {

using test::exists;

class InitConfigTest : public testing::Test {
 protected:
  InitConfig config(std::vector<std::string> tiers) const {
    return {base_ / "etc/pool.toml", base_ / "mnt", std::move(tiers), {}, {}, {}};
  }
  test::TempDir base_;
};

TEST_F(InitConfigTest, MountCanReadTheWrittenConfig) {
  base_.make_dir("disk \"a\"");
  auto wanted =
      config({"nvme=" + base_ / "disk \"a\"/sluice" + ",capacity=800GiB,high_watermark=85",
              "hdd=" + base_ / "b"});
  ASSERT_TRUE(prepare_config(wanted));
  EXPECT_FALSE(exists(base_ / "b")) << "preparing touches nothing";
  const mode_t umask_before = ::umask(077);
  const auto written = write_config(wanted, false);
  ::umask(umask_before);
  ASSERT_TRUE(written) << written.error().text();
  EXPECT_EQ(written->size(), 4u);
  EXPECT_EQ(test::lstat_of(wanted.file).st_mode & 07777, 0644u);
  EXPECT_EQ(test::lstat_of(base_ / "b").st_mode & 07777, 0755u);
  MountOptions read;
  ASSERT_TRUE(apply_config_file(wanted.file, read));
  ASSERT_EQ(read.tiers.size(), 2u);
  EXPECT_EQ(read.tiers[0].path, base_ / "disk \"a\"/sluice");
  EXPECT_EQ(read.tiers[0].capacity, std::uint64_t{800} << 30);
  EXPECT_EQ(read.tiers[0].high_watermark, 85u);
  EXPECT_EQ(read.mountpoint, base_ / "mnt");
}

TEST_F(InitConfigTest, ModelsGetRulesAndABudgetOfATenth) {
  auto wanted = config(
      {"nvme=" + base_ / "a" + ",capacity=1GiB", "ssd=" + base_ / "b", "hdd=" + base_ / "c"});
  wanted.is_for_models = true;
  ASSERT_TRUE(prepare_config(wanted));
  const auto& rules = wanted.options.rules;
  ASSERT_EQ(rules.size(), 5u);
  for (const auto* match : {"/datasets/**", "/hf/datasets/**", "/hf/hub/datasets--*/**"}) {
    const auto rule = std::find_if(rules.begin(), rules.end(),
                                   [&](const auto& each) { return each.match == match; });
    ASSERT_NE(rule, rules.end()) << match;
    EXPECT_EQ(rule->tier, "hdd");
    EXPECT_EQ(rule->smaller, 1u) << "only new files";
  }
  EXPECT_EQ(rules[3].match, "/kv-cache");
  EXPECT_EQ(rules[3].budget, std::uint64_t{102} << 20);
  EXPECT_EQ(rules[4].match, "/kv-cache/**");
  EXPECT_EQ(rules[4].tier, "nvme");
}

TEST_F(InitConfigTest, ModelsOnASingleTierGetOnlyTheBudget) {
  auto wanted = config({"nvme=" + base_ / "a"});
  wanted.is_for_models = true;
  ASSERT_TRUE(prepare_config(wanted));
  ASSERT_EQ(wanted.options.rules.size(), 1u);
  EXPECT_TRUE(wanted.options.rules[0].budget);
}

TEST_F(InitConfigTest, ModelsAddTheVariablesOfPrograms) {
  auto wanted = config({"a=" + base_ / "a"});
  wanted.mountpoint = "/mnt/my models";
  wanted.is_for_models = true;
  ASSERT_TRUE(prepare_config(wanted));
  const std::string steps = next_steps(wanted, "");
  EXPECT_NE(steps.find("export HF_HOME='/mnt/my models/hf'\n"), std::string::npos) << steps;
  EXPECT_NE(steps.find("export OLLAMA_MODELS='/mnt/my models/ollama'\n"), std::string::npos);
}

TEST_F(InitConfigTest, ExistingFileIsReplacedOnlyIfRequested) {
  base_.make_file("etc/pool.toml", "mine");
  auto wanted = config({"a=" + base_ / "a"});
  ASSERT_TRUE(prepare_config(wanted));
  EXPECT_NE(write_config(wanted, false).error().text().find("--force"), std::string::npos);
  EXPECT_EQ(test::read_file(wanted.file), "mine");
  EXPECT_FALSE(exists(base_ / "a"));
  EXPECT_TRUE(write_config(wanted, true));
  EXPECT_EQ(test::read_file(wanted.file), wanted.text);
  EXPECT_EQ(test::names_in(base_ / "etc"), std::vector<std::string>{"pool.toml"});
}

TEST_F(InitConfigTest, RemovesEverythingAfterAProblem) {
  // The second tier is inside the first.
  auto wanted = config({"a=" + base_ / "a", "b=" + base_ / "a/b"});
  ASSERT_TRUE(prepare_config(wanted));
  EXPECT_NE(write_config(wanted, false).error().text().find("is inside"), std::string::npos);
  EXPECT_EQ(test::names_in(base_.path()), std::vector<std::string>{});
  wanted = config({"a=" + base_ / "unmounted/disk"});
  ASSERT_TRUE(prepare_config(wanted));
  EXPECT_NE(write_config(wanted, false).error().text().find("is its disk mounted?"),
            std::string::npos);
}

TEST_F(InitConfigTest, FailsIfANewParentDirectoryAlreadyExists) {
  const std::string elsewhere = base_.make_dir("elsewhere");
  ASSERT_EQ(::symlink(elsewhere.c_str(), (base_ / "sluice").c_str()), 0);
  auto wanted = config({"a=" + base_ / "sluice/tier"});
  ASSERT_TRUE(prepare_config(wanted));
  wanted.new_parents = {base_ / "sluice"};
  EXPECT_NE(write_config(wanted, false).error().text().find("was created by another program"),
            std::string::npos);
  EXPECT_FALSE(exists(wanted.file));
  EXPECT_FALSE(exists(elsewhere + "/tier"));
}

TEST_F(InitConfigTest, OnlyRootCanEnterTheParentOfAProposedTier) {
  auto wanted = config({"a=" + base_ / "sluice/tier"});
  ASSERT_TRUE(prepare_config(wanted));
  wanted.new_parents = {base_ / "sluice"};
  EXPECT_TRUE(check_places(wanted));
  EXPECT_TRUE(write_config(wanted, false));
  EXPECT_EQ(test::lstat_of(base_ / "sluice").st_mode, S_IFDIR | 0700u);
  EXPECT_EQ(test::lstat_of(base_ / "sluice/tier").st_mode, S_IFDIR | 0755u);
}

TEST_F(InitConfigTest, CheckPlacesReportsProblemsBeforeWriting) {
  base_.make_file("file", "x");
  const auto problem = [&](const std::string& path) {
    auto wanted = config({"a=" + path});
    auto usable = prepare_config(wanted);
    if (usable) usable = check_places(wanted);
    return usable ? "" : usable.error().text();
  };
  EXPECT_EQ(problem(base_ / "a"), "");
  EXPECT_NE(problem("/").find("is inside tier a"), std::string::npos) << problem("/");
  EXPECT_NE(problem(base_ / "file").find("is not a directory"), std::string::npos);
  EXPECT_NE(problem(base_ / "unmounted/disk").find("is its disk mounted?"), std::string::npos);
  EXPECT_EQ(test::names_in(base_.path()), std::vector<std::string>{"file"});
}

TEST_F(InitConfigTest, ReportsMistakesWithTheWordsOfMount) {
  auto same = config({"a=/x", "a=/y"});
  EXPECT_NE(prepare_config(same).error().text().find("has that name already"), std::string::npos);
  auto key = config({"a=/x,colour=red"});
  EXPECT_NE(prepare_config(key).error().text().find("colour"), std::string::npos);
  auto none = config({"nonsense"});
  EXPECT_FALSE(prepare_config(none));
}

TEST_F(InitConfigTest, PoolNameMustBeValidForAUnit) {
  EXPECT_TRUE(is_pool_name("pool-2.main"));
  for (const char* name : {"", ".hidden", "-x", "a/b", "a b", "a@b", "\xc3\xa4"}) {
    EXPECT_FALSE(is_pool_name(name)) << name;
  }
}

TEST_F(InitConfigTest, FstabLineEscapesSpaces) {
  InitConfig wanted{"/etc/my pool.toml", "/mnt/p", {"a=/a b"}, {}, {}, {}};
  ASSERT_TRUE(prepare_config(wanted));
  const std::string steps = next_steps(wanted, "");
  EXPECT_NE(steps.find("/etc/my\\040pool.toml  /mnt/p  sluice  nofail,"
                       "x-systemd.requires-mounts-for=/a\\040b  0 0\n"),
            std::string::npos)
      << steps;
  EXPECT_NE(steps.find("sluice mount --config '/etc/my pool.toml'"), std::string::npos) << steps;
  EXPECT_EQ(steps.find("systemctl"), std::string::npos);
  EXPECT_NE(next_steps(wanted, "p").find("systemctl enable --now sluice@p"), std::string::npos);
}

}  // namespace
}  // namespace sluice::tools::cli
