// SPDX-License-Identifier: BSD-2-Clause
// RequestTimes counts how long the daemon took to answer requests, by their kind.
//
// A RequestTimer measures one request: from when its thread took it until the timer is destroyed.
// A request that another thread answers takes its timer along.
//
// Threads: RequestTimes is thread-safe. A RequestTimer belongs to one thread at a time.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

namespace sluice {

class RequestTimes {
 public:
  static constexpr std::size_t kKinds = 64;  // opcodes of FUSE
  // Upper bounds of the classes. There is one more class, for requests that took longer.
  static constexpr std::array kBounds{
      std::chrono::microseconds(10),        std::chrono::microseconds(30),
      std::chrono::microseconds(100),       std::chrono::microseconds(300),
      std::chrono::microseconds(1000),      std::chrono::microseconds(3000),
      std::chrono::microseconds(10'000),    std::chrono::microseconds(30'000),
      std::chrono::microseconds(100'000),   std::chrono::microseconds(300'000),
      std::chrono::microseconds(1'000'000), std::chrono::microseconds(10'000'000)};

  struct Times {
    std::array<std::uint64_t, kBounds.size() + 1> counts{};  // by class
    std::chrono::nanoseconds sum{};
  };

  void add(std::size_t kind, std::chrono::nanoseconds took);
  Times of(std::size_t kind) const;

 private:
  struct Kind {
    std::array<std::atomic<std::uint64_t>, kBounds.size() + 1> counts{};
    std::atomic<std::uint64_t> nanoseconds{0};
  };
  std::array<Kind, kKinds> kinds_;  // statistics
};

class RequestTimer {
 public:
  RequestTimer(RequestTimes& times, std::size_t kind)
      : times_(&times), kind_(kind), begun_(std::chrono::steady_clock::now()) {
    current = this;
  }
  ~RequestTimer() {
    if (current == this) current = nullptr;
    if (times_ != nullptr) times_->add(kind_, std::chrono::steady_clock::now() - begun_);
  }
  RequestTimer(const RequestTimer&) = delete;
  RequestTimer& operator=(const RequestTimer&) = delete;

  // Takes over the timer of the calling thread's request. nullptr if it has none.
  static std::shared_ptr<RequestTimer> take_current() {
    if (current == nullptr) return nullptr;
    RequestTimer& from = *std::exchange(current, nullptr);
    const auto timer = std::shared_ptr<RequestTimer>(new RequestTimer(from));
    from.times_ = nullptr;
    return timer;
  }

 private:
  explicit RequestTimer(RequestTimer& from)
      : times_(from.times_), kind_(from.kind_), begun_(from.begun_) {}

  static inline thread_local RequestTimer* current = nullptr;
  RequestTimes* times_;  // null: another thread has taken it over
  const std::size_t kind_;
  const std::chrono::steady_clock::time_point begun_;
};

}  // namespace sluice
