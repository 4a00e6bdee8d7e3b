// SPDX-License-Identifier: BSD-2-Clause
// A FileReader reads pieces of one file for one request: through the page cache where that has the
// bytes, with O_DIRECT where it has not.
//
// Threads: thread-safe.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

// Pieces of large requests begin and end at multiples of this, as far as the request does: it is a
// multiple of whatever O_DIRECT wants on the disks there are.
inline constexpr std::uint64_t kGrain = 64 << 10;

// Filesystems that said no to O_DIRECT: asking for each request anew costs an open. Thread-safe.
class DirectRefusals {
 public:
  bool contains(dev_t filesystem) const;
  void add(dev_t filesystem);

 private:
  mutable Mutex mutex_;
  std::vector<dev_t> filesystems_ GUARDED_BY(mutex_);
};

// pread(2), repeated until it has `length` bytes or the file ends.
Result<std::size_t> read_buffered(int fd, std::uint64_t offset, std::byte* to, std::size_t length);

class FileReader {
 public:
  // `fd` stays the caller's.
  FileReader(int fd, dev_t filesystem, DirectRefusals& refusals);

  // Where in the slot the bytes are, and how many: fewer than asked for only at the end of the
  // file.
  struct Piece {
    std::size_t skip = 0, bytes = 0;
  };
  // REQUIRES: the slot is aligned to pages and holds the range, widened to multiples of kGrain.
  Result<Piece> read_to_slot(std::uint64_t offset, std::size_t length, std::byte* slot);
  // Reads to any address: with O_DIRECT only as far as address and offset allow it.
  Result<std::size_t> read_to(std::uint64_t offset, std::size_t length, std::byte* to);

  int fd() const { return fd_; }
  // The last piece was not in the page cache: the next one will hardly be.
  bool is_cold() const { return cold_now_; }
  // Most of what was read was not in the page cache.
  bool was_cold() const { return 2 * cold_ > cold_ + warm_; }

 private:
  // The descriptor to read the piece with; -1: through the page cache.
  int direct_for(std::uint64_t offset, std::size_t length);
  void open_direct();
  Result<std::size_t> read_direct(int direct, std::uint64_t offset, std::byte* to, std::size_t room,
                                  std::size_t enough);

  const int fd_;
  const dev_t filesystem_;
  DirectRefusals& refusals_;
  std::once_flag opened_;
  UniqueFd direct_;
  std::uint32_t alignment_ = 0;
  std::atomic<bool> refused_{false};              // only ever turns true
  std::atomic<std::uint64_t> cold_{0}, warm_{0};  // counters
  std::atomic<bool> cold_now_{false};             // a hint
};

}  // namespace sluice
