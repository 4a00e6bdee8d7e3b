// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/memory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "tests/support/fake_gpu.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/unit/gpu/peer.hpp"

namespace sluice {
namespace {

using test::FakeCount;
using test::FakeGpu;
using test::Peer;

constexpr std::size_t kAllocation = 4 << 20;

class ImportTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(devices_.all().size(), 2u); }
  void TearDown() override {
    FakeGpu::fail_cuda("");
    EXPECT_EQ(FakeGpu::count(FakeCount::Imports), 0u);
    EXPECT_EQ(FakeGpu::count(FakeCount::ImportedBytes), 0u);
  }
  Device& device() { return *devices_.all()[0]; }

  // The byte that fills `memory`, or 0.
  char content(const Memory& memory) {
    std::vector<char> bytes(memory.length());
    EXPECT_TRUE(device().enter());
    EXPECT_EQ(device().api().cuMemcpyDtoH(bytes.data(), memory.address(), bytes.size()),
              CUDA_SUCCESS);
    return bytes == std::vector<char>(bytes.size(), bytes[0]) ? bytes[0] : '\0';
  }
  void fill(const Memory& memory, char value) {
    const std::vector<char> bytes(memory.length(), value);
    ASSERT_EQ(device().api().cuMemcpyHtoD(memory.address(), bytes.data(), bytes.size()),
              CUDA_SUCCESS);
    ASSERT_EQ(device().api().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  }

  Devices devices_;
};

TEST_F(ImportTest, IpcMemoryIsSharedWithTheOtherProcess) {
  Peer peer({"ipc", "0", std::to_string(kAllocation)});
  auto memory = import_ipc(device(), peer.handle(), 0, kAllocation);
  ASSERT_TRUE(memory) << memory.error().operation;
  EXPECT_EQ((*memory)->device(), &device());
  EXPECT_EQ((*memory)->length(), kAllocation);
  EXPECT_EQ((*memory)->host(), nullptr);
  EXPECT_EQ(FakeGpu::count(FakeCount::ImportedBytes), kAllocation);
  EXPECT_EQ(content(**memory), 'a');
  fill(**memory, 'b');
  peer.go_on();
  EXPECT_EQ(peer.line(), "b");
}

TEST_F(ImportTest, IpcMemoryIsMappedOnceUntilItsLastUserEnds) {
  Peer peer({"ipc", "0", std::to_string(kAllocation)});
  const IpcHandle handle = peer.handle();
  auto all = import_ipc(device(), handle, 0, kAllocation);
  auto part = import_ipc(device(), handle, 5, 7);
  ASSERT_TRUE(all && part);
  EXPECT_EQ((*part)->address(), (*all)->address() + 5);
  EXPECT_EQ((*part)->length(), 7u);
  EXPECT_EQ(FakeGpu::count(FakeCount::Imports), 1u);
  all->reset();
  EXPECT_EQ(content(**part), 'a');
}

TEST_F(ImportTest, OutlivesTheProcessThatExportedIt) {
  Peer peer({"ipc", "0", std::to_string(kAllocation)});
  auto memory = import_ipc(device(), peer.handle(), 0, kAllocation);
  ASSERT_TRUE(memory);
  content(**memory);
  peer.kill();
  EXPECT_EQ(content(**memory), 'a');
}

TEST_F(ImportTest, IpcRangesOutsideTheMemoryAreRefused) {
  Peer peer({"ipc", "0", std::to_string(kAllocation)});
  const IpcHandle handle = peer.handle();
  EXPECT_TRUE(failed_with(import_ipc(device(), handle, 0, kAllocation + 1), ERANGE));
  EXPECT_TRUE(failed_with(import_ipc(device(), handle, kAllocation, 1), ERANGE));
  EXPECT_TRUE(failed_with(import_ipc(device(), handle, 1, UINT64_MAX), ERANGE));
  EXPECT_TRUE(failed_with(import_ipc(device(), handle, UINT64_MAX, 1), ERANGE));
  EXPECT_TRUE(failed_with(import_ipc(device(), handle, UINT64_MAX - 1, 2), ERANGE));
  EXPECT_TRUE(failed_with(import_ipc(device(), handle, 0, 0), EINVAL));
  EXPECT_TRUE(import_ipc(device(), handle, kAllocation - 1, 1));
}

TEST_F(ImportTest, InvalidIpcHandlesAreRefused) {
  IpcHandle handle{};
  EXPECT_TRUE(failed_with(import_ipc(device(), handle, 0, 1), EINVAL));
  handle.fill(0xff);
  EXPECT_TRUE(failed_with(import_ipc(device(), handle, 0, 1), EINVAL));
  Peer peer({"ipc", "0", std::to_string(kAllocation)});
  handle = peer.handle();
  peer.kill();
  EXPECT_TRUE(failed_with(import_ipc(device(), handle, 0, 1), EINVAL)) << "its owner is dead";
}

TEST_F(ImportTest, MemoryOfADifferentGpuIsRefused) {
  Peer ipc({"ipc", "1", std::to_string(kAllocation)});
  EXPECT_TRUE(failed_with(import_ipc(device(), ipc.handle(), 0, 1), EINVAL));
  Peer fd({"fd", "1", std::to_string(kAllocation)});
  EXPECT_TRUE(failed_with(import_fd(device(), fd.descriptor(), kAllocation, 0, 1), EINVAL));
}

TEST_F(ImportTest, VirtualMemoryIsSharedWithTheOtherProcess) {
  Peer peer({"fd", "0", std::to_string(kAllocation)});
  auto memory = import_fd(device(), peer.descriptor(), kAllocation, 4096, kAllocation - 4096);
  ASSERT_TRUE(memory) << memory.error().operation;
  EXPECT_EQ(FakeGpu::count(FakeCount::ImportedBytes), kAllocation);
  EXPECT_EQ(content(**memory), 'a');
  fill(**memory, 'b');
  peer.go_on();
  EXPECT_EQ(peer.line(), "mixed") << "the first page does not belong to the buffer";
}

TEST_F(ImportTest, DescriptorsAndRangesThatDoNotFitAreRefused) {
  Peer peer({"fd", "0", std::to_string(kAllocation)});
  const UniqueFd fd = peer.descriptor();
  EXPECT_TRUE(failed_with(import_fd(device(), fd, kAllocation, 0, kAllocation + 1), ERANGE));
  EXPECT_TRUE(failed_with(import_fd(device(), fd, kAllocation, UINT64_MAX, 2), ERANGE));
  EXPECT_TRUE(failed_with(import_fd(device(), fd, kAllocation, 0, 0), EINVAL));
  EXPECT_TRUE(failed_with(import_fd(device(), fd, 2 * kAllocation, 0, 1), EINVAL))
      << "not as large";
  EXPECT_TRUE(failed_with(import_fd(device(), fd, UINT64_MAX, 0, 1), EINVAL));
  const UniqueFd other(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(failed_with(import_fd(device(), other, kAllocation, 0, 1), EINVAL));
  EXPECT_TRUE(failed_with(import_fd(device(), UniqueFd(), kAllocation, 0, 1), EINVAL));
}

// TearDown() checks that nothing stays mapped, whichever call fails.
TEST_F(ImportTest, FailuresOfTheDriverLeaveNothingBehind) {
  Peer ipc({"ipc", "0", std::to_string(kAllocation)});
  const IpcHandle handle = ipc.handle();
  for (const char* call : {"cuIpcOpenMemHandle", "cuMemGetAddressRange", "cuPointerGetAttribute"}) {
    ASSERT_TRUE(FakeGpu::fail_cuda(std::string(call) + ":1:2"));
    EXPECT_TRUE(failed_with(import_ipc(device(), handle, 0, 1), ENOMEM)) << call;
    EXPECT_EQ(FakeGpu::count(FakeCount::Imports), 0u) << call;
  }
  Peer virtual_memory({"fd", "0", std::to_string(kAllocation)});
  const UniqueFd fd = virtual_memory.descriptor();
  for (const char* call :
       {"cuMemImportFromShareableHandle", "cuMemGetAllocationPropertiesFromHandle",
        "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    ASSERT_TRUE(FakeGpu::fail_cuda(std::string(call) + ":1:2"));
    EXPECT_TRUE(failed_with(import_fd(device(), fd, kAllocation, 0, 1), ENOMEM)) << call;
    EXPECT_EQ(FakeGpu::count(FakeCount::Imports), 0u) << call;
  }
  FakeGpu::fail_cuda("");
  EXPECT_TRUE(import_ipc(device(), handle, 0, 1));
  EXPECT_TRUE(import_fd(device(), fd, kAllocation, 0, 1));
}

TEST_F(ImportTest, NothingCanBeImportedOnceTheGpuIsLost) {
  Peer peer({"ipc", "0", std::to_string(kAllocation)});
  const IpcHandle handle = peer.handle();
  ASSERT_TRUE(FakeGpu::fail_cuda("cuIpcOpenMemHandle:1:46"));
  EXPECT_TRUE(failed_with(import_ipc(device(), handle, 0, 1), ENODEV));
  EXPECT_TRUE(device().is_lost());
  EXPECT_TRUE(failed_with(import_ipc(device(), handle, 0, 1), ENODEV));
}

// A memfd of `size` zeroes with these seals.
UniqueFd make_memfd(std::size_t size, int seals) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(size)), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

TEST(MapHostTest, SharesTheBytesAtAnyOffset) {
  const UniqueFd fd = make_memfd(10'000, F_SEAL_SHRINK);
  ASSERT_EQ(::pwrite(fd.get(), "hello", 5, 5001), 5);
  auto memory = map_host(fd, 5001, 4999);
  ASSERT_TRUE(memory) << memory.error().operation;
  EXPECT_EQ((*memory)->device(), nullptr);
  EXPECT_TRUE((*memory)->is_writable());
  EXPECT_EQ(std::memcmp((*memory)->host(), "hello", 5), 0);
  (*memory)->host()[4998] = std::byte{'!'};
  char last = 0;
  ASSERT_EQ(::pread(fd.get(), &last, 1, 9999), 1);
  EXPECT_EQ(last, '!');
}

TEST(MapHostTest, RefusesWhatMayShrinkOrIsTooShort) {
  EXPECT_TRUE(failed_with(map_host(make_memfd(4096, 0), 0, 4096), EPERM));
  const test::TempDir dir;
  const UniqueFd file(::open(dir.make_file("f", "content").c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(failed_with(map_host(file, 0, 1), EPERM));
  const UniqueFd fd = make_memfd(4096, F_SEAL_SHRINK);
  EXPECT_TRUE(failed_with(map_host(fd, 0, 4097), EINVAL));
  EXPECT_TRUE(failed_with(map_host(fd, 4096, 1), EINVAL));
  EXPECT_TRUE(failed_with(map_host(fd, UINT64_MAX, 2), EINVAL));
  EXPECT_TRUE(failed_with(map_host(fd, 1, UINT64_MAX), EINVAL));
  EXPECT_TRUE(failed_with(map_host(fd, 0, 0), EINVAL));
  EXPECT_TRUE(failed_with(map_host(UniqueFd(), 0, 1), EBADF));
}

TEST(MapHostTest, IsReadOnlyIfTheDescriptorOrASealRequiresIt) {
  const UniqueFd sealed = make_memfd(4096, F_SEAL_SHRINK | F_SEAL_WRITE);
  auto memory = map_host(sealed, 0, 4096);
  ASSERT_TRUE(memory);
  EXPECT_FALSE((*memory)->is_writable());
  const UniqueFd fd = make_memfd(4096, F_SEAL_SHRINK);
  const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
  memory = map_host(UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), 0, 4096);
  ASSERT_TRUE(memory);
  EXPECT_FALSE((*memory)->is_writable());
  EXPECT_EQ((*memory)->host()[0], std::byte{0});
}

}  // namespace
}  // namespace sluice
