// SPDX-License-Identifier: BSD-2-Clause
// tests/mount/gpu_buffer_test.cpp tests descriptors that hang forever, because that needs a FUSE
// mount.
#include "fs/gpu/descriptor_taker.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "fs/gpu/client_process.hpp"
#include "tests/support/wait.hpp"

namespace sluice {
namespace {

// The ids of this process's threads with that name.
std::set<std::string> threads(const std::string& name) {
  std::set<std::string> out;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    std::string comm;
    std::getline(file, comm);
    if (comm == name) out.insert(task.path());
  }
  return out;
}

class DescriptorTakerTest : public testing::Test {
 protected:
  const UniqueFd self_ = open_process(::getpid());
  const UniqueFd memory_{::memfd_create("memory", MFD_CLOEXEC)};
  DescriptorTaker taker_;
};

TEST_F(DescriptorTakerTest, TakesMemory) {
  const auto taken = taker_.take(self_, memory_.get(), 0);
  ASSERT_TRUE(taken);
  struct stat one {
  }, other{};
  ASSERT_EQ(::fstat(memory_.get(), &one), 0);
  ASSERT_EQ(::fstat(taken->get(), &other), 0);
  EXPECT_EQ(one.st_ino, other.st_ino);
  EXPECT_NE(taken->get(), memory_.get());
}

TEST_F(DescriptorTakerTest, ReportsErrors) {
  EXPECT_TRUE(failed_with(taker_.take(self_, 100'000, 0), EBADF));
  const UniqueFd file(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(failed_with(taker_.take(self_, file.get(), 0), EINVAL)) << "its close may block";
  EXPECT_TRUE(test::eventually([&] { return taker_.hanging() == 0; }));
}

TEST_F(DescriptorTakerTest, OneThreadWithAnEmptyTableTakesAllDescriptors) {
  ASSERT_TRUE(taker_.take(self_, memory_.get(), 0));
  // Threads of earlier tests may still be ending.
  ASSERT_TRUE(test::eventually([] { return threads("sluice-taker").size() == 1; }));
  const auto before = threads("sluice-taker");
  std::vector<UniqueFd> many;
  for (int i = 0; i < 200; ++i) many.emplace_back(::dup(memory_.get()));
  const UniqueFd file(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(taker_.take(self_, memory_.get(), 0));
    ASSERT_TRUE(failed_with(taker_.take(self_, file.get(), 0), EINVAL));
    ASSERT_TRUE(test::eventually([&] { return taker_.hanging() == 0; }));
  }
  EXPECT_EQ(threads("sluice-taker"), before) << "the table is not copied again";
  const auto descriptors = std::filesystem::directory_iterator(*before.begin() + "/fd");
  EXPECT_LE(std::distance(begin(descriptors), end(descriptors)), 4);
}

TEST_F(DescriptorTakerTest, ThreadEndsWithTheTaker) {
  {
    DescriptorTaker taker;
    ASSERT_TRUE(taker.take(self_, memory_.get(), 0));
    EXPECT_FALSE(threads("sluice-taker").empty());
  }
  EXPECT_TRUE(test::eventually([] { return threads("sluice-taker").empty(); }));
}

}  // namespace
}  // namespace sluice
