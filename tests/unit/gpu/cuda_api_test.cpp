// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/cuda_api.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "base/unique_fd.hpp"
#include "gpu/device.hpp"
#include "tests/support/command.hpp"
#include "tests/support/fake_gpu.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice {
namespace {

// Runs before main(), because it sets environment variables and the test framework starts threads.
[[maybe_unused]] const bool installed = (test::FakeGpu::install(), true);

// What gpu_peer prints about the GPUs with these environment variables.
std::string gpus_with(const std::vector<std::string>& settings) {
  std::vector<std::string> command{"env"};
  command.insert(command.end(), settings.begin(), settings.end());
  // A leak scan takes seconds, and the process of the tests has one already.
  command.insert(command.end(), {"ASAN_OPTIONS=detect_leaks=0", SLUICE_GPU_PEER, "gpus"});
  return test::run_command(command).out;
}

TEST(CudaApiTest, LoadsAUsableLibrary) {
  const auto loaded = CudaApi::load();
  ASSERT_TRUE(loaded) << loaded.error().text();
  const auto& api = *loaded;
  EXPECT_TRUE(api->has_virtual_memory());
  EXPECT_NE(api->cuStreamWaitValue32, nullptr);
  int version = 0;
  EXPECT_EQ(api->cuDriverGetVersion(&version), CUDA_SUCCESS);
  EXPECT_GT(version, 0);
}

TEST(CudaApiTest, NamesErrorsAsTheDriverDoes) {
  const auto loaded = CudaApi::load();
  ASSERT_TRUE(loaded) << loaded.error().text();
  const auto& api = *loaded;
  EXPECT_EQ(api->text_of(CUDA_ERROR_NO_DEVICE),
            "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected");
  EXPECT_EQ(api->text_of(static_cast<CUresult>(4711)), "CUDA error 4711");
}

TEST(CudaApiTest, ReportsAMissingLibrary) {
  const std::string said = gpus_with({"-u", "LD_LIBRARY_PATH"});
  ASSERT_NE(said, "");
  if (said.rfind("0 libcuda.so.1", 0) != 0) GTEST_SKIP() << "this machine has a driver: " << said;
  EXPECT_EQ(said, "0 libcuda.so.1 is not installed\n");
}

TEST(CudaApiTest, ReportsABrokenLibrary) {
  const test::TempDir dir;
  dir.make_file("libcuda.so.1", "this is no library");
  const std::string said = gpus_with({"LD_LIBRARY_PATH=" + dir.path()});
  EXPECT_EQ(said.rfind("0 libcuda.so.1 can't be loaded: ", 0), 0u) << said;
}

TEST(CudaApiTest, ReportsWhatATooOldLibraryLacks) {
  const test::TempDir dir;
  const std::string cufile = std::string(SLUICE_FAKE_DIR) + "/libcufile.so.0";
  ASSERT_EQ(::symlink(cufile.c_str(), (dir / "libcuda.so.1").c_str()), 0);
  EXPECT_EQ(gpus_with({"LD_LIBRARY_PATH=" + dir.path()}),
            "0 libcuda.so.1 lacks cuInit: the driver is too old\n");
}

TEST(CudaApiTest, ReportsTheErrorOfTheDriver) {
  EXPECT_EQ(gpus_with({"SLUICE_FAKE_CUDA_GPUS=0"}),
            "0 the NVIDIA driver says: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is "
            "detected\n");
  EXPECT_EQ(gpus_with({"SLUICE_FAKE_CUDA_FAIL=cuInit:1:803"}),
            "0 the NVIDIA driver says: CUDA error 803\n");
  EXPECT_EQ(gpus_with({"SLUICE_FAKE_CUDA_FAIL=cuDeviceGetCount:1:999"}),
            "0 the NVIDIA driver says: CUDA error 999\n");
}

// The other tests of the GPU part rely on this: the fake is as strict as CUDA.
class FakeCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(devices_.all().size(), 2u);
    ASSERT_TRUE(device().enter());
    ASSERT_EQ(api().cuMemAlloc(&memory_, 4096), CUDA_SUCCESS);
    ASSERT_EQ(api().cuStreamCreate(&stream_, kStreamNonBlocking), CUDA_SUCCESS);
  }
  void TearDown() override {
    if (stream_ != nullptr) api().cuStreamDestroy(stream_);
    if (memory_ != 0) api().cuMemFree(memory_);
  }
  Device& device() { return *devices_.all()[0]; }
  const CudaApi& api() { return device().api(); }

  Devices devices_;
  CUdeviceptr memory_ = 0;
  CUstream stream_ = nullptr;
  alignas(4096) char host_[4096] = {};
};

TEST_F(FakeCudaTest, StreamWorkWaitsForEarlierWork) {
  // The stream waits for a word in memory; later work must not run before.
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_EQ(api().cuMemHostRegister(page, 4096, kHostRegisterPortable), CUDA_SUCCESS);
  CUdeviceptr flag = 0;
  ASSERT_EQ(api().cuMemHostGetDevicePointer(&flag, page, 0), CUDA_SUCCESS);
  ASSERT_EQ(api().cuStreamWaitValue32(stream_, flag, 1, kWaitValueEq), CUDA_SUCCESS);
  ASSERT_EQ(api().cuMemsetD8Async(memory_, 'x', 4096, stream_), CUDA_SUCCESS);
  CUevent event = nullptr;
  ASSERT_EQ(api().cuEventCreate(&event, kEventDisableTiming), CUDA_SUCCESS);
  ASSERT_EQ(api().cuEventRecord(event, stream_), CUDA_SUCCESS);
  EXPECT_EQ(api().cuEventQuery(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(api().cuStreamQuery(stream_), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(api().cuMemcpyDtoH(host_, memory_, 4096), CUDA_SUCCESS);
  EXPECT_EQ(host_[0], '\0');

  __atomic_store_n(static_cast<std::uint32_t*>(page), 1, __ATOMIC_RELEASE);
  ASSERT_EQ(api().cuEventSynchronize(event), CUDA_SUCCESS);
  ASSERT_EQ(api().cuMemcpyDtoH(host_, memory_, 4096), CUDA_SUCCESS);
  EXPECT_EQ(host_[4095], 'x');
  EXPECT_EQ(api().cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemHostUnregister(page), CUDA_SUCCESS);
  ::munmap(page, 4096);
}

TEST_F(FakeCudaTest, CopiesBeyondTheEndOfMemoryAreRefused) {
  EXPECT_EQ(api().cuMemcpyHtoDAsync(memory_ + 1, host_, 4096, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemcpyHtoDAsync(memory_, nullptr, 4096, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemcpyDtoH(host_, memory_ - 1, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaTest, RegistrationRespectsPageProtection) {
  const test::TempDir dir;
  const std::string file = dir.make_file("f", std::string(4096, 'z'));
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  void* page = ::mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(page, MAP_FAILED);
  EXPECT_EQ(api().cuMemHostRegister(page, 4096, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemHostRegister(page, 8192, kHostRegisterReadOnly), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(api().cuMemHostRegister(page, 4096, kHostRegisterReadOnly), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemHostRegister(page, 100, kHostRegisterReadOnly),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(api().cuMemcpyHtoD(memory_, page, 4096), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemcpyDtoH(page, memory_, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemHostUnregister(page), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemHostUnregister(page), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  ASSERT_EQ(api().cuMemcpyDtoH(host_, memory_, 4096), CUDA_SUCCESS);
  EXPECT_EQ(host_[4095], 'z');
  ::munmap(page, 8192);
}

TEST_F(FakeCudaTest, WorkThatFailsLaterLosesTheGpu) {
  ASSERT_TRUE(test::FakeGpu::fail_cuda("async:1:719"));
  EXPECT_EQ(api().cuMemcpyHtoDAsync(memory_, host_, 4096, stream_), CUDA_SUCCESS);
  EXPECT_EQ(api().cuStreamSynchronize(stream_), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(api().cuMemcpyHtoDAsync(memory_, host_, 4096, stream_), CUDA_ERROR_LAUNCH_FAILED);
  test::FakeGpu::fail_cuda("");
  memory_ = 0;  // freed with the context
  stream_ = nullptr;
}

}  // namespace
}  // namespace sluice
