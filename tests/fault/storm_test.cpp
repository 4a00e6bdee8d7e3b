// SPDX-License-Identifier: BSD-2-Clause
// The same storm on the mount and on a native directory must have the same results.
#include "tests/fault/storm.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "tests/support/files.hpp"
#include "tests/support/loop_fs.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/tree.hpp"

namespace sluice::test {
namespace {

class StormTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::getenv("SLUICE_TEST_MOUNT") && !require_mounts("fault")) return;
    ::umask(022);
  }

  void mount(std::vector<std::string> flags = {}) {
    Pool pool{{}, base_ / "state", base_ / "mnt", std::move(flags)};
    for (const char* tier : {"nvme", "ssd", "hdd"}) {
      pool.tiers.push_back(std::string(tier) + "=" + base_.make_dir(tier));
    }
    mount(pool);
  }
  void mount(const Pool& pool) {
    if (const char* stand_in = std::getenv("SLUICE_TEST_MOUNT")) {
      mounted_ = std::string(stand_in) + "/storm";
    } else {
      mount_ = std::make_unique<Mount>(pool);
      mounted_ = *mount_ / "storm";
    }
    remove_tree(mounted_);
    ASSERT_EQ(::mkdir(mounted_.c_str(), 0755), 0);
  }

  void expect_the_same(StormOptions options) {
    options.seed = test_seed();
    options.steps *= rounds(1, 20);
    const std::string native = base_.make_dir("native");
    const auto expected = run_storm(native, options);
    const auto actual = run_storm(mounted_, options);
    ASSERT_EQ(expected.size(), actual.size());
    for (std::size_t thread = 0; thread < expected.size(); ++thread) {
      expect_same_log(thread, expected[thread], actual[thread]);
    }
    expect_sound(mounted_ + "/fight");
    remove_tree(native + "/fight");
    remove_tree(mounted_ + "/fight");
    EXPECT_FALSE(exists(mounted_ + "/fight")) << "the directory cannot be emptied";
    EXPECT_EQ(difference(digest(native, kCompared), digest(mounted_, kCompared)), "")
        << "(expected is native)";
    if (!mount_) return;
    mount_->remount();
    EXPECT_EQ(difference(digest(native, kCompared), digest(mounted_, kCompared)), "")
        << "after a remount";
    mount_->umount();
    std::vector<std::string> arguments = mount_->pool().fsck_arguments();
    arguments.insert(arguments.begin(), "fsck");
    const CommandResult report = sluice(arguments);
    EXPECT_EQ(report.exit_code, 0) << report.out << report.err;
  }

  // Directories on several tiers may not count their links.
  static constexpr DigestOptions kCompared{.times = false, .directory_links = false};

  TempDir base_;
  std::vector<std::unique_ptr<LoopFs>> disks_;

 private:
  static void expect_same_log(std::size_t thread, const std::vector<std::string>& expected,
                              const std::vector<std::string>& actual) {
    for (std::size_t i = 0; i < expected.size() && i < actual.size(); ++i) {
      if (expected[i] == actual[i]) continue;
      ADD_FAILURE() << "thread " << thread << ", line " << i
                    << "\n  after:  " << (i ? expected[i - 1] : "") << "\n  native: " << expected[i]
                    << "\n  mount:  " << actual[i];
      return;
    }
    EXPECT_EQ(expected.size(), actual.size());
  }

  // Whatever the threads left: each listed name exists, and none is listed twice.
  static void expect_sound(const std::string& directory) {
    const std::vector<std::string> names = names_in(directory);
    EXPECT_EQ(std::ranges::adjacent_find(names), names.end()) << directory;
    for (const std::string& name : names) {
      const std::string path = directory + "/" + name;
      EXPECT_TRUE(exists(path)) << path << " is listed but does not exist";
      if (exists(path) && S_ISDIR(lstat_of(path).st_mode)) expect_sound(path);
    }
  }

  std::unique_ptr<Mount> mount_;
  std::string mounted_;
};

TEST_F(StormTest, HasTheSameResultAsOnANativeDirectory) {
  mount();
  expect_the_same({});
}

TEST_F(StormTest, HasTheSameResultWithEveryFileInPassthrough) {
  mount({"--small-file", "0"});
  expect_the_same({});
}

TEST_F(StormTest, HasTheSameResultWithEveryFileServed) {
  mount({"--debug=passthrough=off"});
  expect_the_same({});
}

TEST_F(StormTest, HasTheSameResultWhileFilesSpill) {
  if (!require_loop("fault", "ext4")) return;
  Pool pool{{}, base_ / "state", base_ / "mnt"};
  constexpr std::array<std::pair<const char*, std::uint64_t>, 3> kDisks{
      {{"nvme", 6u << 20}, {"ssd", 8u << 20}, {"hdd", 256u << 20}}};
  for (const auto& [name, size] : kDisks) {
    disks_.push_back(std::make_unique<LoopFs>(base_ / name, "ext4", size));
    pool.tiers.push_back(std::string(name) + "=" + disks_.back()->path() +
                         ",reserve=1GiB,high_watermark=95");
  }
  mount(pool);
  expect_the_same({.roomy = false});
}

}  // namespace
}  // namespace sluice::test
