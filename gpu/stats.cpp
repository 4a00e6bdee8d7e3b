// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/stats.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

namespace sluice {
namespace {

using std::chrono::nanoseconds;
using TimePoint = std::chrono::steady_clock::time_point;

constexpr auto kRelaxed = std::memory_order_relaxed;

// The time during which at least one request was in progress. Their number and the start time are
// in one word, so that no lock is needed. The time is in units of 64 ns and wraps after 200 days,
// which affects only requests that take longer.
class BusyTime {
 public:
  void enter(TimePoint now) {
    std::uint64_t old = state_.load(kRelaxed);
    while (!state_.compare_exchange_weak(
        old, old >> kTimeBits == 0 ? kOne | ticks(now) : old + kOne, kRelaxed)) {
    }
  }

  void leave(TimePoint now) {
    const std::uint64_t old = state_.fetch_sub(kOne, kRelaxed);
    if (old >> kTimeBits == 1) sum_.fetch_add((ticks(now) - old) & kTimeMask, kRelaxed);
  }

  nanoseconds total(TimePoint now) const {
    std::uint64_t sum = sum_.load(kRelaxed);
    const std::uint64_t state = state_.load(kRelaxed);
    if (state >> kTimeBits != 0) sum += (ticks(now) - state) & kTimeMask;
    return nanoseconds(sum << kUnit);
  }

  void reset(TimePoint now) {
    sum_.store(0, kRelaxed);
    std::uint64_t old = state_.load(kRelaxed);
    while (!state_.compare_exchange_weak(old, (old & ~kTimeMask) | ticks(now), kRelaxed)) {
    }
  }

 private:
  static constexpr int kTimeBits = 48, kUnit = 6;
  static constexpr std::uint64_t kOne = 1ULL << kTimeBits, kTimeMask = kOne - 1;
  static std::uint64_t ticks(TimePoint time) {
    const auto since = std::chrono::duration_cast<nanoseconds>(time.time_since_epoch());
    return (static_cast<std::uint64_t>(since.count()) >> kUnit) & kTimeMask;
  }

  std::atomic<std::uint64_t> state_{0};  // requests << kTimeBits | since
  std::atomic<std::uint64_t> sum_{0};
};

// Sixteen buckets for each power of two: the middle of a bucket is at most 3.2% away from every
// value in it.
constexpr std::size_t kBuckets = 45 * 16;  // to 2^48 ns, three days

std::size_t bucket_of(std::uint64_t value) {
  if (value < 16) return value;
  const int exponent = std::bit_width(value) - 1;
  const std::size_t index =
      static_cast<std::size_t>(exponent - 3) * 16 + ((value >> (exponent - 4)) & 15);
  return std::min(index, kBuckets - 1);
}

nanoseconds middle_of(std::size_t bucket) {
  if (bucket < 16) return nanoseconds(bucket);
  const int shift = static_cast<int>(bucket / 16) - 1;
  const std::uint64_t low = (16 + bucket % 16) << shift;
  return nanoseconds(low + (1ULL << shift) / 2);
}

using Histogram = std::array<std::uint64_t, kBuckets>;

nanoseconds percentile(const Histogram& histogram, std::uint64_t count, double share) {
  const auto rank = static_cast<std::uint64_t>(share * static_cast<double>(count - 1));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    seen += histogram[i];
    if (seen > rank) return middle_of(i);
  }
  return {};
}

struct Cell {
  std::atomic<std::uint64_t> operations{0}, failures{0}, bytes{0}, latency{0}, peak{0};
  std::array<std::atomic<std::uint64_t>, kBuckets> histogram{};

  void count(std::uint64_t done, nanoseconds took) {
    const auto ns = static_cast<std::uint64_t>(std::max<std::int64_t>(took.count(), 1));
    operations.fetch_add(1, kRelaxed);
    bytes.fetch_add(done, kRelaxed);
    latency.fetch_add(ns, kRelaxed);
    histogram[bucket_of(ns)].fetch_add(1, kRelaxed);
    if (done < 1 << 20) return;
    const auto rate =
        static_cast<std::uint64_t>(1e9 * static_cast<double>(done) / static_cast<double>(ns));
    std::uint64_t old = peak.load(kRelaxed);
    while (old < rate && !peak.compare_exchange_weak(old, rate, kRelaxed)) {
    }
  }

  void add_to(RouteFigures& figures, Histogram& sum) const {
    figures.operations += operations.load(kRelaxed);
    figures.failures += failures.load(kRelaxed);
    figures.bytes += bytes.load(kRelaxed);
    figures.latency_sum += nanoseconds(latency.load(kRelaxed));
    figures.peak = std::max(figures.peak, static_cast<double>(peak.load(kRelaxed)));
    for (std::size_t i = 0; i < kBuckets; ++i) sum[i] += histogram[i].load(kRelaxed);
  }

  void reset() {
    for (auto* counter : {&operations, &failures, &bytes, &latency, &peak}) {
      counter->store(0, kRelaxed);
    }
    for (auto& bucket : histogram) bucket.store(0, kRelaxed);
  }
};

std::size_t index_of(Route route) { return static_cast<std::size_t>(route); }

}  // namespace

struct Stats::PerGpu {
  GpuUuid uuid{};
  PerGpu* next = nullptr;
  std::array<Cell, kRoutes> cells;  // [Auto]: requests that failed before they took a route
  std::array<BusyTime, kRoutes> busy;
};

namespace {

// The sum over `cells`. An operation may be in its bucket slightly before or after it is counted,
// so percentiles use the totals of the buckets.
RouteFigures sum_of(const std::vector<const Cell*>& cells) {
  RouteFigures figures;
  Histogram histogram{};
  for (const Cell* cell : cells) cell->add_to(figures, histogram);
  const auto count = std::accumulate(histogram.begin(), histogram.end(), std::uint64_t{0});
  if (count == 0) return figures;
  figures.p50 = percentile(histogram, count, 0.50);
  figures.p99 = percentile(histogram, count, 0.99);
  return figures;
}

}  // namespace

Stats::Figures Stats::figures(const std::vector<const PerGpu*>& parts, const PerGpu& busy) const {
  const auto now = clock_.monotonic();
  Figures figures;
  std::vector<const Cell*> all, one;
  for (std::size_t route = kRoutes; route-- > 0;) {
    one.clear();
    for (const PerGpu* part : parts) one.push_back(&part->cells[route]);
    all.insert(all.end(), one.begin(), one.end());
    figures[route] = sum_of(route == index_of(Route::Auto) ? all : one);
    figures[route].busy = busy.busy[route].total(now);
  }
  return figures;
}

Stats::Stats(const Clock& clock) : clock_(clock), all_(std::make_unique<PerGpu>()) {}

Stats::~Stats() {
  for (PerGpu* gpu = gpus_; gpu;) delete std::exchange(gpu, gpu->next);
}

Stats::PerGpu& Stats::per_gpu(const GpuUuid& uuid) {
  const auto find = [&]() -> PerGpu* {
    PerGpu* gpu = gpus_.load(std::memory_order_acquire);
    while (gpu && gpu->uuid != uuid) gpu = gpu->next;
    return gpu;
  };
  if (PerGpu* known = find()) return *known;
  const MutexLock lock(mutex_);
  if (PerGpu* known = find()) return *known;
  auto fresh = std::make_unique<PerGpu>();
  fresh->uuid = uuid;
  fresh->next = gpus_.load(kRelaxed);
  gpus_.store(fresh.get(), std::memory_order_release);
  return *fresh.release();
}

Stats::Timer::Timer(Stats& stats, const GpuUuid& gpu)
    : stats_(stats), gpu_(stats.per_gpu(gpu)), begun_(stats.clock_.monotonic()) {
  for (PerGpu* part : {&gpu_, stats_.all_.get()}) part->busy[0].enter(begun_);
}

Stats::Timer::~Timer() {
  if (finished_) return;
  gpu_.cells[index_of(route_)].failures.fetch_add(1, kRelaxed);
  leave();
}

void Stats::Timer::take(Route route) {
  if (route == route_) return;
  const auto now = stats_.clock_.monotonic();
  for (PerGpu* part : {&gpu_, stats_.all_.get()}) {
    if (route_ != Route::Auto) part->busy[index_of(route_)].leave(now);
    if (route != Route::Auto) part->busy[index_of(route)].enter(now);
  }
  route_ = route;
}

void Stats::Timer::finish(const Transfer& transfer) {
  take(transfer.route);
  finished_ = true;
  leave();
  gpu_.cells[index_of(route_)].count(transfer.bytes, stats_.clock_.monotonic() - begun_);
}

void Stats::Timer::leave() {
  const auto now = stats_.clock_.monotonic();
  for (PerGpu* part : {&gpu_, stats_.all_.get()}) {
    part->busy[0].leave(now);
    if (route_ != Route::Auto) part->busy[index_of(route_)].leave(now);
  }
}

Stats::Figures Stats::of(const GpuUuid& uuid) const {
  for (const PerGpu* gpu = gpus_; gpu; gpu = gpu->next) {
    if (gpu->uuid == uuid) return figures({gpu}, *gpu);
  }
  return {};
}

Stats::Figures Stats::all() const {
  std::vector<const PerGpu*> parts;
  for (const PerGpu* gpu = gpus_; gpu; gpu = gpu->next) parts.push_back(gpu);
  return figures(parts, *all_);
}

std::vector<GpuUuid> Stats::gpus() const {
  std::vector<GpuUuid> uuids;
  for (const PerGpu* gpu = gpus_; gpu; gpu = gpu->next) uuids.push_back(gpu->uuid);
  return uuids;
}

void Stats::reset() {
  const auto now = clock_.monotonic();
  for (PerGpu* gpu = gpus_; gpu; gpu = gpu->next) {
    for (Cell& cell : gpu->cells) cell.reset();
    for (BusyTime& busy : gpu->busy) busy.reset(now);
  }
  for (BusyTime& busy : all_->busy) busy.reset(now);
}

}  // namespace sluice
