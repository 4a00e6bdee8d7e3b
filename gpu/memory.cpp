// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

// Checks that [offset, offset + length) lies in `size` bytes, without overflow.
Result<void> check_range(std::uint64_t offset, std::uint64_t length, std::uint64_t size) {
  if (length == 0) return Error(EINVAL, "use memory of length 0");
  if (offset > size || length > size - offset) return Error(ERANGE, "use memory beyond its end");
  return {};
}

// The driver's error for an invalid handle varies (invalid value, device, context, handle,
// operating system, map failed). Only errors that tell something about this machine are kept.
Error import_failed(const Error& error, Operation what) {
  const bool ours = error.code == ENOMEM || error.code == ENODEV || error.code == EOPNOTSUPP;
  return {ours ? error.code : EINVAL, what};
}
Error import_failed(Device& device, CUresult code, Operation what) {
  return import_failed(device.failed(code, what), what);
}

// A CUDA IPC mapping, open while the object lives.
class IpcUse {
 public:
  IpcUse(Device& device, const IpcHandle& handle) : device_(&device), handle_(handle) {}
  IpcUse(IpcUse&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), handle_(other.handle_) {}
  ~IpcUse() {
    if (device_ != nullptr) device_->close_ipc(handle_);
  }

 private:
  Device* device_;
  IpcHandle handle_;
};

class IpcMemory : public Memory {
 public:
  IpcMemory(Device& device, CUdeviceptr address, std::uint64_t length, IpcUse use)
      : Memory(&device, address, nullptr, length, true), use_(std::move(use)) {}

 private:
  IpcUse use_;
};

// A range of GPU addresses, with or without memory mapped to it.
class AddressRange {
 public:
  AddressRange(Device& device, CUdeviceptr address, std::size_t size)
      : api_(&device.api()), address_(address), size_(size) {}
  AddressRange(AddressRange&& other) noexcept
      : api_(std::exchange(other.api_, nullptr)),
        address_(other.address_),
        size_(other.size_),
        mapped_(other.mapped_) {}
  ~AddressRange() {
    if (api_ == nullptr) return;
    if (mapped_) api_->cuMemUnmap(address_, size_);
    api_->cuMemAddressFree(address_, size_);
  }

  CUdeviceptr address() const { return address_; }

  Result<void> map(Device& device, CUmemGenericAllocationHandle handle, MemoryAccess wanted) {
    CUresult code = api_->cuMemMap(address_, size_, 0, handle, 0);
    if (code != CUDA_SUCCESS) return import_failed(device, code, "map imported GPU memory");
    mapped_ = true;
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device.ordinal()},
                                 wanted == MemoryAccess::Read ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                                              : CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    code = api_->cuMemSetAccess(address_, size_, &access, 1);
    if (code != CUDA_SUCCESS) return import_failed(device, code, "access imported GPU memory");
    return {};
  }

 private:
  const CudaApi* api_;
  CUdeviceptr address_;
  std::size_t size_;
  bool mapped_ = false;
};

class VirtualMemory : public Memory {
 public:
  VirtualMemory(Device& device, CUdeviceptr address, std::uint64_t length, MemoryAccess access,
                AddressRange range)
      : Memory(&device, address, nullptr, length, access == MemoryAccess::ReadWrite),
        range_(std::move(range)) {}

 private:
  AddressRange range_;
};

class MappedFile : public Memory {
 public:
  MappedFile(void* start, std::size_t size, std::uint64_t skip, std::uint64_t length, bool writable)
      : Memory(nullptr, 0, static_cast<std::byte*>(start) + skip, length, writable),
        start_(start),
        size_(size) {}
  ~MappedFile() override { ::munmap(start_, size_); }

 private:
  void* const start_;
  const std::size_t size_;
};

class Borrowed : public Memory {
 public:
  Borrowed(Device* device, CUdeviceptr address, std::byte* host, std::uint64_t length)
      : Memory(device, address, host, length, true) {}
};

Result<AddressRange> map_imported(Device& device, CUmemGenericAllocationHandle handle,
                                  std::size_t size, MemoryAccess access) {
  const CudaApi& api = device.api();
  CUmemAllocationProp properties{};
  CUresult code = api.cuMemGetAllocationPropertiesFromHandle(&properties, handle);
  if (code != CUDA_SUCCESS) return import_failed(device, code, "query imported GPU memory");
  const CUmemLocation& place = properties.location;
  if (place.type != CU_MEM_LOCATION_TYPE_DEVICE || place.id != device.ordinal()) {
    return Error(EINVAL, "import memory of a different GPU");
  }
  CUdeviceptr address = 0;
  code = api.cuMemAddressReserve(&address, size, 0, 0, 0);
  if (code != CUDA_SUCCESS) return import_failed(device, code, "reserve GPU addresses");
  AddressRange range(device, address, size);
  SLUICE_TRY(range.map(device, handle, access));
  return range;
}

}  // namespace

Result<std::unique_ptr<Memory>> import_ipc(Device& device, const IpcHandle& handle,
                                           std::uint64_t offset, std::uint64_t length) {
  SLUICE_TRY(check_range(offset, length, UINT64_MAX));
  auto opened = device.open_ipc(handle);
  if (!opened) return import_failed(opened.error(), "open a CUDA IPC handle");
  IpcUse use(device, handle);
  CUdeviceptr base = 0;
  std::size_t size = 0;
  int ordinal = -1;
  const CudaApi& api = device.api();
  CUresult code = api.cuMemGetAddressRange(&base, &size, *opened);
  if (code != CUDA_SUCCESS)
    return import_failed(device, code, "query the size of imported GPU memory");
  code = api.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, *opened);
  if (code != CUDA_SUCCESS) return import_failed(device, code, "query imported GPU memory");
  if (ordinal != device.ordinal()) {
    return Error(EINVAL, "import memory of a different GPU");
  }
  SLUICE_TRY(check_range(offset, length, base + size - *opened));
  return std::unique_ptr<Memory>(
      std::make_unique<IpcMemory>(device, *opened + offset, length, std::move(use)));
}

Result<std::unique_ptr<Memory>> import_fd(Device& device, const UniqueFd& fd,
                                          std::uint64_t allocation, std::uint64_t offset,
                                          std::uint64_t length, MemoryAccess access) {
  SLUICE_TRY(check_range(offset, length, allocation));
  SLUICE_TRY(device.enter());
  const CudaApi& api = device.api();
  if (!api.has_virtual_memory()) return Error(EOPNOTSUPP, "import GPU memory by descriptor");
  CUmemGenericAllocationHandle handle = 0;
  const CUresult code = api.cuMemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get())),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (code != CUDA_SUCCESS) {
    return import_failed(device, code, "import GPU memory by descriptor");
  }
  auto range = map_imported(device, handle, allocation, access);
  api.cuMemRelease(handle);  // the mapping keeps the memory
  if (!range) return range.error();
  const CUdeviceptr address = range->address() + offset;
  return std::unique_ptr<Memory>(
      std::make_unique<VirtualMemory>(device, address, length, access, *std::move(range)));
}

Result<std::unique_ptr<Memory>> map_host(const UniqueFd& fd, std::uint64_t offset,
                                         std::uint64_t length) {
  // Before any other call: a request for a file on the daemon's own mount would wait for the daemon
  // itself.
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 && errno == EBADF) return Error::last("map host memory");
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Error(EPERM, "map host memory that is not sealed against shrinking");
  }
  struct stat status;
  if (::fstat(fd.get(), &status) < 0) return Error::last("stat host memory");
  if (!check_range(offset, length, static_cast<std::uint64_t>(status.st_size))) {
    return Error(EINVAL, "map host memory beyond its end");
  }
  // Huge pages are mapped as a whole. st_blksize is then their size, otherwise that of a page.
  const std::uint64_t page = static_cast<std::uint64_t>(
      std::max<long>(::sysconf(_SC_PAGESIZE), static_cast<long>(status.st_blksize)));
  const std::uint64_t skip = offset % page;
  const std::size_t size = (skip + length + page - 1) / page * page;
  const int flags = ::fcntl(fd.get(), F_GETFL);
  bool writable = flags >= 0 && (flags & O_ACCMODE) == O_RDWR;
  const auto start = static_cast<off_t>(offset - skip);
  void* memory = MAP_FAILED;
  if (writable) {
    memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), start);
    // The memfd is sealed against writing, but can be read.
    if (memory == MAP_FAILED && errno == EPERM) writable = false;
  }
  if (!writable) memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), start);
  if (memory == MAP_FAILED) return Error::last("map host memory");
  return std::unique_ptr<Memory>(
      std::make_unique<MappedFile>(memory, size, skip, length, writable));
}

std::unique_ptr<Memory> borrow_device(Device& device, CUdeviceptr address, std::uint64_t length) {
  return std::make_unique<Borrowed>(&device, address, nullptr, length);
}

std::unique_ptr<Memory> borrow_host(void* address, std::uint64_t length) {
  return std::make_unique<Borrowed>(nullptr, 0, static_cast<std::byte*>(address), length);
}

}  // namespace sluice
