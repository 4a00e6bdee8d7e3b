// SPDX-License-Identifier: BSD-2-Clause
// Shared by the fake libcuda's sources for ordinary and virtual memory.
#pragma once

#include "tests/support/fake_cuda.hpp"

namespace sluice {

// Reserves addresses that nothing else in this process uses or can access.
CUdeviceptr reserve(std::size_t size);
void unreserve(CUdeviceptr address, std::size_t size);

// Creates a memfd whose name contains its kind and its GPU; returns -1 if there is no memory.
int make_memfd(const char* kind, int device, std::size_t size);
// The GPU of a memfd of this kind; -1 if `fd` is not one.
int device_of_memfd(int fd, const char* kind);

// What is left of the GPU's memory.
std::size_t free_memory(int device) REQUIRES(fake().mutex);

FakeRange range_of(std::shared_ptr<FakeAllocation> allocation, FakeRange::Kind kind);
void remove_range(std::map<CUdeviceptr, FakeRange>::iterator found) REQUIRES(fake().mutex);

}  // namespace sluice
