// SPDX-License-Identifier: BSD-2-Clause
// The fake libcuda.so.1: memory of its GPUs, of other processes, and of the host.
#include "tests/support/fake_cuda_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

namespace sluice {

using test::FakeCount;

namespace {

std::size_t in_pages(std::size_t size) { return (size + 4095) / 4096 * 4096; }

constexpr std::uint64_t kMagic = 0x656b61662d637069;  // "ipc-fake"

struct IpcContent {
  std::uint64_t magic;
  std::int32_t pid, fd, device, reserved;
  std::uint64_t inode, size;
};
static_assert(sizeof(IpcContent) <= sizeof(CUipcMemHandle));

constexpr const char* kPlain = "sluice-fake-gpu:";

struct HostRange {
  bool readable = true, writable = true, of_file = false;
};

// The access rights of a range of host addresses; empty if it has a gap.
HostRange look_at_host(std::uintptr_t begin, std::uintptr_t end) {
  HostRange result;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; begin < end && std::getline(maps, line);) {
    unsigned long from = 0, to = 0, inode = 0;
    char rights[5] = "";
    std::sscanf(line.c_str(), "%lx-%lx %4s %*s %*s %lu", &from, &to, rights, &inode);
    if (to <= begin) continue;
    if (from > begin) break;
    if (rights[0] != 'r') result.readable = false;
    if (rights[1] != 'w') result.writable = false;
    if (inode != 0) result.of_file = true;
    begin = to;
  }
  if (begin < end) result.readable = result.writable = false;
  return result;
}

}  // namespace

CUdeviceptr reserve(std::size_t size) {
  void* memory = ::mmap(nullptr, size + FakeCuda::kGranularity, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return 0;
  const auto start = reinterpret_cast<CUdeviceptr>(memory);
  const auto aligned =
      (start + FakeCuda::kGranularity - 1) / FakeCuda::kGranularity * FakeCuda::kGranularity;
  if (aligned > start) ::munmap(memory, aligned - start);
  const std::size_t rest = start + size + FakeCuda::kGranularity - (aligned + in_pages(size));
  if (rest >= 4096) ::munmap(reinterpret_cast<void*>(aligned + in_pages(size)), rest / 4096 * 4096);
  return aligned;
}

void unreserve(CUdeviceptr address, std::size_t size) {
  ::munmap(reinterpret_cast<void*>(address), in_pages(size));
}

int make_memfd(const char* kind, int device, std::size_t size) {
  const std::string name = std::string(kind) + std::to_string(device);
  const int fd = ::memfd_create(name.c_str(), MFD_CLOEXEC);
  if (fd >= 0 && ::ftruncate(fd, static_cast<off_t>(size)) < 0) {
    ::close(fd);
    return -1;
  }
  return fd;
}

int device_of_memfd(int fd, const char* kind) {
  char link[64], name[256] = "";
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  if (::readlink(link, name, sizeof name - 1) < 0) return -1;
  const std::string prefix = std::string("/memfd:") + kind;
  if (std::strncmp(name, prefix.c_str(), prefix.size()) != 0) return -1;
  return std::atoi(name + prefix.size());
}

FakeAllocation::FakeAllocation(int memfd, std::size_t size_bytes, int gpu, bool own,
                               bool of_virtual)
    : fd(memfd), size(size_bytes), device(gpu), mine(own), is_virtual(of_virtual) {
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  bytes = memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
  if (mine) count(FakeCount::AllocatedBytes, static_cast<std::int64_t>(size));
  if (is_virtual) fake().used_virtual[device] += size;
}

FakeAllocation::~FakeAllocation() {
  if (bytes != nullptr) ::munmap(bytes, size);
  ::close(fd);
  if (mine) count(FakeCount::AllocatedBytes, -static_cast<std::int64_t>(size));
  if (is_virtual) fake().used_virtual[device] -= size;
}

std::map<CUdeviceptr, FakeRange>::iterator FakeCuda::find(CUdeviceptr address) {
  auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return ranges.end();
  --after;
  return address - after->first < after->second.size ? after : ranges.end();
}

namespace {

// Adds the range to the table at new addresses. Returns 0 if there are none.
CUdeviceptr add_range(FakeRange range) REQUIRES(fake().mutex) {
  const CUdeviceptr address = reserve(range.size);
  if (address == 0 || range.bytes == nullptr) return 0;
  range.id = fake().next_id++;
  fake().ranges.emplace(address, std::move(range));
  return address;
}

bool take_memory(int device, std::size_t size) REQUIRES(fake().mutex) {
  FakeGpuState& state = fake().state[device];
  if (size > free_memory(device)) return false;
  state.used += size;
  return true;
}

}  // namespace

std::size_t free_memory(int device) {
  const std::uint64_t used = fake().state[device].used + fake().used_virtual[device];
  return used < FakeCuda::kMemory ? FakeCuda::kMemory - used : 0;
}

FakeRange range_of(std::shared_ptr<FakeAllocation> allocation, FakeRange::Kind kind) {
  FakeRange range;
  range.kind = kind;
  range.size = allocation->size;
  range.bytes = allocation->bytes;
  range.device = allocation->device;
  range.allocation = std::move(allocation);
  return range;
}

void remove_range(std::map<CUdeviceptr, FakeRange>::iterator found) {
  const FakeRange& range = found->second;
  const auto size = static_cast<std::int64_t>(range.size);
  const bool imported = range.allocation && !range.allocation->mine;
  if (imported) count(FakeCount::Imports, -1);
  if (imported) count(FakeCount::ImportedBytes, -size);
  switch (range.kind) {
    case FakeRange::Kind::Allocated:
      fake().state[range.device].used -= range.size;
      [[fallthrough]];
    case FakeRange::Kind::Ipc:
      unreserve(found->first, range.size);
      break;
    case FakeRange::Kind::Mapped:
      break;  // the reserved addresses stay
    case FakeRange::Kind::Host:
      count(FakeCount::Registrations, -1);
      count(FakeCount::RegisteredBytes, -size);
  }
  fake().ranges.erase(found);
}

// Not analyzed: clang does not know that `this` is fake().
std::vector<std::unique_ptr<FakeStream>> FakeCuda::clear_context(int device)
    NO_THREAD_SAFETY_ANALYSIS {
  for (auto i = ranges.begin(); i != ranges.end();) {
    const auto range = i++;
    if (range->second.device == device && range->second.kind != FakeRange::Kind::Mapped) {
      remove_range(range);
    }
  }
  std::vector<std::unique_ptr<FakeStream>> ended;
  for (auto& [key, stream] : streams) {
    if (stream->device() == device) ended.push_back(std::move(stream));
  }
  std::erase_if(streams, [](const auto& entry) { return !entry.second; });
  return ended;
}

extern "C" {

CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuMemGetInfo", &device);
  const MutexLock lock(fake().mutex);
  *total = FakeCuda::kMemory;
  *free = free_memory(device);
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t size) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuMemAlloc", &device);
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  const MutexLock lock(fake().mutex);
  if (!take_memory(device, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  const int fd = make_memfd(kPlain, device, size);
  if (fd >= 0) {
    *address = add_range(range_of(std::make_shared<FakeAllocation>(fd, size, device, true),
                                  FakeRange::Kind::Allocated));
  }
  if (fd >= 0 && *address != 0) return CUDA_SUCCESS;
  fake().state[device].used -= size;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuMemFree", &device);
  fake().synchronize(device);  // like CUDA
  const MutexLock lock(fake().mutex);
  const auto found = fake().ranges.find(address);
  if (found == fake().ranges.end() || found->second.kind != FakeRange::Kind::Allocated) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  remove_range(found);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size, CUdeviceptr address) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuMemGetAddressRange", &device);
  const MutexLock lock(fake().mutex);
  const auto found = fake().find(address);
  if (found == fake().ranges.end()) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = found->first;
  if (size != nullptr) *size = found->second.size;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  FAKE_CUDA_BEGIN("cuPointerGetAttribute", nullptr);
  const MutexLock lock(fake().mutex);
  const auto found = fake().find(address);
  if (found == fake().ranges.end()) return CUDA_ERROR_INVALID_VALUE;
  const FakeRange& range = found->second;
  const bool host = range.kind == FakeRange::Kind::Host;
  const auto put = [&](auto what) {
    std::memcpy(value, &what, sizeof what);
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put(reinterpret_cast<CUcontext>(&fake().state[range.device]));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(static_cast<unsigned>(host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put(address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return host ? put(address) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put(static_cast<unsigned long long>(range.id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put(0u);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(range.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put(static_cast<unsigned>(range.kind == FakeRange::Kind::Allocated));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(found->first);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(range.size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put(1u);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put(static_cast<unsigned long long>(range.kind == FakeRange::Kind::Mapped));
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostRegister_v2(void* address, std::size_t size, unsigned flags) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuMemHostRegister", &device);
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  // Whole pages are locked.
  const auto begin = reinterpret_cast<CUdeviceptr>(address) / 4096 * 4096;
  const auto end = (reinterpret_cast<CUdeviceptr>(address) + size + 4095) / 4096 * 4096;
  const HostRange host = look_at_host(begin, end);
  const bool read_only = (flags & kHostRegisterReadOnly) != 0;
  if (!host.readable || (!host.writable && !read_only)) return CUDA_ERROR_INVALID_VALUE;
  // Locking populates the pages; this fails for pages beyond the end of a file.
  if (::madvise(reinterpret_cast<void*>(begin), end - begin, 22 /* MADV_POPULATE_READ */) < 0 &&
      errno != EINVAL) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const MutexLock lock(fake().mutex);
  for (const auto& [start, range] : fake().ranges) {
    if (range.kind == FakeRange::Kind::Host && start / 4096 * 4096 < end &&
        start + range.size > begin) {
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
  }
  FakeRange range;
  range.kind = FakeRange::Kind::Host;
  range.size = size;
  range.bytes = static_cast<std::byte*>(address);
  range.writable = !read_only;
  range.of_file = host.of_file;
  range.device = device;
  range.id = fake().next_id++;
  fake().ranges.emplace(reinterpret_cast<CUdeviceptr>(address), std::move(range));
  count(FakeCount::Registrations, 1);
  count(FakeCount::RegisteredBytes, static_cast<std::int64_t>(size));
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* address) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuMemHostUnregister", &device);
  const MutexLock lock(fake().mutex);
  const auto found = fake().ranges.find(reinterpret_cast<CUdeviceptr>(address));
  if (found == fake().ranges.end() || found->second.kind != FakeRange::Kind::Host) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  remove_range(found);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device_address, void* host, unsigned flags) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuMemHostGetDevicePointer", &device);
  const MutexLock lock(fake().mutex);
  const auto address = reinterpret_cast<CUdeviceptr>(host);
  const auto found = fake().find(address);
  if (flags != 0 || found == fake().ranges.end() || found->second.kind != FakeRange::Kind::Host) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *device_address = address;
  return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuIpcGetMemHandle", &device);
  const MutexLock lock(fake().mutex);
  const auto found = fake().find(address);
  if (found == fake().ranges.end() || found->second.kind != FakeRange::Kind::Allocated) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const FakeAllocation& allocation = *found->second.allocation;
  struct stat status {};
  ::fstat(allocation.fd, &status);
  const IpcContent content{kMagic, ::getpid(),    allocation.fd,  allocation.device,
                           0,      status.st_ino, allocation.size};
  *handle = {};
  std::memcpy(handle->reserved, &content, sizeof content);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuIpcOpenMemHandle", &device);
  IpcContent content;
  std::memcpy(&content, handle.reserved, sizeof content);
  if (flags != kIpcLazyEnablePeerAccess || content.magic != kMagic) return CUDA_ERROR_INVALID_VALUE;
  if (content.pid == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  const std::string path =
      "/proc/" + std::to_string(content.pid) + "/fd/" + std::to_string(content.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  struct stat status {};
  if (::fstat(fd, &status) < 0 || status.st_ino != content.inode ||
      static_cast<std::uint64_t>(status.st_size) != content.size ||
      device_of_memfd(fd, kPlain) != content.device || !is_device(content.device)) {
    ::close(fd);
    return CUDA_ERROR_INVALID_VALUE;
  }
  const MutexLock lock(fake().mutex);
  for (auto& [start, range] : fake().ranges) {
    struct stat other {};
    if (range.kind != FakeRange::Kind::Ipc || ::fstat(range.allocation->fd, &other) < 0 ||
        other.st_ino != status.st_ino) {
      continue;
    }
    ::close(fd);
    ++range.users;
    *address = start;
    return CUDA_SUCCESS;
  }
  *address =
      add_range(range_of(std::make_shared<FakeAllocation>(fd, content.size, content.device, false),
                         FakeRange::Kind::Ipc));
  if (*address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  count(FakeCount::Imports, 1);
  count(FakeCount::ImportedBytes, static_cast<std::int64_t>(content.size));
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuIpcCloseMemHandle", &device);
  const MutexLock lock(fake().mutex);
  const auto found = fake().ranges.find(address);
  if (found == fake().ranges.end() || found->second.kind != FakeRange::Kind::Ipc) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (--found->second.users == 0) remove_range(found);
  return CUDA_SUCCESS;
}

}  // extern "C"
}  // namespace sluice
