// SPDX-License-Identifier: BSD-2-Clause
// PinnedMemory is host memory that GPUs access directly. It is allocated once, because pinning is
// slow, on the NUMA node of the GPU. Every GPU can use it.
//
// Threads: immutable.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/result.hpp"
#include "gpu/device.hpp"

namespace sluice {

class PinnedMemory {
 public:
  // ENOMEM, or an error of the GPU's driver. REQUIRES: `device` outlives the object.
  static Result<std::unique_ptr<PinnedMemory>> create(Device& device, std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Aligned to 2 MiB.
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  PinnedMemory(Device& device, std::span<std::byte> mapping, std::span<std::byte> bytes)
      : device_(device), mapping_(mapping), bytes_(bytes) {}

  Device& device_;
  const std::span<std::byte> mapping_, bytes_;
  bool registered_ = false;
};

}  // namespace sluice
