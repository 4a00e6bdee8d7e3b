// SPDX-License-Identifier: BSD-2-Clause
// Memory is one end of a transfer: a range of a GPU's memory or of the host's that this process can
// use for as long as the object lives, whoever allocated it.
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
  // Null: host memory.
  Device* device() const { return device_; }
  // On the device; of no meaning for host memory.
  CUdeviceptr address() const { return address_; }
  // Host memory; null for a device's.
  std::byte* host() const { return host_; }
  bool is_writable() const { return writable_; }  // host memory may be mapped for reading only

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

// Memory that another process allocated with cudaMalloc and exported. `offset` and `length` choose
// a range of it; ERANGE if it has no such range. EINVAL for a handle that is none.
Result<std::unique_ptr<Memory>> import_ipc(Device& device, const IpcHandle& handle,
                                           std::uint64_t offset, std::uint64_t length);
// Memory of the virtual memory API, of `allocation` bytes in all, exported as a descriptor.
Result<std::unique_ptr<Memory>> import_fd(Device& device, const UniqueFd& fd,
                                          std::uint64_t allocation, std::uint64_t offset,
                                          std::uint64_t length);
// Host memory behind a descriptor, mapped shared: for writing too if the descriptor allows it.
// EINVAL if the file is shorter (a store beyond its end would be SIGBUS); the file must not shrink
// afterwards, so it must be a memfd sealed with F_SEAL_SHRINK, else EPERM.
Result<std::unique_ptr<Memory>> map_host(const UniqueFd& fd, std::uint64_t offset,
                                         std::uint64_t length);
// Memory of this process's own. REQUIRES: it outlives the object.
std::unique_ptr<Memory> borrow_device(Device& device, CUdeviceptr address, std::uint64_t length);
std::unique_ptr<Memory> borrow_host(void* address, std::uint64_t length);

}  // namespace sluice
