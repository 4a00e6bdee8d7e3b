// SPDX-License-Identifier: BSD-2-Clause
// CachedReads reads many small pieces on one thread. Pieces in the page cache are returned at once.
// For the others the reads are started, all of them, before the first is waited for. So the disk
// has many requests at a time, and no other thread has to be woken.
//
// Ownership: borrows the descriptor. Threads: caller locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/result.hpp"

namespace sluice {

class CachedReads {
 public:
  explicit CachedReads(int fd) : fd_(fd) {}

  // Returns the number of bytes, less than `length` only at the end of the file. Empty if some are
  // not in the page cache; their read has been started, and read_buffered() waits for it.
  Result<std::optional<std::size_t>> read(std::uint64_t offset, std::byte* to, std::size_t length);

 private:
  const int fd_;
  bool can_tell_ = true;  // the filesystem supports RWF_NOWAIT
};

}  // namespace sluice
