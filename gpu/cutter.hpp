// SPDX-License-Identifier: BSD-2-Clause
// A Cutter divides the segments of a request into pieces that workers take one after another, and
// counts how many bytes of each segment the file had.
//
// Pieces get smaller towards the end, so that all workers finish at about the same time, unless
// they have other work then. A piece is a part of one large segment, or several small segments.
// A request that is cancelled ends after the pieces that were taken, but not before something was
// read: a part of its only segment, or a whole one of several.
// Threads: thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
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
  // `is_cancelled` is asked before each piece; empty: it never is.
  // CHECKED: `chunk` is a multiple of kGrain. REQUIRES: `segments` and `is_cancelled` outlive the
  // object.
  Cutter(std::span<const Segment> segments, std::uint64_t chunk, unsigned workers,
         const std::function<bool()>& is_cancelled);

  // Takes a piece of at most `most` bytes, a multiple of kGrain. False: nothing is left.
  bool take(Piece& piece, std::uint64_t most, bool has_other_work = false);
  bool take(Piece& piece) { return take(piece, chunk_); }
  // Reports that the file ends after the first `bytes` bytes of `part`.
  void ends(const Part& part, std::uint64_t bytes);
  // What was read. REQUIRES: all pieces are done.
  struct Done {
    std::uint64_t bytes = 0;  // of each segment, up to the first place where the file ended
    std::size_t left = 0;     // segments at the end that were not read, because of cancelling
  };
  // If one of several segments was begun when the request was cancelled, it counts as not read.
  Done done() const;

 private:
  bool is_over() REQUIRES(mutex_);

  const std::span<const Segment> segments_;
  const std::uint64_t chunk_;
  const unsigned workers_;
  const std::function<bool()>& is_cancelled_;
  mutable Mutex mutex_;
  std::size_t next_ GUARDED_BY(mutex_) = 0;        // segment
  std::uint64_t position_ GUARDED_BY(mutex_) = 0;  // in it
  std::uint64_t left_ GUARDED_BY(mutex_) = 0;
  std::vector<std::uint64_t> lengths_ GUARDED_BY(mutex_);
  bool cancelled_ GUARDED_BY(mutex_) = false;  // with something left
};

}  // namespace sluice
