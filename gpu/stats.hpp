// SPDX-License-Identifier: BSD-2-Clause
// Stats counts requests by route and by GPU. Threads: thread-safe; counting a request takes a few
// atomic additions and no lock.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "gpu/device.hpp"
#include "gpu/route.hpp"

namespace sluice {

struct RouteFigures {
  std::uint64_t operations = 0, failures = 0, bytes = 0;
  std::chrono::nanoseconds busy{};         // time with at least one in progress
  std::chrono::nanoseconds latency_sum{};  // of all operations that succeeded
  std::chrono::nanoseconds p50{}, p99{};   // from a histogram, within 5%
  double peak = 0;                         // bytes per second of one request of at least 1 MiB
};

class Stats {
  struct PerGpu;

 public:
  explicit Stats(const Clock& clock = real_clock());
  ~Stats();

  // One request, from construction to finish(). If it is destroyed without finish(), it counts as
  // failed on its last route.
  class Timer {
   public:
    Timer(Stats& stats, const GpuUuid& gpu);  // zero: host memory
    ~Timer();
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;
    // From now on the request counts as busy on this route. A request may change its route.
    void take(Route route);
    void finish(const Transfer& transfer);

   private:
    void leave();

    Stats& stats_;
    PerGpu& gpu_;
    const std::chrono::steady_clock::time_point begun_;
    Route route_ = Route::Auto;
    bool finished_ = false;
  };

  using Figures = std::array<RouteFigures, kRoutes>;  // by Route; [Route::Auto]: all routes
  // The figures of one GPU (zero: only host memory), or of everything.
  Figures of(const GpuUuid& gpu) const;
  Figures all() const;
  std::vector<GpuUuid> gpus() const;  // GPUs with counted requests
  void reset();

 private:
  PerGpu& per_gpu(const GpuUuid& gpu);
  // The sum over `parts`, with the busy times of `busy`.
  Figures figures(const std::vector<const PerGpu*>& parts, const PerGpu& busy) const;

  const Clock& clock_;
  Mutex mutex_;  // held to add to the list
  // A list that only grows, so reading it needs no lock.
  std::atomic<PerGpu*> gpus_{nullptr};
  const std::unique_ptr<PerGpu> all_;  // only busy times, which can't be added up
};

}  // namespace sluice
