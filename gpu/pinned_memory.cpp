// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/pinned_memory.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <string>

#include "base/log.hpp"
#include "base/small_file.hpp"

namespace sluice {
namespace {

constexpr std::size_t kHugePage = 2 << 20;
constexpr int kMadvisePopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14
constexpr int kPreferNode = 1;             // MPOL_PREFERRED

bool has_several_nodes() {
  return text_of_file("/sys/devices/system/node/online").find_first_of(",-") != std::string::npos;
}

// Preferred, not bound: memory of another node is slow, but better than none.
void prefer_node(std::span<std::byte> bytes, int node) {
  constexpr int kNodes = 1024, kBits = 8 * sizeof(unsigned long);
  if (node < 0 || node >= kNodes || !has_several_nodes()) return;
  std::array<unsigned long, kNodes / kBits> mask{};
  mask[static_cast<std::size_t>(node / kBits)] = 1UL << (node % kBits);
  if (::syscall(SYS_mbind, bytes.data(), bytes.size(), kPreferNode, mask.data(), kNodes + 1, 0)) {
    log::get().warn("staging memory is not on the GPU's NUMA node: node={} errno={}", node, errno);
  }
}

}  // namespace

Result<std::unique_ptr<PinnedMemory>> PinnedMemory::create(Device& device, std::size_t bytes) {
  const std::size_t mapped = bytes + kHugePage;
  void* at = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return Error::last("allocate staging memory");
  auto* const first = static_cast<std::byte*>(at);
  const std::size_t skip = -reinterpret_cast<std::uintptr_t>(first) % kHugePage;
  std::unique_ptr<PinnedMemory> memory(
      new PinnedMemory(device, {first, mapped}, {first + skip, bytes}));
  ::madvise(first + skip, bytes, MADV_HUGEPAGE);
  prefer_node(memory->bytes_, device.numa_node());
  // If the kernel can't populate the pages, pinning does it more slowly.
  ::madvise(first + skip, bytes, kMadvisePopulateWrite);

  SLUICE_TRY(device.enter());
  const CUresult code = device.api().cuMemHostRegister(first + skip, bytes, kHostRegisterPortable);
  if (code != CUDA_SUCCESS) return device.failed(code, "pin staging memory");
  memory->registered_ = true;
  return memory;
}

PinnedMemory::~PinnedMemory() {
  if (registered_ && device_.enter()) device_.api().cuMemHostUnregister(bytes_.data());
  ::munmap(mapping_.data(), mapping_.size());
}

}  // namespace sluice
