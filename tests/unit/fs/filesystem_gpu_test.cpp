// SPDX-License-Identifier: BSD-2-Clause
// The engine releases what it keeps for a file when the file is deleted or its tier goes away.
#include "fs/core/filesystem.hpp"
#include "tests/support/fake_gpu_environment.hpp"
#include "tests/unit/fs/quiet_kernel.hpp"
#include "tests/unit/tiering/pools.hpp"

namespace sluice {
namespace {

using test::FakeCount;
using test::FakeGpu;

class FilesystemGpuTest : public test::PoolTest {
 protected:
  static constexpr std::size_t kSize = 100'000;

  void prepare() override {
    pool_ = open(make_tiers("ab"));
    fs_ = std::make_unique<Filesystem>(*pool_, store_, kernel_, Filesystem::Settings{}, &engine_);
    dir_.make_file("a/f", std::string(kSize, 'f'));
  }
  void TearDown() override { EXPECT_EQ(handles(), 0u); }
  static std::uint64_t handles() { return FakeGpu::count(FakeCount::Handles); }

  // Reads "f" with cuFile, then closes and forgets it.
  void read_with_cufile() {
    Device& gpu = *engine_.devices().all().at(0);
    ASSERT_TRUE(gpu.enter());
    CUdeviceptr address = 0;
    ASSERT_EQ(gpu.api().cuMemAlloc(&address, kSize), CUDA_SUCCESS);
    const auto memory = borrow_device(gpu, address, kSize);
    const InodeId file = fs_->names().lookup(kRootId, "f")->id;
    const Segment whole{0, 0, kSize};
    const auto done = fs_->gpu().read(file, *memory, {&whole, 1}, Route::CuFile);
    ASSERT_TRUE(done) << done.error().operation;
    gpu.api().cuMemFree(address);
    fs_->names().forget(file, 1);
    ASSERT_EQ(handles(), 1u);
  }

  test::MemoryStore store_;
  QuietKernel kernel_;
  std::unique_ptr<Pool> pool_;
  Engine engine_{{}};
  std::unique_ptr<Filesystem> fs_;
};

TEST_F(FilesystemGpuTest, DeletedFileIsReleasedEvenIfTheKernelHasForgottenIt) {
  read_with_cufile();
  ASSERT_TRUE(fs_->names().lookup(kRootId, "f"));
  ASSERT_TRUE(fs_->names().unlink(kRootId, "f"));
}

TEST_F(FilesystemGpuTest, ReplacedFileIsReleased) {
  dir_.make_file("a/g", "g");
  read_with_cufile();
  ASSERT_TRUE(fs_->names().lookup(kRootId, "f"));
  ASSERT_TRUE(fs_->names().lookup(kRootId, "g"));
  ASSERT_TRUE(fs_->names().rename(kRootId, "g", kRootId, "f", 0));
}

TEST_F(FilesystemGpuTest, FileWithAnotherNameStaysRegistered) {
  read_with_cufile();
  const InodeId file = fs_->names().lookup(kRootId, "f")->id;
  ASSERT_TRUE(fs_->names().link(file, kRootId, "g"));
  ASSERT_TRUE(fs_->names().unlink(kRootId, "f"));
  EXPECT_EQ(handles(), 1u);
  ASSERT_TRUE(fs_->names().unlink(kRootId, "g"));
}

TEST_F(FilesystemGpuTest, FilesOfATierThatGoesAwayAreReleased) {
  read_with_cufile();
  ASSERT_EQ(::rename((dir_ / "a").c_str(), (dir_ / "away").c_str()), 0);
  fs_->tick();
}

TEST_F(FilesystemGpuTest, FilesOfADrainedTierAreReleased) {
  read_with_cufile();
  ASSERT_TRUE(fs_->relocator().vacate(pool_->placement().front()));
}

}  // namespace
}  // namespace sluice
