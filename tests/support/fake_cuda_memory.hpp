// SPDX-License-Identifier: BSD-2-Clause
// What the fake libcuda's two sources about memory share: plain memory and virtual memory.
#pragma once

#include "tests/support/fake_cuda.hpp"

namespace sluice {

// Addresses that nothing else in this process has and nobody can touch.
CUdeviceptr reserve(std::size_t size);
void unreserve(CUdeviceptr address, std::size_t size);

// A memfd whose name tells its kind and its GPU; -1: there is no memory.
int make_memfd(const char* kind, int device, std::size_t size);
// The GPU whose memory of this kind `fd` is; -1: it is not.
int device_of_memfd(int fd, const char* kind);

FakeRange range_of(std::shared_ptr<FakeAllocation> allocation, FakeRange::Kind kind);
void remove_range(std::map<CUdeviceptr, FakeRange>::iterator found) REQUIRES(fake().mutex);

}  // namespace sluice
