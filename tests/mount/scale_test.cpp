// SPDX-License-Identifier: BSD-2-Clause
// The descriptors and memory that the daemon needs for a walk over 100,000 files.
#include <fcntl.h>
#include <fts.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>

#include "tests/support/files.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

constexpr int kDirectories = 100;
constexpr int kFilesEach = 1000;

std::size_t descriptors_of(pid_t pid) {
  return names_in("/proc/" + std::to_string(pid) + "/fd").size();
}

long resident_kib(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stol(line.substr(6));
  }
  return -1;
}

// Calls stat for everything below `root`; returns the number of regular files.
int walk(const std::string& root) {
  char* roots[] = {const_cast<char*>(root.c_str()), nullptr};
  FTS* tree = ::fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, nullptr);
  int files = 0;
  while (const FTSENT* entry = ::fts_read(tree)) files += entry->fts_info == FTS_F;
  ::fts_close(tree);
  return files;
}

class ScaleTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!require_mounts("mount")) return;
    for (const char* tier : {"nvme", "ssd", "hdd"}) {
      pool_.tiers.push_back(std::string(tier) + "=" + base_.make_dir(tier));
    }
    pool_.state = base_ / "state";
    pool_.mountpoint = base_ / "mnt";
    // Created directly on the tiers, which is faster. Every directory is on every tier.
    for (int d = 0; d < kDirectories; ++d) {
      const std::string directory = "/d" + std::to_string(d);
      for (const char* tier : {"nvme", "ssd", "hdd"}) base_.make_dir(tier + directory);
      for (int f = 0; f < kFilesEach; ++f) {
        const char* tier = f % 3 == 0 ? "nvme" : f % 3 == 1 ? "ssd" : "hdd";
        const std::string path = base_ / tier + directory + "/f" + std::to_string(f);
        ASSERT_EQ(::mknod(path.c_str(), S_IFREG | 0644, 0), 0);
      }
    }
  }

  TempDir base_;
  Pool pool_;
};

TEST_F(ScaleTest, WalkOf100000FilesNeedsFewDescriptorsAndLittleMemory) {
  Mount mount(pool_);
  const long before = resident_kib(mount.pid());
  EXPECT_EQ(walk(mount.path()), kDirectories * kFilesEach);
  EXPECT_LT(descriptors_of(mount.pid()), 5000u);
  EXPECT_LT(resident_kib(mount.pid()) - before, 100L << 10);

  // When the kernel forgets the inodes, the memory is freed. All files still exist.
  run_command({"sh", "-c", "echo 2 > /proc/sys/vm/drop_caches"});
  EXPECT_TRUE(eventually([&] { return descriptors_of(mount.pid()) < 1000; }))
      << descriptors_of(mount.pid());
  EXPECT_EQ(walk(mount.path()), kDirectories * kFilesEach);
}

}  // namespace
}  // namespace sluice::test
