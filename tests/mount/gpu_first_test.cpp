// SPDX-License-Identifier: BSD-2-Clause
// What a mount has ready before the first GPU request. The fake libcuda is preloaded, because this
// machine has no driver that could list its GPUs.
#include <cstdlib>

#include "tests/mount/tiering.hpp"
#include "tests/support/fake_gpu.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

class GpuFirstTest : public TieringTest {
 protected:
  void SetUp() override {
    FakeGpu::install();
    TieringTest::SetUp();
    ::setenv("LD_PRELOAD", "libcuda.so.1", 1);
  }
  void TearDown() override {
    ::unsetenv("LD_PRELOAD");
    TieringTest::TearDown();
  }

  Json gpu() { return mount().status().at("gpu"); }
  std::uint64_t held(FakeCount which) { return FakeGpu::count(which, mount().pid()); }
};

TEST_F(GpuFirstTest, MountThatFindsGpusHasThemReady) {
  start();
  EXPECT_TRUE(eventually([&] { return held(FakeCount::Modules) == 2; })) << "one a GPU";
  EXPECT_GT(gpu().at("pinned_bytes"), 0);
  EXPECT_EQ(gpu().at("devices").size(), 2u);
}

TEST_F(GpuFirstTest, MountWithoutGpusByOptionLeavesThemAlone) {
  start({"--no-gpu"});
  EXPECT_EQ(gpu().at("enabled"), false);
  EXPECT_EQ(gpu().at("devices").size(), 0u);
  EXPECT_EQ(held(FakeCount::Modules), 0u);
}

TEST_F(GpuFirstTest, MountEndsWhileGpusArePrepared) {
  for (int i = 0; i < 3; ++i) start();
}

}  // namespace
}  // namespace sluice::test
