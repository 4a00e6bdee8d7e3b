// SPDX-License-Identifier: BSD-2-Clause
// A FileReader reads pieces of one file for one request: through the page cache if it has the
// bytes, otherwise with O_DIRECT. If the page cache has room for the file, bytes of a slow disk go
// through it, so that the next reader finds them there. That would slow a fast disk down: its bytes
// go through the page cache only if another request reads the same bytes, so that they are not read
// many times at once.
//
// Threads: thread-safe.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "gpu/file_version.hpp"

namespace sluice {

// Pieces of large requests begin and end at multiples of this, as far as the request does. It is a
// multiple of the alignment that O_DIRECT needs on all known disks.
inline constexpr std::uint64_t kGrain = 64 << 10;

// What FileReaders tell each other. Thread-safe.
class ReaderNotes {
 public:
  // Whether it refused O_DIRECT. Trying again for each request would cost an open.
  bool refuses_direct(dev_t filesystem);
  void refused_direct(dev_t filesystem);

  // Whether its disk is so fast that filling the page cache makes reads slower.
  bool is_fast(dev_t filesystem);
  // Reports that bytes were read into the page cache: the time of the thread on the CPU, and
  // altogether.
  void filled(dev_t filesystem, std::uint64_t bytes, std::chrono::nanoseconds busy,
              std::chrono::nanoseconds took);

  // Claims a range of the file for reading with O_DIRECT. Nothing: another one has some of it.
  struct Range {
    FileId file;
    std::uint64_t begin = 0, end = 0;
  };
  using Claim = std::list<Range>::const_iterator;
  std::optional<Claim> begin_direct(const Range& range);
  void end_direct(Claim claim);

 private:
  struct Traits {
    dev_t filesystem = 0;
    bool refuses_direct = false, is_fast = false;  // these never become false again
    std::uint64_t bytes = 0;                       // filled, since it was last judged
    std::chrono::nanoseconds busy{0}, took{0};
  };
  Traits& of(dev_t filesystem) REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<Traits> all_ GUARDED_BY(mutex_);
  std::list<Range> direct_ GUARDED_BY(mutex_);
};

// pread(2), repeated until it has `length` bytes or the file ends.
Result<std::size_t> read_buffered(int fd, std::uint64_t offset, std::byte* to, std::size_t length);

class FileReader {
 public:
  // The caller owns `fd`. `range`: all of what will be read. `has_room`: asked once if bytes are
  // not in the page cache; true if the file may stay there. Empty: it may not.
  FileReader(int fd, const ReaderNotes::Range& range, ReaderNotes& notes,
             std::function<bool()> has_room = {});
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

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
  // True if the last piece was read with O_DIRECT; the next one probably will be, too.
  bool is_direct() const { return direct_now_; }
  // True if most of the bytes read were not in the page cache. Bytes that came there with others,
  // because the kernel reads more at once, count as well.
  bool was_cold() const { return filled_ || 2 * cold_ > cold_ + warm_; }
  // True if bytes were read with O_DIRECT although the page cache has room for the file: it should
  // be filled when the disk has nothing else to do.
  bool left_room() const { return left_room_; }

 private:
  enum class Way { Cached, Filling, Direct };
  Way way_for(std::uint64_t offset, std::size_t length);
  bool fills();
  void open_direct();
  // Not by Way::Direct.
  Result<std::size_t> read_cached(Way way, std::uint64_t offset, std::byte* to, std::size_t length);
  Result<std::size_t> read_direct(std::uint64_t offset, std::byte* to, std::size_t room,
                                  std::size_t enough);

  const int fd_;
  const ReaderNotes::Range range_;
  ReaderNotes& notes_;
  const std::function<bool()> has_room_;
  std::once_flag opened_, asked_for_room_, claimed_;
  UniqueFd direct_;
  std::uint32_t alignment_ = 0;
  bool room_ = false;                             // set by asked_for_room_
  std::optional<ReaderNotes::Claim> claim_;       // set by claimed_
  std::atomic<bool> refused_{false};              // never becomes false again
  std::atomic<bool> cannot_fill_{false};          // never becomes false again
  std::atomic<bool> filled_{false};               // never becomes false again
  std::atomic<bool> left_room_{false};            // never becomes false again
  std::atomic<std::uint64_t> cold_{0}, warm_{0};  // bytes
  std::atomic<bool> direct_now_{false};           // a hint
};

}  // namespace sluice
