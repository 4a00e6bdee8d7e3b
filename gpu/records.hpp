// SPDX-License-Identifier: BSD-2-Clause
// Records of one size that follow each other in a file, and the record numbers of a request. Plain
// values.
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
  std::uint64_t count = 0;   // number of complete records in the file

  std::uint64_t offset_of(std::uint64_t record) const { return offset + record * size; }
};

// An array of record numbers, in host memory or on the GPU that the records are transferred to or
// from. It must not change while a request uses it.
struct RecordIndex {
  const std::uint64_t* host = nullptr;
  CUdeviceptr device = 0;  // if `host` is null
  std::size_t count = 0;
};

// A record number that is out of range.
struct BadIndex {
  std::size_t position = 0;  // in the index
  std::uint64_t value = 0;
  std::uint64_t records = 0;  // number of records in the file
};

}  // namespace sluice
