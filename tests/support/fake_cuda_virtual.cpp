// SPDX-License-Identifier: BSD-2-Clause
// The fake libcuda.so.1: virtual memory, where addresses and bytes are allocated separately and
// then mapped.
#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>

#include "tests/support/fake_cuda_memory.hpp"

namespace sluice {

using test::FakeCount;

namespace {
constexpr const char* kVirtual = "sluice-fake-gpu-virtual:";
}  // namespace

extern "C" {

CUresult cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  FAKE_CUDA_BEGIN("cuMemGetAllocationGranularity", nullptr);
  *granularity = FakeCuda::kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size,
                     const CUmemAllocationProp* properties, unsigned long long) {
  FAKE_CUDA_BEGIN("cuMemCreate", nullptr);
  const int device = properties->location.id;
  if (size == 0 || size % FakeCuda::kGranularity != 0 || !is_device(device)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const MutexLock lock(fake().mutex);
  if (size > free_memory(device)) return CUDA_ERROR_OUT_OF_MEMORY;
  const int fd = make_memfd(kVirtual, device, size);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = fake().next_id++;
  fake().handles[*handle] = {std::make_shared<FakeAllocation>(fd, size, device, true, true), 1};
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  FAKE_CUDA_BEGIN("cuMemRelease", nullptr);
  const MutexLock lock(fake().mutex);
  const auto found = fake().handles.find(handle);
  if (found == fake().handles.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.second == 0) fake().handles.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t size, std::size_t, CUdeviceptr,
                             unsigned long long) {
  FAKE_CUDA_BEGIN("cuMemAddressReserve", nullptr);
  if (size == 0 || size % FakeCuda::kGranularity != 0 || size > FakeCuda::kMemory) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *address = reserve(size);
  if (*address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const MutexLock lock(fake().mutex);
  fake().reservations[*address] = size;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, std::size_t size) {
  FAKE_CUDA_BEGIN("cuMemAddressFree", nullptr);
  const MutexLock lock(fake().mutex);
  const auto found = fake().reservations.find(address);
  if (found == fake().reservations.end() || found->second != size) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = fake().ranges.lower_bound(address);
  if (mapped != fake().ranges.end() && mapped->first < address + size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  fake().reservations.erase(found);
  unreserve(address, size);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, std::size_t size, std::size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long) {
  FAKE_CUDA_BEGIN("cuMemMap", nullptr);
  const MutexLock lock(fake().mutex);
  const auto found = fake().handles.find(handle);
  auto reserved = fake().reservations.upper_bound(address);
  if (found == fake().handles.end() || offset != 0 || reserved == fake().reservations.begin()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  --reserved;
  FakeRange range = range_of(found->second.first, FakeRange::Kind::Mapped);
  if (size == 0 || size % FakeCuda::kGranularity != 0 || size > range.size ||
      address + size > reserved->first + reserved->second ||
      fake().find(address) != fake().ranges.end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  range.size = size;
  range.accessible = false;
  range.id = fake().next_id++;
  if (!range.allocation->mine) {
    count(FakeCount::Imports, 1);
    count(FakeCount::ImportedBytes, static_cast<std::int64_t>(size));
  }
  fake().ranges.emplace(address, std::move(range));
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, std::size_t size) {
  FAKE_CUDA_BEGIN("cuMemUnmap", nullptr);
  const MutexLock lock(fake().mutex);
  for (const CUdeviceptr end = address + size; address < end;) {
    const auto found = fake().ranges.find(address);
    if (found == fake().ranges.end() || found->second.kind != FakeRange::Kind::Mapped ||
        found->second.size > end - address) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    address += found->second.size;
    remove_range(found);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, std::size_t size, const CUmemAccessDesc* access,
                        std::size_t descriptions) {
  FAKE_CUDA_BEGIN("cuMemSetAccess", nullptr);
  if (descriptions != 1 || !is_device(access->location.id)) return CUDA_ERROR_INVALID_VALUE;
  const MutexLock lock(fake().mutex);
  for (const CUdeviceptr end = address + size; address < end;) {
    const auto found = fake().ranges.find(address);
    if (found == fake().ranges.end() || found->second.size > end - address) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    found->second.accessible = true;
    found->second.writable = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    address += found->second.size;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long) {
  FAKE_CUDA_BEGIN("cuMemExportToShareableHandle", nullptr);
  const MutexLock lock(fake().mutex);
  const auto found = fake().handles.find(handle);
  if (found == fake().handles.end() || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int fd = ::fcntl(found->second.first->fd, F_DUPFD_CLOEXEC, 3);
  std::memcpy(out, &fd, sizeof fd);
  return fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* from,
                                        CUmemAllocationHandleType type) {
  FAKE_CUDA_BEGIN("cuMemImportFromShareableHandle", nullptr);
  const int theirs = static_cast<int>(reinterpret_cast<std::intptr_t>(from));
  const int device = device_of_memfd(theirs, kVirtual);
  struct stat status {};
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !is_device(device) ||
      ::fstat(theirs, &status) < 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int fd = ::fcntl(theirs, F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  const MutexLock lock(fake().mutex);
  *handle = fake().next_id++;
  fake().handles[*handle] = {
      std::make_shared<FakeAllocation>(fd, static_cast<std::size_t>(status.st_size), device, false),
      1};
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  FAKE_CUDA_BEGIN("cuMemRetainAllocationHandle", nullptr);
  const MutexLock lock(fake().mutex);
  const auto range = fake().find(reinterpret_cast<CUdeviceptr>(address));
  if (range == fake().ranges.end() || range->second.kind != FakeRange::Kind::Mapped) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (auto& [number, entry] : fake().handles) {
    if (entry.first != range->second.allocation) continue;
    ++entry.second;
    *handle = number;
    return CUDA_SUCCESS;
  }
  *handle = fake().next_id++;
  fake().handles[*handle] = {range->second.allocation, 1};
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
  FAKE_CUDA_BEGIN("cuMemGetAllocationPropertiesFromHandle", nullptr);
  const MutexLock lock(fake().mutex);
  const auto found = fake().handles.find(handle);
  if (found == fake().handles.end()) return CUDA_ERROR_INVALID_VALUE;
  *properties = {};
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties->location = {CU_MEM_LOCATION_TYPE_DEVICE, found->second.first->device};
  return CUDA_SUCCESS;
}
}  // extern "C"
}  // namespace sluice
