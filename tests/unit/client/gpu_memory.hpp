// SPDX-License-Identifier: BSD-2-Clause
// GPU memory of a test, and its content.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gpu/device.hpp"

namespace sluice::test {

// One allocation, or several adjacent ones of the virtual memory API. Freed by the destructor.
class GpuMemory {
 public:
  GpuMemory(Device& device, std::size_t size) : device_(device), size_(size) {
    EXPECT_TRUE(device_.enter());
    EXPECT_EQ(api().cuMemAlloc(&address_, size), CUDA_SUCCESS);
    fill(std::string(size, '\0'));
  }
  GpuMemory(Device& device, std::size_t count, std::size_t each)
      : device_(device), size_(count * each) {
    EXPECT_TRUE(device_.enter());
    EXPECT_EQ(api().cuMemAddressReserve(&address_, size_, 0, 0, 0), CUDA_SUCCESS);
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device.ordinal()};
    for (std::size_t i = 0; i < count; ++i) {
      CUmemGenericAllocationHandle handle = 0;
      EXPECT_EQ(api().cuMemCreate(&handle, each, &properties, 0), CUDA_SUCCESS);
      EXPECT_EQ(api().cuMemMap(address_ + i * each, each, 0, handle, 0), CUDA_SUCCESS);
      EXPECT_EQ(api().cuMemRelease(handle), CUDA_SUCCESS);
      segments_.push_back(each);
    }
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT_EQ(api().cuMemSetAccess(address_, size_, &access, 1), CUDA_SUCCESS);
  }
  ~GpuMemory() {
    EXPECT_TRUE(device_.enter());
    if (segments_.empty()) {
      EXPECT_EQ(api().cuMemFree(address_), CUDA_SUCCESS);
      return;
    }
    std::size_t at = 0;
    for (const std::size_t size : segments_) {
      EXPECT_EQ(api().cuMemUnmap(address_ + at, size), CUDA_SUCCESS);
      at += size;
    }
    EXPECT_EQ(api().cuMemAddressFree(address_, size_), CUDA_SUCCESS);
  }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  CUdeviceptr address() const { return address_; }
  void* pointer(std::size_t offset = 0) const { return reinterpret_cast<void*>(address_ + offset); }
  void fill(const std::string& bytes) const {
    EXPECT_EQ(api().cuMemcpyHtoD(address_, bytes.data(), bytes.size()), CUDA_SUCCESS);
    // From pageable memory, the call may return before the bytes have arrived.
    EXPECT_EQ(api().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  }
  std::string bytes(std::size_t offset, std::size_t length) const {
    std::string out(length, '\0');
    // Such copies must not cross the end of an allocation.
    for (std::size_t done = 0; done < length;) {
      std::size_t here = length - done;
      if (!segments_.empty()) here = std::min(here, segments_[0] - (offset + done) % segments_[0]);
      EXPECT_EQ(api().cuMemcpyDtoH(out.data() + done, address_ + offset + done, here),
                CUDA_SUCCESS);
      done += here;
    }
    return out;
  }

 private:
  const CudaApi& api() const { return device_.api(); }

  Device& device_;
  const std::size_t size_;
  CUdeviceptr address_ = 0;
  std::vector<std::size_t> segments_;
};

}  // namespace sluice::test
