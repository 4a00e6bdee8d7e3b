// SPDX-License-Identifier: BSD-2-Clause
// Memory is one end of a transfer: a range of GPU memory or host memory that this process can use
// while the object lives, regardless of who allocated it.
//
// Threads: immutable; transfers to and from it may run on several threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "gpu/device.hpp"

namespace sluice {

class Memory {
 public:
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::uint64_t length() const { return length_; }
  // Null for host memory.
  Device* device() const { return device_; }
  // The address on the device; meaningless for host memory.
  CUdeviceptr address() const { return address_; }
  // The address in host memory; null for GPU memory.
  std::byte* host() const { return host_; }
  bool is_writable() const { return writable_; }

 protected:
  Memory(Device* device, CUdeviceptr address, std::byte* host, std::uint64_t length, bool writable)
      : device_(device), address_(address), host_(host), length_(length), writable_(writable) {}

 private:
  Device* const device_;
  const CUdeviceptr address_;
  std::byte* const host_;
  const std::uint64_t length_;
  const bool writable_;
};

// Imports memory that another process allocated with cudaMalloc and exported. `offset` and `length`
// select a range of it; ERANGE if there is no such range. EINVAL: invalid handle.
Result<std::unique_ptr<Memory>> import_ipc(Device& device, const IpcHandle& handle,
                                           std::uint64_t offset, std::uint64_t length);
// Imports memory of the virtual memory API that was exported as a descriptor. The whole allocation
// has `allocation` bytes.
enum class MemoryAccess { Read, ReadWrite };
Result<std::unique_ptr<Memory>> import_fd(Device& device, const UniqueFd& fd,
                                          std::uint64_t allocation, std::uint64_t offset,
                                          std::uint64_t length,
                                          MemoryAccess access = MemoryAccess::ReadWrite);
// Maps host memory of a descriptor as shared, writable if the descriptor allows it. EINVAL: the
// file is shorter than the range (a store beyond its end would raise SIGBUS). The file must not
// shrink later, so it must be a memfd sealed with F_SEAL_SHRINK (EPERM).
Result<std::unique_ptr<Memory>> map_host(const UniqueFd& fd, std::uint64_t offset,
                                         std::uint64_t length);
// Memory of this process. REQUIRES: it outlives the object. GPU work that uses it is complete
// before a request, because the engine waits for no stream but its own.
std::unique_ptr<Memory> borrow_device(Device& device, CUdeviceptr address, std::uint64_t length);
std::unique_ptr<Memory> borrow_host(void* address, std::uint64_t length);

}  // namespace sluice
