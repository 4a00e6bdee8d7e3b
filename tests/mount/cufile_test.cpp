// SPDX-License-Identifier: BSD-2-Clause
// Our libcufile on files of a real mount, with GPU memory of the fake libcuda, which the daemon
// uses, too; loaded into this process, and preloaded into an unchanged program.
#include <fcntl.h>

#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "gpu/device.hpp"
#include "tests/mount/dropin.hpp"
#include "tests/mount/tiering.hpp"
#include "tests/support/fake_gpu_environment.hpp"
#include "tests/unit/client/client.hpp"
#include "tests/unit/client/gpu_memory.hpp"

namespace sluice::test {
namespace {

class CufileMountTest : public TieringTest {
 protected:
  static constexpr std::size_t kSize = 9'000'001;

  void SetUp() override {
    TieringTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    content_ = random_bytes(kSize);
    put("nvme", "file", content_);
  }

  const CuFileApi& api() { return dropin_.api; }
  Device& device() { return *devices_.all()[0]; }
  std::uint64_t buffers() { return mount().status().at("gpu").at("buffers"); }
  long ioctls() { return mount().requests()["IOCTL"]; }

  CUfileHandle_t register_file(const std::string& path, UniqueFd& fd, int flags = O_RDONLY) {
    return dropin_.register_file(path, fd, flags);
  }

  Dropin dropin_;
  Devices devices_;
  std::string content_;
};

TEST_F(CufileMountTest, DaemonReadsIntoUnregisteredMemory) {
  start();
  UniqueFd fd;
  CUfileHandle_t handle = register_file(*this / "file", fd);
  EXPECT_EQ(FakeGpu::count(FakeCount::Handles), 0u) << "NVIDIA's library was used";
  const GpuMemory memory(device(), kSize + 10'000);
  ASSERT_EQ(api().cuFileRead(handle, memory.pointer(4'321), kSize, 0, 0), ssize_t{kSize});
  EXPECT_TRUE(memory.bytes(4'321, kSize) == content_);
  EXPECT_EQ(buffers(), 1u) << "the daemon did not read";
  const long before = ioctls();
  ASSERT_EQ(api().cuFileRead(handle, memory.pointer(), 1'001, 17, 7), 1'001);
  EXPECT_TRUE(memory.bytes(7, 1'001) == content_.substr(17, 1'001));
  EXPECT_EQ(ioctls() - before, 1) << "the second request registered again";
  api().cuFileHandleDeregister(handle);
  EXPECT_EQ(buffers(), 0u) << "a file that was deregistered holds memory";
}

TEST_F(CufileMountTest, MemoryReallocatedAtTheSameAddressGetsTheBytes) {
  start();
  UniqueFd fd;
  CUfileHandle_t handle = register_file(*this / "file", fd);
  int at_the_same = 0;
  CUdeviceptr last = 0;
  for (int i = 0; i < 20; ++i) {
    const GpuMemory memory(device(), 2 << 20);
    at_the_same += memory.address() == last ? 1 : 0;
    last = memory.address();
    ASSERT_EQ(api().cuFileRead(handle, memory.pointer(), 1 << 20, i * 1'000, 0), 1 << 20);
    ASSERT_TRUE(memory.bytes(0, 1 << 20) == content_.substr(i * 1'000, 1 << 20)) << i;
    EXPECT_EQ(buffers(), 1u);
  }
  EXPECT_GT(at_the_same, 0) << "nothing was tested";
  api().cuFileHandleDeregister(handle);
}

TEST_F(CufileMountTest, FreedMemoryIsReleasedSoon) {
  start();
  UniqueFd fd;
  CUfileHandle_t handle = register_file(*this / "file", fd);
  {
    const GpuMemory memory(device(), 2 << 20);
    ASSERT_EQ(api().cuFileRead(handle, memory.pointer(), 1'000, 0, 0), 1'000);
    EXPECT_EQ(buffers(), 1u);
  }
  EXPECT_TRUE(eventually([&] { return buffers() == 0; }));
  api().cuFileHandleDeregister(handle);
}

TEST_F(CufileMountTest, RegisteredMemoryIsKeptUntilItIsDeregistered) {
  start();
  UniqueFd fd;
  CUfileHandle_t handle = register_file(*this / "file", fd, O_RDWR);
  const GpuMemory memory(device(), 5, 2 << 20);  // of the virtual memory API
  ASSERT_EQ(api().cuFileBufRegister(memory.pointer(), 10 << 20, 0).err, CU_FILE_SUCCESS);
  EXPECT_EQ(buffers(), 0u) << "registered before it is needed";
  ASSERT_EQ(api().cuFileRead(handle, memory.pointer(), kSize, 0, 100), ssize_t{kSize});
  EXPECT_TRUE(memory.bytes(100, kSize) == content_);
  EXPECT_EQ(buffers(), 5u);
  const long before = ioctls();
  ASSERT_EQ(api().cuFileWrite(handle, memory.pointer(), 1'001, 17, 7), 1'001);
  EXPECT_EQ(ioctls() - before, 1);
  EXPECT_TRUE(read_file(*this / "file").substr(17, 1'001) ==
              std::string(93, '\0') + content_.substr(0, 908));
  ASSERT_EQ(api().cuFileBufDeregister(memory.pointer()).err, CU_FILE_SUCCESS);
  EXPECT_EQ(buffers(), 0u);
  api().cuFileHandleDeregister(handle);
}

TEST_F(CufileMountTest, DaemonServesRequestsInAStream) {
  start();
  UniqueFd fd;
  CUfileHandle_t handle = register_file(*this / "file", fd);
  const GpuMemory memory(device(), kSize);
  CUstream stream = nullptr;
  ASSERT_EQ(device().api().cuStreamCreate(&stream, kStreamNonBlocking), CUDA_SUCCESS);
  std::size_t size = kSize;
  off_t file_offset = 0, base_offset = 0;
  ssize_t done = 0;
  ASSERT_EQ(api()
                .cuFileReadAsync(handle, memory.pointer(), &size, &file_offset, &base_offset, &done,
                                 stream)
                .err,
            CU_FILE_SUCCESS);
  ASSERT_EQ(device().api().cuStreamSynchronize(stream), CUDA_SUCCESS);
  device().api().cuStreamDestroy(stream);
  EXPECT_EQ(done, ssize_t{kSize});
  EXPECT_TRUE(memory.bytes(0, kSize) == content_);
  EXPECT_EQ(buffers(), 1u);
  api().cuFileHandleDeregister(handle);
}

TEST_F(CufileMountTest, UnchangedProgramIsServed) {
  start();
  const std::string plain = base_.make_file("plain", content_);
  const auto run = [&](const std::vector<std::string>& variables) {
    std::vector<std::string> command{"/usr/bin/env"};
    command.insert(command.end(), variables.begin(), variables.end());
    command.insert(command.end(), {SLUICE_CUFILE_PROGRAM, *this / "file", plain});
    return run_command(command);
  };
  const std::string preload = std::string("LD_PRELOAD=") + SLUICE_DROPIN;
  // The fake of NVIDIA's library does not accept host memory.
  EXPECT_EQ(run({}).out, "file 0 -5012 wrong\nplain 0 -5012 wrong\n") << "without it";
  const auto served = run({preload});
  EXPECT_EQ(served.out, "file 0 70001 right\nplain 0 -5012 wrong\n");
  EXPECT_EQ(served.err, "");
  const auto named = run({preload, std::string("SLUICE_CUFILE_REAL=") + SLUICE_FAKE_CUFILE});
  EXPECT_EQ(named.out, served.out);
  // Our library must not be used as NVIDIA's.
  const auto alone = run({preload, std::string("SLUICE_CUFILE_REAL=") + SLUICE_DROPIN});
  EXPECT_EQ(alone.out, "file 0 70001 right\nplain 5008 0 wrong\n");
  EXPECT_NE(alone.err.find("is not NVIDIA's libcufile"), std::string::npos) << alone.err;
  EXPECT_NE(alone.err.find("plain is not on a Sluice mount"), std::string::npos) << alone.err;
}

}  // namespace
}  // namespace sluice::test
