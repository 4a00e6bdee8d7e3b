// SPDX-License-Identifier: BSD-2-Clause
// Stats counts requests by route and by GPU. Threads: thread-safe; counting takes some atomic
// additions and no lock that requests share across GPUs and routes.
#pragma once

#include <array>
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
 public:
  Stats();
  ~Stats();

  // One request, from its construction to finish(). Not finished: it failed.
  class Timer {
   public:
    Timer(Stats& stats, const GpuUuid& gpu);  // zero: host memory
    ~Timer();
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;
    void finish(const Transfer& transfer);

   private:
    Stats& stats_;
    const GpuUuid gpu_;
    const std::chrono::steady_clock::time_point begun_;
    bool finished_ = false;
  };

  using Figures = std::array<RouteFigures, kRoutes>;  // by Route; [Route::Auto]: all together
  // Of one GPU (zero: host memory alone), or of everything.
  Figures of(const GpuUuid& gpu) const;
  Figures all() const;
  std::vector<GpuUuid> gpus() const;  // that requests were counted for
  void reset();

 private:
  struct PerGpu;
  PerGpu& per_gpu(const GpuUuid& gpu);

  mutable Mutex mutex_;
  std::vector<std::unique_ptr<PerGpu>> gpus_ GUARDED_BY(mutex_);
};

}  // namespace sluice
