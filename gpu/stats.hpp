// SPDX-License-Identifier: BSD-2-Clause
// Stats counts requests by route and by GPU. Threads: thread-safe; counting a request takes some
// atomic additions and no lock.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "gpu/device.hpp"
#include "gpu/route.hpp"

namespace sluice {

struct RouteFigures {
  std::uint64_t operations = 0, failures = 0, bytes = 0;
  std::chrono::nanoseconds busy{};         // at least one was under way
  std::chrono::nanoseconds latency_sum{};  // of all operations that succeeded
  std::chrono::nanoseconds p50{}, p99{};   // from a histogram, within 5%
  double peak = 0;                         // bytes a second, of one request of a MiB or more
};

class Stats {
  struct PerGpu;

 public:
  Stats();
  ~Stats();

  // One request, from its construction to finish(). Not finished: it failed, on the route that it
  // had taken last.
  class Timer {
   public:
    Timer(Stats& stats, const GpuUuid& gpu);  // zero: host memory
    ~Timer();
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;
    // From now on it is this route that is busy. A request may change its route.
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

  using Figures = std::array<RouteFigures, kRoutes>;  // by Route; [Route::Auto]: all together
  // Of one GPU (zero: host memory alone), or of everything.
  Figures of(const GpuUuid& gpu) const;
  Figures all() const;
  std::vector<GpuUuid> gpus() const;  // that requests were counted for
  void reset();

 private:
  PerGpu& per_gpu(const GpuUuid& gpu);
  // Of the requests of all `parts`; busy times from where they were counted together.
  static Figures figures(const std::vector<const PerGpu*>& parts, const PerGpu& busy);

  Mutex mutex_;  // to add to the list
  // A list that only grows, so that whoever walks it needs no lock.
  std::atomic<PerGpu*> gpus_{nullptr};
  const std::unique_ptr<PerGpu> all_;  // busy times and nothing else: those can't be added up
};

}  // namespace sluice
