// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/cufile_api.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <vector>

#include "base/unique_fd.hpp"
#include "gpu/device.hpp"
#include "tests/support/fake_gpu.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice {
namespace {

using test::FakeCount;
using test::FakeGpu;

constexpr std::size_t kSize = 3 << 20;

class CuFileTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(devices_.all().size(), 2u);
    ASSERT_TRUE(device().enter());
    ASSERT_EQ(cuda().cuMemAlloc(&memory_, kSize), CUDA_SUCCESS);
    fd_ =
        UniqueFd(::open(dir_.make_file("f", std::string(kSize, 'f')).c_str(), O_RDWR | O_CLOEXEC));
    auto cufile = CuFile::open();
    ASSERT_TRUE(cufile) << cufile.error().text();
    cufile_ = *std::move(cufile);
  }
  void TearDown() override {
    FakeGpu::fail_cufile("");
    cufile_.reset();
    cuda().cuMemFree(memory_);
    EXPECT_EQ(FakeGpu::count(FakeCount::Handles), 0u);
    EXPECT_EQ(FakeGpu::count(FakeCount::Drivers), 0u);
  }
  Device& device() { return *devices_.all()[0]; }
  const CudaApi& cuda() { return device().api(); }
  std::unique_ptr<CuFileHandle> handle() {
    auto made = CuFileHandle::create(*cufile_, fd_.get());
    EXPECT_TRUE(made);
    return made ? *std::move(made) : nullptr;
  }
  std::string content(std::size_t from, std::size_t size) {
    std::string bytes(size, '\0');
    EXPECT_EQ(cuda().cuMemcpyDtoH(bytes.data(), memory_ + from, size), CUDA_SUCCESS);
    return bytes;
  }
  void* base() { return reinterpret_cast<void*>(memory_); }

  test::TempDir dir_;
  Devices devices_;
  CUdeviceptr memory_ = 0;
  UniqueFd fd_;
  std::unique_ptr<CuFile> cufile_;
};

TEST_F(CuFileTest, ReadsAndWrites) {
  const auto file = handle();
  EXPECT_EQ(cufile_->version(), "1.14");
  const auto read = file->read(memory_, 100, 1000, 7);
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, 1000u);
  EXPECT_EQ(content(99, 1002), '\0' + std::string(1000, 'f') + '\0');
  const auto beyond = file->read(memory_, 0, 1000, kSize - 10);
  ASSERT_TRUE(beyond);
  EXPECT_EQ(*beyond, 10u);
  const auto written = file->write(memory_, 99, 1, 5);
  ASSERT_TRUE(written);
  char byte = 'x';
  ASSERT_EQ(::pread(fd_.get(), &byte, 1, 5), 1);
  EXPECT_EQ(byte, '\0');
}

TEST_F(CuFileTest, ReportsTransferFailuresAsErrno) {
  const auto file = handle();
  ASSERT_TRUE(FakeGpu::fail_cufile("cuFileRead:1:5,cuFileRead:2:5008,cuFileWrite:1:28"));
  EXPECT_TRUE(failed_with(file->read(memory_, 0, 10, 0), EIO));
  EXPECT_TRUE(failed_with(file->read(memory_, 0, 10, 0), EOPNOTSUPP));
  EXPECT_TRUE(failed_with(file->write(memory_, 0, 10, 0), ENOSPC));
  ASSERT_TRUE(FakeGpu::fail_cufile("half:1:5,short:2:10"));
  EXPECT_TRUE(failed_with(file->read(memory_, 0, 1000, 0), EIO));
  const auto short_read = file->read(memory_, 0, 1000, 0);
  ASSERT_TRUE(short_read);
  EXPECT_EQ(*short_read, 10u);
  EXPECT_TRUE(failed_with(file->read(12345, 0, 10, 0), EINVAL)) << "no such memory";
}

TEST_F(CuFileTest, RefusedFileIsNotSupported) {
  ASSERT_TRUE(FakeGpu::fail_cufile("cuFileHandleRegister:1:5027"));
  EXPECT_TRUE(failed_with(CuFileHandle::create(*cufile_, fd_.get()), EOPNOTSUPP));
  const auto file = handle();
  EXPECT_TRUE(failed_with(CuFileHandle::create(*cufile_, fd_.get()), EEXIST));
}

TEST_F(CuFileTest, ReportsWhyTheDriverCannotBeOpened) {
  ASSERT_TRUE(FakeGpu::fail_cufile("cuFileDriverOpen:1:5001"));
  const auto cufile = CuFile::open();
  ASSERT_FALSE(cufile);
  EXPECT_EQ(cufile.error().text(),
            "cuFile's driver can't be opened: CU_FILE_DRIVER_NOT_INITIALIZED (5001)");
}

TEST_F(CuFileTest, LeavesADriverOpenThatOtherCodeOpened) {
  ASSERT_TRUE(FakeGpu::fail_cufile("cuFileDriverOpen:1:5026"));
  {
    const auto second = CuFile::open();
    ASSERT_TRUE(second) << second.error().text();
  }
  EXPECT_EQ(FakeGpu::count(FakeCount::Drivers), 1u);
}

TEST_F(CuFileTest, NothingIsDirectWithoutNvidiaFsAndP2p) {
  std::string reason;
  EXPECT_FALSE(cufile_->is_direct(fd_.get(), reason));
  EXPECT_EQ(reason, "nvidia-fs is not loaded, and cuFile reports no PCIe P2PDMA to NVMe");
}

TEST_F(CuFileTest, DirectPathDependsOnTheFile) {
  for (const char* way : {"nvfs", "p2p"}) {
    ::setenv("SLUICE_FAKE_CUFILE_DIRECT", way, 1);
    std::string reason;
    const auto opened = CuFile::open();
    ::unsetenv("SLUICE_FAKE_CUFILE_DIRECT");
    ASSERT_TRUE(opened) << opened.error().text();
    const auto& cufile = *opened;
    const UniqueFd shared_memory(::memfd_create("test", MFD_CLOEXEC));
    EXPECT_FALSE(cufile->is_direct(shared_memory.get(), reason));
    EXPECT_EQ(reason, "cuFile has a direct path to files on ext4 and XFS only");
    EXPECT_FALSE(cufile->is_direct(-1, reason));
    EXPECT_EQ(reason, "the file can't be looked at");
  }
}

TEST_F(CuFileTest, NothingIsDirectIfTheCompatibilityModeIsForced) {
  ::setenv("SLUICE_FAKE_CUFILE_DIRECT", "nvfs", 1);
  ::setenv("CUFILE_FORCE_COMPAT_MODE", "true", 1);
  std::string reason;
  const auto opened = CuFile::open();
  ::unsetenv("CUFILE_FORCE_COMPAT_MODE");
  ::unsetenv("SLUICE_FAKE_CUFILE_DIRECT");
  ASSERT_TRUE(opened) << opened.error().text();
  const auto& cufile = *opened;
  EXPECT_FALSE(cufile->is_direct(fd_.get(), reason));
  EXPECT_EQ(reason, "cuFile is configured to use its compatibility mode (force_compat_mode)");
}

TEST_F(CuFileTest, BatchesAndStreamsReachTheLibrary) {
  const CuFileApi& api = cufile_->api();
  CUfileDescr_t description{};
  description.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
  description.handle.fd = fd_.get();
  CUfileHandle_t file = nullptr;
  ASSERT_EQ(api.cuFileHandleRegister(&file, &description).err, CU_FILE_SUCCESS);

  CUfileBatchHandle_t batch = nullptr;
  ASSERT_EQ(api.cuFileBatchIOSetUp(&batch, 2).err, CU_FILE_SUCCESS);
  CUfileIOParams_t requests[2] = {};
  for (int i = 0; i < 2; ++i) {
    requests[i].mode = CUFILE_BATCH;
    requests[i].u.batch = {base(), 0, i * 100, 50};
    requests[i].fh = file;
    requests[i].cookie = &requests[i];
  }
  ASSERT_EQ(api.cuFileBatchIOSubmit(batch, 2, requests, 0).err, CU_FILE_SUCCESS);
  CUfileIOEvents_t events[2] = {};
  unsigned count = 2;
  ASSERT_EQ(api.cuFileBatchIOGetStatus(batch, 2, &count, events, nullptr).err, CU_FILE_SUCCESS);
  ASSERT_EQ(count, 2u);
  EXPECT_EQ(events[1].cookie, &requests[1]);
  EXPECT_EQ(events[1].status, CUFILE_COMPLETE);
  EXPECT_EQ(events[1].ret, 50u);
  EXPECT_EQ(content(99, 52), '\0' + std::string(50, 'f') + '\0');
  api.cuFileBatchIODestroy(batch);

  CUstream stream = nullptr;
  ASSERT_EQ(cuda().cuStreamCreate(&stream, kStreamNonBlocking), CUDA_SUCCESS);
  std::size_t size = 10;
  off_t file_offset = 0, base_offset = 1000;
  ssize_t done = 0;
  ASSERT_EQ(api.cuFileReadAsync(file, base(), &size, &file_offset, &base_offset, &done, stream).err,
            CU_FILE_SUCCESS);
  ASSERT_EQ(cuda().cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(done, 10);
  EXPECT_EQ(content(999, 12), '\0' + std::string(10, 'f') + '\0');
  cuda().cuStreamDestroy(stream);
  api.cuFileHandleDeregister(file);
}

TEST(CuFileErrorTest, HasANameAndAnErrno) {
  EXPECT_EQ(text_of({CU_FILE_IO_NOT_SUPPORTED, CUDA_SUCCESS}), "CU_FILE_IO_NOT_SUPPORTED (5008)");
  EXPECT_EQ(text_of({static_cast<CUfileOpError>(5999), CUDA_SUCCESS}), "cuFile error (5999)");
  const CUfileError_t of_cuda{CU_FILE_CUDA_DRIVER_ERROR, CUDA_ERROR_OUT_OF_MEMORY};
  EXPECT_EQ(text_of(of_cuda), "CU_FILE_CUDA_DRIVER_ERROR (5011), CUDA error 2");
  EXPECT_EQ(errno_of(of_cuda), ENOMEM);
  EXPECT_EQ(errno_of({static_cast<CUfileOpError>(5999), CUDA_SUCCESS}), EIO);
}

}  // namespace
}  // namespace sluice
