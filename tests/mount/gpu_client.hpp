// SPDX-License-Identifier: BSD-2-Clause
// A client that calls the ioctls directly, without a library. Threads: caller locks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"
#include "client/include/sluice/ioctl.h"

namespace sluice::test {

// The errno of an ioctl; 0 if it succeeded.
int ioctl_code(int fd, unsigned long command, void* argument);

// Host memory that can be shared: a sealed memfd, mapped here.
class SharedMemory {
 public:
  enum class Sealed { Yes, No };
  explicit SharedMemory(std::size_t size, Sealed sealed = Sealed::Yes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  int fd() const { return fd_.get(); }
  char* data() { return data_; }
  std::string_view text(std::size_t size, std::size_t offset = 0) const {
    return {data_ + offset, size};
  }

 private:
  UniqueFd fd_;
  std::size_t size_;
  char* data_;
};

// The argument for registering a memfd.
sluice_buffer_register registration(const SharedMemory& memory, std::uint64_t length,
                                    std::uint64_t offset = 0);
// Registers the whole memory on the open file. Throws std::system_error.
std::uint64_t register_memory(int file, const SharedMemory& memory, std::uint64_t length);

sluice_transfer transfer(std::uint64_t buffer, std::uint64_t buffer_offset,
                         std::uint64_t file_offset, std::uint64_t length);

}  // namespace sluice::test
