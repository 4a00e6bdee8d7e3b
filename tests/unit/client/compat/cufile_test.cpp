// SPDX-License-Identifier: BSD-2-Clause
// Our libcufile: which library serves which files and memory, and errors.
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <future>
#include <thread>
#include <vector>

#include "client/compat/cufile/on_mount.hpp"
#include "tests/support/child.hpp"
#include "tests/support/fake_gpu_environment.hpp"
#include "tests/unit/client/compat/cufile_fixture.hpp"

namespace sluice::dropin {

bool is_on_mount(int fd) {
  char path[4096];
  const ssize_t length =
      ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  return length > 0 && std::string(path, static_cast<std::size_t>(length)).ends_with(".mount");
}

namespace {

TEST_F(CufileTest, SluiceServesMountFilesAndNvidiaServesOthers) {
  const File mine = ours(), other = others();
  ASSERT_EQ(mine.error, CU_FILE_SUCCESS);
  ASSERT_EQ(other.error, CU_FILE_SUCCESS);
  EXPECT_EQ(FakeGpu::count(FakeCount::Handles), 1u);
  const GpuMemory memory(device(), kSize);
  const auto before = transfers();
  EXPECT_EQ(cuFileRead(mine.handle, memory.pointer(), kSize, 0, 0), ssize_t{kSize});
  EXPECT_TRUE(memory.bytes(0, kSize) == content_);
  EXPECT_EQ(transfers(), before);
  memory.fill(std::string(kSize, '\0'));
  EXPECT_EQ(cuFileRead(other.handle, memory.pointer(), kSize, 0, 0), ssize_t{kSize});
  EXPECT_TRUE(memory.bytes(0, kSize) == content_);
  EXPECT_EQ(transfers(), before + 1);
}

TEST_F(CufileTest, OffsetsNeedNoAlignment) {
  const File file = ours();
  const GpuMemory memory(device(), kSize);
  EXPECT_EQ(cuFileRead(file.handle, memory.pointer(1'001), 70'001, 12'345, 77), 70'001);
  EXPECT_TRUE(memory.bytes(1'078, 70'001) == content_.substr(12'345, 70'001));
  EXPECT_EQ(memory.bytes(1'077, 1), std::string(1, '\0'));
  EXPECT_EQ(memory.bytes(1'078 + 70'001, 1), std::string(1, '\0'));
  EXPECT_EQ(cuFileRead(file.handle, memory.pointer(), kSize, kSize - 10, 0), 10) << "the end";
  EXPECT_EQ(cuFileRead(file.handle, memory.pointer(), kSize, kSize + 10, 0), 0);
  EXPECT_EQ(cuFileRead(file.handle, memory.pointer(), 0, 0, 0), 0);
  memory.fill(content_);
  EXPECT_EQ(cuFileWrite(file.handle, memory.pointer(3), 5'001, 999, 10), 5'001);
  EXPECT_TRUE(test::read_file(file.path).substr(999, 5'001) == content_.substr(13, 5'001));
}

TEST_F(CufileTest, HostMemoryWorks) {
  const File file = ours();
  std::string memory(kSize, '\0');
  EXPECT_EQ(cuFileRead(file.handle, memory.data(), kSize, 0, 0), ssize_t{kSize});
  EXPECT_TRUE(memory == content_);
  EXPECT_EQ(cuFileWrite(file.handle, memory.data(), 1'000, 7, 500), 1'000);
  EXPECT_TRUE(test::read_file(file.path).substr(7, 1'000) == content_.substr(500, 1'000));
}

TEST_F(CufileTest, MemoryOfTheVirtualMemoryApiMaySpanSeveralAllocations) {
  const File file = ours();
  const GpuMemory memory(device(), 2, 2 << 20);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(cuFileRead(file.handle, memory.pointer(1'000), kSize, 0, 0), ssize_t{kSize});
    EXPECT_TRUE(memory.bytes(1'000, kSize) == content_);
  }
}

TEST_F(CufileTest, VectorsAreContiguousInTheFile) {
  const File file = ours();
  const GpuMemory memory(device(), 100'000), second(device(), 100'000);
  std::string host(5'000, '\0');
  const IoVector vectors[] = {{memory.pointer(10), 1'000},
                              {memory.pointer(50'000), 2'000},
                              {second.pointer(), 0},
                              {host.data(), 5'000},
                              {second.pointer(7), 3'000}};
  EXPECT_EQ(cuFileReadv(file.handle, vectors, 5, 111, 0), 11'000);
  EXPECT_TRUE(memory.bytes(10, 1'000) == content_.substr(111, 1'000));
  EXPECT_TRUE(memory.bytes(50'000, 2'000) == content_.substr(1'111, 2'000));
  EXPECT_TRUE(host == content_.substr(3'111, 5'000));
  EXPECT_TRUE(second.bytes(7, 3'000) == content_.substr(8'111, 3'000));
  EXPECT_EQ(cuFileWritev(file.handle, vectors, 5, 500'000, 0), 11'000);
  EXPECT_TRUE(test::read_file(file.path).substr(500'000, 11'000) == content_.substr(111, 11'000));
  EXPECT_EQ(cuFileReadv(file.handle, vectors, 5, kSize - 1'500, 0), 1'500) << "the end";
  EXPECT_EQ(cuFileReadv(file.handle, nullptr, 1, 0, 0), -CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileReadv(file.handle, nullptr, 0, 0, 0), 0);
  const File other = others();
  EXPECT_EQ(cuFileReadv(other.handle, vectors, 5, 0, 0), -CU_FILE_HANDLE_NOT_REGISTERED)
      << "the fake is too old for it";
}

TEST_F(CufileTest, ErrorsAreReportedToTheCaller) {
  const File unwritable = ours(O_RDONLY);
  std::string memory(1'000, 'x');
  errno = 0;
  EXPECT_EQ(cuFileWrite(unwritable.handle, memory.data(), 1'000, 0, 0), -1);
  EXPECT_EQ(errno, EBADF);
  for (const ssize_t result : {cuFileRead(unwritable.handle, nullptr, 10, 0, 0),
                               cuFileRead(unwritable.handle, memory.data(), 10, -1, 0),
                               cuFileRead(unwritable.handle, memory.data(), 10, 0, -1),
                               cuFileRead(unwritable.handle, memory.data(), SIZE_MAX, 0, 0)}) {
    EXPECT_EQ(result, -CU_FILE_INVALID_VALUE);
  }
  const GpuMemory gpu(device(), 1'000);
  EXPECT_EQ(cuFileRead(unwritable.handle, gpu.pointer(), 1'001, 0, 0),
            -CU_FILE_CUDA_POINTER_INVALID)
      << "beyond the allocation";
  EXPECT_EQ(cuFileRead(&memory, memory.data(), 10, 0, 0), -CU_FILE_HANDLE_NOT_REGISTERED)
      << "an unknown handle, as in NVIDIA's library";

  CUfileHandle_t handle = nullptr;
  CUfileDescr_t description{};
  description.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
  description.handle.fd = unwritable.fd.get();
  EXPECT_EQ(cuFileHandleRegister(&handle, &description).err, CU_FILE_HANDLE_ALREADY_REGISTERED);
  EXPECT_EQ(cuFileHandleRegister(nullptr, &description).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileHandleRegister(&handle, nullptr).err, CU_FILE_INVALID_VALUE);
  description.handle.fd = -1;
  EXPECT_EQ(cuFileHandleRegister(&handle, &description).err, CU_FILE_INVALID_FILE_TYPE);
}

TEST_F(CufileTest, DescriptorOutlivesItsHandleAndCanBeRegisteredAgain) {
  const std::string path = make("file.mount");
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  ASSERT_TRUE(fd);
  for (int i = 0; i < 2; ++i) {
    CUfileDescr_t description{};
    description.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    description.handle.fd = fd.get();
    CUfileHandle_t handle = nullptr;
    ASSERT_EQ(cuFileHandleRegister(&handle, &description).err, CU_FILE_SUCCESS);
    std::string memory(1'001, '\0');
    EXPECT_EQ(cuFileRead(handle, memory.data(), 1'001, 17, 0), 1'001);
    EXPECT_TRUE(memory == content_.substr(17, 1'001));
    cuFileHandleDeregister(handle);
    struct stat status {};
    EXPECT_EQ(::fstat(fd.get(), &status), 0);
  }
}

// As with NVIDIA's library, whose callers read ahead while the default stream computes.
TEST_F(CufileTest, ReadDoesNotWaitForTheDefaultStream) {
  const File mine = ours();
  const GpuMemory memory(device(), kSize);
  ASSERT_EQ(cuFileRead(mine.handle, memory.pointer(), kSize, 0, 0), static_cast<ssize_t>(kSize));
  std::promise<void> is_read;
  auto wait = is_read.get_future();
  const auto hold = [](void* user) { static_cast<std::future<void>*>(user)->wait(); };
  ASSERT_EQ(device().api().cuLaunchHostFunc(nullptr, hold, &wait), CUDA_SUCCESS);
  EXPECT_EQ(cuFileRead(mine.handle, memory.pointer(), 1'000, 5, 0), 1'000);
  EXPECT_EQ(device().api().cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  is_read.set_value();
  EXPECT_TRUE(memory.bytes(0, 1'000) == content_.substr(5, 1'000));
}

TEST_F(CufileTest, MemoryIsRegisteredWithNvidiasLibraryOnFirstUse) {
  const File mine = ours(), other = others();
  const GpuMemory memory(device(), kSize);
  ASSERT_EQ(cuFileBufRegister(memory.pointer(), kSize, 0).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileBufRegister(memory.pointer(), kSize, 0).err, CU_FILE_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuFileRead(mine.handle, memory.pointer(), 1'000, 5, 100), 1'000);
  EXPECT_TRUE(memory.bytes(100, 1'000) == content_.substr(5, 1'000));
  EXPECT_EQ(FakeGpu::count(FakeCount::Buffers), 0u);
  // Memory that begins at its end does not belong to it.
  const GpuMemory two(device(), 20'000);
  ASSERT_EQ(cuFileBufRegister(two.pointer(), 10'000, 0).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileRead(other.handle, two.pointer(10'000), 1'000, 5, 0), 1'000);
  EXPECT_EQ(FakeGpu::count(FakeCount::Buffers), 0u);
  EXPECT_EQ(cuFileBufDeregister(two.pointer()).err, CU_FILE_SUCCESS);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(cuFileRead(other.handle, memory.pointer(), 1'000, 5, 100), 1'000);
    EXPECT_EQ(FakeGpu::count(FakeCount::Buffers), 1u);
  }
  EXPECT_EQ(cuFileBufDeregister(memory.pointer()).err, CU_FILE_SUCCESS);
  EXPECT_EQ(FakeGpu::count(FakeCount::Buffers), 0u);
  EXPECT_EQ(cuFileBufDeregister(memory.pointer()).err, CU_FILE_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(cuFileBufRegister(nullptr, kSize, 0).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileBufRegister(memory.pointer(), 0, 0).err, CU_FILE_INVALID_VALUE);

  // Memory that NVIDIA's library refuses is read into anyway.
  ASSERT_EQ(cuFileBufRegister(memory.pointer(), kSize, 0).err, CU_FILE_SUCCESS);
  FakeGpu::fail_cufile("cuFileBufRegister:1+:5036");
  EXPECT_EQ(cuFileRead(other.handle, memory.pointer(), 1'000, 5, 100), 1'000);
  EXPECT_EQ(cuFileBufDeregister(memory.pointer()).err, CU_FILE_SUCCESS);
}

TEST_F(CufileTest, MountFilesWorkIfNvidiasDriverDoesNotOpen) {
  FakeGpu::fail_cufile("cuFileDriverOpen:1+:5001,cuFileDriverGetProperties:1+:5001");
  const long before = cuFileUseCount();
  EXPECT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileUseCount(), before + 1);
  CUfileDrvProps_t properties{};
  EXPECT_EQ(cuFileDriverGetProperties(&properties).err, CU_FILE_SUCCESS);
  EXPECT_EQ(properties.max_batch_io_size, 128u);
  EXPECT_EQ(properties.nvfs.major_version, 0u);
  EXPECT_EQ(cuFileDriverGetProperties(nullptr).err, CU_FILE_INVALID_VALUE);
  const File file = ours();
  EXPECT_EQ(file.error, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileDriverClose_v2().err, CU_FILE_SUCCESS);
}

TEST_F(CufileTest, OtherFunctionsAreForwarded) {
  bool value = false;
  EXPECT_EQ(cuFileGetParameterBool(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, &value).err,
            CU_FILE_SUCCESS);
  EXPECT_TRUE(value);
  int version = 0;
  EXPECT_EQ(cuFileGetVersion(&version).err, CU_FILE_SUCCESS);
  EXPECT_EQ(version, 1140);
  EXPECT_EQ(cuFileDriverSetMaxCacheSize(1024).err, CU_FILE_PLATFORM_NOT_SUPPORTED)
      << "the fake is too old for it";
  EXPECT_NE(sluice_cufile_real(), nullptr);
}

TEST_F(CufileTest, ThreadsMayCallEverythingAtOnce) {
  const std::string path = make("file.mount"), other_path = make("file");
  const GpuMemory memory(device(), 8 * 10'000);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      if (!device().enter()) ++wrong;
      for (std::size_t i = 0; i < 40; ++i) {
        const File file(i % 2 == 0 ? path : other_path, O_RDONLY);
        void* place = memory.pointer(t * 10'000);
        if (i % 4 < 2 && cuFileBufRegister(place, 10'000, 0).err != CU_FILE_SUCCESS) ++wrong;
        const auto offset = static_cast<off_t>(t * 1'000 + i * 7);
        if (cuFileRead(file.handle, place, 9'000, offset, 11) != 9'000) ++wrong;
        if (memory.bytes(t * 10'000 + 11, 9'000) !=
            content_.substr(static_cast<std::size_t>(offset), 9'000)) {
          ++wrong;
        }
        if (i % 4 < 2 && cuFileBufDeregister(place).err != CU_FILE_SUCCESS) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(CufileTest, ChildCanUseHostMemory) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer does not support threads in a forked child";
#endif
  const File file = ours();
  const std::string result = dir_ / "result";
  test::Child child([&] {
    std::string memory(kSize, '\0');
    const ssize_t done = cuFileRead(file.handle, memory.data(), kSize, 0, 0);
    const UniqueFd out(::open(result.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    const bool is_right = done == ssize_t{kSize} && memory == content_;
    ::write(out.get(), is_right ? "right" : "wrong", 5);
  });
  ASSERT_TRUE(child.join());
  EXPECT_EQ(test::read_file(result), "right");
}

}  // namespace
}  // namespace sluice::dropin
