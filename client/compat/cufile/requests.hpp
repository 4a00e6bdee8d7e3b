// SPDX-License-Identifier: BSD-2-Clause
// Executes requests on files of Sluice mounts through libsluice. Thread-safe.
#pragma once

#include "client/compat/cufile/handles.hpp"
#include "client/compat/cufile/memory.hpp"

namespace sluice::dropin {

// The range [file_offset, +size) of a file, and the memory [base + base_offset, +size).
struct Range {
  const void* base = nullptr;
  std::size_t size = 0;
  off_t file_offset = 0;
  off_t base_offset = 0;
};

// CUfileIOVec_t of cufile.h.
struct IoVector {
  void* base;
  std::size_t length;
};

// Returns the number of bytes, or a failure (errors.hpp).
ssize_t transfer(MemoryTable& memory, const Handle& handle, CUfileOpcode_t operation,
                 const Range& range);
ssize_t transfer(MemoryTable& memory, const Handle& handle, CUfileOpcode_t operation,
                 const IoVector* vectors, std::size_t count, off_t file_offset);

// Checks the limits of the range. Returns 0 or a failure.
ssize_t check(const Range& range);

// A request in the order of a stream. The pointers are read when the stream reaches the request.
struct StreamArguments {
  void* base = nullptr;
  const std::size_t* size = nullptr;
  const off_t* file_offset = nullptr;
  const off_t* base_offset = nullptr;
  ssize_t* done = nullptr;
};
// Flags (CU_FILE_STREAM_FIXED_*): these values are read at once.
inline constexpr unsigned kFixedBaseOffset = 1;
inline constexpr unsigned kFixedFileOffset = 2;
inline constexpr unsigned kFixedSize = 4;
CUfileError_t put_into_stream(MemoryTable& memory, std::shared_ptr<Handle> handle,
                              CUfileOpcode_t operation, const StreamArguments& arguments,
                              CUstream stream, unsigned flags);

}  // namespace sluice::dropin
