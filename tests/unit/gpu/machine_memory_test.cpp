// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/machine_memory.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_dir.hpp"

namespace sluice {
namespace {

class MachineMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    write("proc/meminfo",
          "MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:   600 kB\nBuffers: 1 kB\n");
  }
  void write(const std::string& name, const std::string& content) {
    const std::filesystem::path path = dir_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  void limit(const std::string& group, const std::string& most, int used, int cached) {
    const std::string at = "sys/fs/cgroup" + group + "/memory.";
    write(at + "max", most + "\n");
    write(at + "current", std::to_string(used) + "\n");
    write(at + "stat", "anon 5\nfile " + std::to_string(cached) + "\nkernel 7\n");
  }
  MachineMemory memory() const { return machine_memory(dir_ / ""); }

  test::TempDir dir_;
};

TEST_F(MachineMemoryTest, IsThatOfTheMachine) {
  EXPECT_EQ(memory().total, 1000u << 10);
  EXPECT_EQ(memory().available, 600u << 10);
}

TEST_F(MachineMemoryTest, IsThatOfTheControlGroupIfItHasLess) {
  write("proc/self/cgroup", "0::/a/b\n");
  limit("/a", "max", 90'000, 0);
  limit("/a/b", "100000", 70'000, 50'000);
  EXPECT_EQ(memory().total, 100'000u);
  EXPECT_EQ(memory().available, 80'000u) << "page cache of the group can be dropped";
  limit("/a", "60000", 50'000, 0);
  EXPECT_EQ(memory().available, 10'000u) << "the group is in another";
}

TEST_F(MachineMemoryTest, OfAContainerIsThatOfItsRoot) {
  write("proc/self/cgroup", "0::/\n");
  limit("", "100000", 100'000, 30'000);
  EXPECT_EQ(memory().available, 30'000u);
}

TEST_F(MachineMemoryTest, IsThatOfTheMachineIfTheGroupHasMore) {
  write("proc/self/cgroup", "1:cpu:/x\n0::/a\n");
  limit("/a", "9000000000", 10, 5);
  EXPECT_EQ(memory().total, 1000u << 10);
  EXPECT_EQ(memory().available, 600u << 10);
}

TEST_F(MachineMemoryTest, IsAvailableIfTheKernelTellsNothing) {
  write("proc/meminfo", "");
  EXPECT_GT(memory().total, 0u);
  EXPECT_EQ(memory().available, memory().total);
}

}  // namespace
}  // namespace sluice
