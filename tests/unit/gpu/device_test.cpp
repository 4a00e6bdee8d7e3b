// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/device.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/fake_gpu.hpp"

namespace sluice {
namespace {

using test::FakeCount;
using test::FakeGpu;

TEST(DevicesTest, KnowsTheGpusByUuid) {
  Devices devices;
  ASSERT_EQ(devices.all().size(), 2u) << devices.why_none();
  Device& second = *devices.all()[1];
  EXPECT_EQ(to_string(second.uuid()), "GPU-534c5549-4345-2046-414b-452047505531");
  EXPECT_EQ(second.name(), "Fake GPU 1");
  EXPECT_EQ(second.pci_address(), "0000:f1:00.0");
  EXPECT_EQ(second.numa_node(), -1);
  EXPECT_GT(second.memory_bytes(), 0u);
  EXPECT_EQ(devices.driver_version(), "12.4");
  const auto found = devices.by_uuid(second.uuid());
  ASSERT_TRUE(found);
  EXPECT_EQ(*found, &second);
}

TEST(DevicesTest, ZeroUuidIsTheFirstGpuAndAnUnknownOneIsAnError) {
  Devices devices;
  const auto first = devices.by_uuid({});
  ASSERT_TRUE(first);
  EXPECT_EQ(*first, devices.all()[0].get());
  GpuUuid foreign{};
  foreign[15] = 1;
  EXPECT_TRUE(failed_with(devices.by_uuid(foreign), ENODEV));
}

TEST(DeviceTest, HasAContextOnlyAfterEnter) {
  {
    Devices devices;
    ASSERT_FALSE(devices.all().empty());
    EXPECT_EQ(FakeGpu::count(FakeCount::Contexts), 0u);
    Device& device = *devices.all()[0];
    ASSERT_TRUE(device.enter());
    std::thread([&] {
      CUdevice ordinal = -1;
      EXPECT_EQ(device.api().cuCtxGetDevice(&ordinal), CUDA_ERROR_INVALID_CONTEXT);
      EXPECT_TRUE(device.enter());
      EXPECT_EQ(device.api().cuCtxGetDevice(&ordinal), CUDA_SUCCESS);
      EXPECT_EQ(ordinal, 0);
    }).join();
    EXPECT_EQ(FakeGpu::count(FakeCount::Contexts), 1u);
  }
  EXPECT_EQ(FakeGpu::count(FakeCount::Contexts), 0u);
}

TEST(DeviceTest, EnterReturnsCudasErrorAndCanBeRetried) {
  Devices devices;
  Device& device = *devices.all()[0];
  ASSERT_TRUE(FakeGpu::fail_cuda("cuDevicePrimaryCtxRetain:1:2"));
  EXPECT_TRUE(failed_with(device.enter(), ENOMEM));
  EXPECT_TRUE(device.enter());
  FakeGpu::fail_cuda("");
}

TEST(DeviceTest, TranslatesCudaErrors) {
  Devices devices;
  Device& device = *devices.all()[0];
  const auto translated = [&](CUresult code) { return device.failed(code, "try").code; };
  EXPECT_EQ(translated(CUDA_ERROR_OUT_OF_MEMORY), ENOMEM);
  EXPECT_EQ(translated(CUDA_ERROR_INVALID_VALUE), EINVAL);
  EXPECT_EQ(translated(CUDA_ERROR_NOT_SUPPORTED), EOPNOTSUPP);
  EXPECT_EQ(translated(CUDA_ERROR_NOT_PERMITTED), EPERM);
  EXPECT_EQ(translated(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED), EEXIST);
  EXPECT_EQ(translated(CUDA_ERROR_UNKNOWN), EIO);
  EXPECT_EQ(translated(static_cast<CUresult>(4711)), EIO);
  EXPECT_FALSE(device.is_lost());
}

TEST(DeviceTest, IsLostAfterAStickyError) {
  for (const CUresult code :
       {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_ECC_UNCORRECTABLE,
        CUDA_ERROR_DEVICE_UNAVAILABLE, CUDA_ERROR_CONTEXT_IS_DESTROYED}) {
    Devices devices;
    Device& device = *devices.all()[0];
    ASSERT_TRUE(device.enter());
    (void)device.failed(code, "try");
    EXPECT_TRUE(device.is_lost()) << code;
    EXPECT_TRUE(failed_with(device.enter(), ENODEV)) << code;
    EXPECT_TRUE(devices.all()[1]->enter()) << "the other GPU is not affected";
  }
}

}  // namespace
}  // namespace sluice
