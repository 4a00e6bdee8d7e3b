// SPDX-License-Identifier: BSD-2-Clause
// Requests on files of Sluice mounts, carried out by libsluice. Thread-safe.
#pragma once

#include "client/compat/cufile/handles.hpp"
#include "client/compat/cufile/memory.hpp"

namespace sluice::dropin {

// Of a file's bytes, [file_offset, +size), and of memory, [base + base_offset, +size).
struct Range {
  const void* base = nullptr;
  std::size_t size = 0;
  off_t file_offset = 0;
  off_t base_offset = 0;
};

// What CUfileIOVec_t is in cufile.h.
struct IoVector {
  void* base;
  std::size_t length;
};

// Bytes, or a failure (errors.hpp).
ssize_t transfer(MemoryTable& memory, const Handle& handle, CUfileOpcode_t operation,
                 const Range& range);
ssize_t transfer(MemoryTable& memory, const Handle& handle, CUfileOpcode_t operation,
                 const IoVector* vectors, std::size_t count, off_t file_offset);

// Whether there can be such a range. 0, or a failure.
ssize_t check(const Range& range);

// In the order of a stream: what the pointers point to is looked at when the stream gets there.
struct StreamArguments {
  void* base = nullptr;
  const std::size_t* size = nullptr;
  const off_t* file_offset = nullptr;
  const off_t* base_offset = nullptr;
  ssize_t* done = nullptr;
};
// But now, where `flags` say so (CU_FILE_STREAM_FIXED_*).
inline constexpr unsigned kFixedBaseOffset = 1;
inline constexpr unsigned kFixedFileOffset = 2;
inline constexpr unsigned kFixedSize = 4;
CUfileError_t put_into_stream(MemoryTable& memory, std::shared_ptr<Handle> handle,
                              CUfileOpcode_t operation, const StreamArguments& arguments,
                              CUstream stream, unsigned flags);

}  // namespace sluice::dropin
