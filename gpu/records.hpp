// SPDX-License-Identifier: BSD-2-Clause
// Records of one size in a file, one after the other, and the numbers of those that a request is
// about. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "gpu/cuda_api.hpp"

namespace sluice {

struct RecordFile {
  std::uint64_t size = 0;    // of a record, in bytes
  std::uint64_t offset = 0;  // of record 0 in the file
  std::uint64_t count = 0;   // of whole records that the file has

  std::uint64_t offset_of(std::uint64_t record) const { return offset + record * size; }
};

// An array of record numbers, in the host's memory or in that of the GPU that the records go to or
// come from. It must not change while a request uses it.
struct RecordIndex {
  const std::uint64_t* host = nullptr;
  CUdeviceptr device = 0;  // if `host` is null
  std::size_t count = 0;
};

// A number that is none of a record.
struct BadIndex {
  std::size_t position = 0;  // in the index
  std::uint64_t value = 0;
  std::uint64_t records = 0;  // that there are
};

}  // namespace sluice
