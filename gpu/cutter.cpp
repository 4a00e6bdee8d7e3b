// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/cutter.hpp"

#include <algorithm>
#include <numeric>

#include "base/check.hpp"
#include "gpu/file_reader.hpp"
#include "gpu/packer.hpp"

namespace sluice {
namespace {

// Smaller pieces cost more than sharing the work saves: 12 threads reached 50 GB/s with pieces of
// 4 MiB, 33 with 512 KiB, 14 with 256 KiB.
constexpr std::uint64_t kLeast = 512 << 10;

// The room that a Packer needs in addition to the bytes.
constexpr std::uint64_t kTable =
    std::tuple_size_v<decltype(Cutter::Piece::parts)> * Packer::kOverhead;

}  // namespace

Cutter::Cutter(std::span<const Segment> segments, std::uint64_t chunk, unsigned workers,
               const std::function<bool()>& is_cancelled)
    : segments_(segments), chunk_(chunk), workers_(workers), is_cancelled_(is_cancelled) {
  SLUICE_CHECK(chunk % kGrain == 0, "a request is cut at multiples of kGrain");
  for (const Segment& segment : segments) {
    lengths_.push_back(segment.length);
    left_ += segment.length;
  }
}

// Nothing is left, or the request was cancelled.
bool Cutter::is_over() {
  while (next_ < segments_.size() && position_ == segments_[next_].length) {
    ++next_;
    position_ = 0;
  }
  if (next_ == segments_.size() || cancelled_) return true;
  const bool has_some = segments_.size() > 1 ? next_ > 0 : position_ > 0;
  cancelled_ = has_some && is_cancelled_ && is_cancelled_();
  return cancelled_;
}

bool Cutter::take(Piece& piece, std::uint64_t most, bool has_other_work) {
  const MutexLock lock(mutex_);
  piece.count = 0;
  if (is_over()) return false;
  const std::uint64_t fair = has_other_work ? chunk_ : left_ / (2 * workers_) / kGrain * kGrain;
  const std::uint64_t chunk = std::min(chunk_, most);
  const std::uint64_t target = std::clamp(fair, std::min(kLeast, chunk), chunk);
  // Several small segments take longer per byte, so their pieces are smaller.
  const std::uint64_t small = std::clamp(fair, kSmall, chunk) - std::min(kTable, kSmall / 2);
  std::uint64_t taken = 0;
  while (next_ < segments_.size() && piece.count < piece.parts.size()) {
    const Segment& segment = segments_[next_];
    const std::uint64_t rest = segment.length - position_;
    if (rest == 0) {
      ++next_;
      position_ = 0;
      continue;
    }
    const bool large = rest > kSmall;
    if (piece.count > 0 && (large || taken + rest > small)) break;
    const std::uint64_t from = segment.file_offset + position_;
    const std::uint64_t length =
        large ? std::min(rest, from / kGrain * kGrain + target - from) : rest;
    piece.parts[piece.count++] = {next_, {segment.memory_offset + position_, from, length}};
    position_ += length;
    taken += length;
    left_ -= length;
    if (large) break;
  }
  return piece.count > 0;
}

void Cutter::ends(const Part& part, std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  const std::uint64_t before = part.range.file_offset - segments_[part.segment].file_offset;
  lengths_[part.segment] = std::min(lengths_[part.segment], before + bytes);
}

Cutter::Done Cutter::done() const {
  const MutexLock lock(mutex_);
  if (!cancelled_) return {std::accumulate(lengths_.begin(), lengths_.end(), std::uint64_t{0})};
  if (segments_.size() == 1) return {std::min(lengths_[0], position_)};
  const auto end = lengths_.begin() + static_cast<std::ptrdiff_t>(next_);
  return {std::accumulate(lengths_.begin(), end, std::uint64_t{0}), segments_.size() - next_};
}

}  // namespace sluice
