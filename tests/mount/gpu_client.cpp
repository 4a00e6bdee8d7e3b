// SPDX-License-Identifier: BSD-2-Clause
#include "tests/mount/gpu_client.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace sluice::test {

int ioctl_code(int fd, unsigned long command, void* argument) {
  return ::ioctl(fd, command, argument) < 0 ? errno : 0;
}

SharedMemory::SharedMemory(std::size_t size, Sealed sealed)
    : fd_(::memfd_create("buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING)), size_(size) {
  if (::ftruncate(fd_.get(), static_cast<off_t>(size)) < 0)
    throw std::system_error(errno, std::generic_category(), "memfd");
  if (sealed == Sealed::Yes) ::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK);
  data_ =
      static_cast<char*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
  if (data_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
}

SharedMemory::~SharedMemory() { ::munmap(data_, size_); }

sluice_buffer_register registration(const SharedMemory& memory, std::uint64_t length,
                                    std::uint64_t offset) {
  sluice_buffer_register request{};
  request.kind = SLUICE_BUFFER_MEMFD;
  request.fd = memory.fd();
  request.offset = offset;
  request.length = length;
  return request;
}

std::uint64_t register_memory(int file, const SharedMemory& memory, std::uint64_t length) {
  auto request = registration(memory, length);
  if (const int code = ioctl_code(file, SLUICE_IOC_BUFFER_REGISTER, &request); code != 0)
    throw std::system_error(code, std::generic_category(), "register a buffer");
  return request.buffer;
}

sluice_transfer transfer(std::uint64_t buffer, std::uint64_t buffer_offset,
                         std::uint64_t file_offset, std::uint64_t length) {
  sluice_transfer request{};
  request.buffer = buffer;
  request.buffer_offset = buffer_offset;
  request.file_offset = file_offset;
  request.length = length;
  return request;
}

}  // namespace sluice::test
