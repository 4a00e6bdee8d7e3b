// SPDX-License-Identifier: BSD-2-Clause
// A FileReader reads pieces of one file for one request: through the page cache if it has the
// bytes, otherwise with O_DIRECT. If there is room, bytes from the disk also go through the page
// cache, so that the next reader finds them there.
//
// Threads: thread-safe.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

// Pieces of large requests begin and end at multiples of this, as far as the request does. It is a
// multiple of the alignment that O_DIRECT needs on all known disks.
inline constexpr std::uint64_t kGrain = 64 << 10;

// Filesystems that refused O_DIRECT. Trying again for each request would cost an open. Thread-safe.
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
  // The caller owns `fd`. `has_room`: asked once if bytes are not in the page cache; true if the
  // file may stay there. Empty: it may not.
  FileReader(int fd, dev_t filesystem, DirectRefusals& refusals,
             std::function<bool()> has_room = {});

  // Where in the slot the bytes are, and their number: less than requested only at the end of the
  // file.
  struct Piece {
    std::size_t skip = 0, bytes = 0;
  };
  // REQUIRES: the slot is aligned to pages and has room for the range, widened to multiples of
  // kGrain.
  Result<Piece> read_to_slot(std::uint64_t offset, std::size_t length, std::byte* slot);
  // Reads to any address, with O_DIRECT only as far as the alignment of address and offset allows.
  Result<std::size_t> read_to(std::uint64_t offset, std::size_t length, std::byte* to);

  int fd() const { return fd_; }
  // True if the last piece was not in the page cache; the next one is probably not there either.
  bool is_cold() const { return cold_now_; }
  // True if most of the bytes read were not in the page cache.
  bool was_cold() const { return 2 * cold_ > cold_ + warm_; }

 private:
  // How to read a piece.
  struct Way {
    int fd;
    bool direct = false;
    bool fills = false;  // from the disk into the page cache
  };
  Way way_for(std::uint64_t offset, std::size_t length);
  void open_direct();
  void open_filling();
  Result<std::size_t> read_cached(const Way& way, std::uint64_t offset, std::byte* to,
                                  std::size_t length);
  Result<std::size_t> read_direct(int direct, std::uint64_t offset, std::byte* to, std::size_t room,
                                  std::size_t enough);
  bool keeps_up(std::chrono::nanoseconds busy, std::chrono::nanoseconds took, std::size_t bytes);

  const int fd_;
  const dev_t filesystem_;
  DirectRefusals& refusals_;
  const std::function<bool()> has_room_;
  std::once_flag opened_, opened_filling_;
  UniqueFd direct_, filling_;
  std::uint32_t alignment_ = 0;
  std::atomic<bool> refused_{false};              // never becomes false again
  std::atomic<bool> fills_{false};                // may become false at any time
  std::atomic<std::uint64_t> cold_{0}, warm_{0};  // bytes
  std::atomic<bool> cold_now_{false};             // a hint
  // Sums of all threads, for a decision that need not be exact.
  std::atomic<std::uint64_t> filled_{0};               // bytes
  std::atomic<std::int64_t> busy_ns_{0}, took_ns_{0};  // time on the CPU, and altogether
};

}  // namespace sluice
