// SPDX-License-Identifier: BSD-2-Clause
// A Cutter divides the segments of a request into pieces that workers take one after another, and
// counts how many bytes of each segment the file had.
//
// Pieces get smaller towards the end, so that all workers finish at about the same time, unless
// they have other work then. A piece is a part of one large segment, or several small segments.
// Threads: thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/mutex.hpp"
#include "gpu/engine.hpp"

namespace sluice {

// Requests up to this size are too small for a second thread or a piece of their own.
inline constexpr std::uint64_t kSmall = 64 << 10;

class Cutter {
 public:
  struct Part {
    std::size_t segment;  // its index
    Segment range;
  };
  struct Piece {
    std::array<Part, 256> parts;
    std::size_t count = 0;
    std::span<const Part> all() const { return {parts.data(), count}; }
    // True for a part of a large segment, which may be read with O_DIRECT. Otherwise the parts are
    // small and fit into a Packer of one slot.
    bool is_large() const { return count == 1 && parts[0].range.length > kSmall; }
  };

  // A piece of a large segment, widened to multiples of kGrain, is at most `chunk` long.
  // REQUIRES: `chunk` is a multiple of kGrain. `segments` outlives the object.
  Cutter(std::span<const Segment> segments, std::uint64_t chunk, unsigned workers);

  // Takes a piece of at most `most` bytes, a multiple of kGrain. False: nothing is left.
  bool take(Piece& piece, std::uint64_t most, bool has_other_work = false);
  bool take(Piece& piece) { return take(piece, chunk_); }
  // Reports that the file ends after the first `bytes` bytes of `part`.
  void ends(const Part& part, std::uint64_t bytes);
  // The number of bytes up to the first place where the file ended. REQUIRES: all pieces are done.
  std::uint64_t bytes() const;

 private:
  const std::span<const Segment> segments_;
  const std::uint64_t chunk_;
  const unsigned workers_;
  mutable Mutex mutex_;
  std::size_t next_ GUARDED_BY(mutex_) = 0;        // segment
  std::uint64_t position_ GUARDED_BY(mutex_) = 0;  // in it
  std::uint64_t left_ GUARDED_BY(mutex_) = 0;
  std::vector<std::uint64_t> lengths_ GUARDED_BY(mutex_);
};

}  // namespace sluice
