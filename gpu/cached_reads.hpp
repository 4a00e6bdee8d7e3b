// SPDX-License-Identifier: BSD-2-Clause
// CachedReads are reads of many small pieces on one thread, which come from the page cache first.
// What it lacks is begun, all of it, and then waited for: so the disk has many requests at once,
// and no other thread is woken.
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

  // How many bytes there are, fewer than `length` only at the end of the file. Nothing if the page
  // cache lacks some: their reading has begun, and read_buffered() waits for it.
  Result<std::optional<std::size_t>> read(std::uint64_t offset, std::byte* to, std::size_t length);

 private:
  const int fd_;
  bool can_tell_ = true;  // what is in the page cache
};

}  // namespace sluice
