// SPDX-License-Identifier: BSD-2-Clause
// A RequestTurn says how much of a long request may be done before it is the turn of others.
//
// A request holds up everybody whose requests wait for the same thread. So it is done in slices,
// each as long as should take a part of kTurn, and ends early when its turn is over and others
// wait. All that wait have kTurn together, so that the wait does not grow with their number.
// Threads: caller locks; it lives on the stack of the thread that has the request.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>

namespace sluice {

class RequestTurn {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  static constexpr std::chrono::milliseconds kTurn{20};
  static constexpr std::uint64_t kFirstSlice = 8 << 20, kLeastSlice = 64 << 10, kGrowth = 4;
  static constexpr unsigned kFew = 4;  // requests that may wait for a whole first slice each

  // `others`: how many requests wait now, this one not counted; asked after each slice.
  explicit RequestTurn(
      std::function<unsigned()> others, Clock now = [] { return std::chrono::steady_clock::now(); })
      : others_(std::move(others)), now_(std::move(now)), begun_(now_()), waiting_(others_()) {
    slice_ = std::max(kFirstSlice / (waiting_ / kFew + 1), kLeastSlice);
  }

  // Bytes that may be done next.
  std::uint64_t slice() const { return slice_; }

  // So many bytes were done. True if the rest has to wait for another turn.
  bool is_over(std::uint64_t bytes) {
    done_ += bytes;
    waiting_ = others_();
    const auto turn = kTurn / (waiting_ + 1);
    const auto taken =
        std::max<std::chrono::nanoseconds>(now_() - begun_, std::chrono::microseconds(1));
    const double rate = static_cast<double>(done_) / static_cast<double>(taken.count());
    const double next = rate * static_cast<double>(std::chrono::nanoseconds(turn).count());
    // What follows may be slower: it may not be in the page cache.
    const double most = static_cast<double>(kGrowth * slice_);
    slice_ = std::max(static_cast<std::uint64_t>(std::min(next, most)) / kLeastSlice * kLeastSlice,
                      kLeastSlice);
    return waiting_ > 0 && taken >= turn;
  }

 private:
  const std::function<unsigned()> others_;
  const Clock now_;
  const std::chrono::steady_clock::time_point begun_;
  unsigned waiting_;
  std::uint64_t slice_ = 0, done_ = 0;
};

}  // namespace sluice
