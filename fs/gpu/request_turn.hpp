// SPDX-License-Identifier: BSD-2-Clause
// A RequestTurn decides how much of a long request may be executed before it is the turn of others.
//
// A request delays all requests that wait for the same thread. So it is executed in slices, each
// expected to take a part of kTurn, and ends early when its turn is over and others wait. All
// waiting requests share one kTurn, so the delay does not grow with their number. Threads: caller
// locks; it lives on the stack of the thread that executes the request.
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
  static constexpr unsigned kFew =
      4;  // up to this many waiting requests, each gets a whole first slice

  // `others` returns how many other requests wait now; it is called after each slice.
  explicit RequestTurn(
      std::function<unsigned()> others, Clock now = [] { return std::chrono::steady_clock::now(); })
      : others_(std::move(others)), now_(std::move(now)), begun_(now_()), waiting_(others_()) {
    slice_ = std::max(kFirstSlice / (waiting_ / kFew + 1), kLeastSlice);
  }

  // The number of bytes to transfer next.
  std::uint64_t slice() const { return slice_; }

  // Reports that `bytes` bytes were transferred. True if the rest must wait for another turn.
  bool is_over(std::uint64_t bytes) {
    done_ += bytes;
    waiting_ = others_();
    const auto turn = kTurn / (waiting_ + 1);
    const auto taken =
        std::max<std::chrono::nanoseconds>(now_() - begun_, std::chrono::microseconds(1));
    const double rate = static_cast<double>(done_) / static_cast<double>(taken.count());
    const double next = rate * static_cast<double>(std::chrono::nanoseconds(turn).count());
    // The next bytes may be slower, because they may not be in the page cache.
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
