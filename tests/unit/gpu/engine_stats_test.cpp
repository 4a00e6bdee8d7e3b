// SPDX-License-Identifier: BSD-2-Clause
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cmath>
#include <semaphore>
#include <thread>

#include "gpu/cutter.hpp"
#include "gpu/engine_parts.hpp"
#include "gpu/file_reader.hpp"
#include "gpu/residency.hpp"
#include "tests/support/fake_clock.hpp"
#include "tests/support/files.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/gpu/engine_fixture.hpp"

namespace sluice {
namespace {

using std::chrono::nanoseconds;
using namespace std::chrono_literals;
using test::pattern;

const RouteFigures& of(const Stats::Figures& figures, Route route) {
  return figures[static_cast<std::size_t>(route)];
}

TEST(StatsTest, CountsByRouteAndByGpu) {
  Stats stats;
  const GpuUuid a{1}, b{2}, host{};
  for (int i = 0; i < 3; ++i) Stats::Timer(stats, a).finish({100, Route::Staged, Why::Small});
  Stats::Timer(stats, b).finish({1000, Route::Mapped, Why::Registered});
  Stats::Timer(stats, host).finish({5, Route::Host, Why::HostMemory});
  {
    Stats::Timer failing(stats, b);
    failing.take(Route::Staged);
  }
  { const Stats::Timer failing(stats, b); }

  EXPECT_EQ(of(stats.of(a), Route::Staged).operations, 3u);
  EXPECT_EQ(of(stats.of(a), Route::Staged).bytes, 300u);
  EXPECT_EQ(of(stats.of(a), Route::Auto).bytes, 300u);
  EXPECT_EQ(of(stats.of(b), Route::Staged).operations, 0u);
  EXPECT_EQ(of(stats.of(b), Route::Staged).failures, 1u);
  EXPECT_EQ(of(stats.of(b), Route::Auto).failures, 2u);
  EXPECT_EQ(of(stats.of(host), Route::Auto).operations, 1u);
  EXPECT_EQ(of(stats.all(), Route::Auto).operations, 5u);
  EXPECT_EQ(of(stats.all(), Route::Auto).bytes, 1305u);
  EXPECT_EQ(of(stats.all(), Route::Staged).failures, 1u);
  EXPECT_EQ(stats.gpus().size(), 3u);
  EXPECT_EQ(of(stats.of(GpuUuid{9}), Route::Auto).operations, 0u);

  stats.reset();
  EXPECT_EQ(of(stats.all(), Route::Auto).operations, 0u);
  EXPECT_EQ(of(stats.all(), Route::Auto).p99.count(), 0);
}

TEST(StatsTest, PercentilesAreWithinFivePercent) {
  for (const nanoseconds took : {nanoseconds(700), nanoseconds(1'234'567), nanoseconds(20s)}) {
    test::FakeClock clock;
    Stats stats(clock);
    {
      Stats::Timer timer(stats, {});
      clock.advance(took);
      timer.finish({1 << 20, Route::Host, Why::HostMemory});
    }
    const auto figures = of(stats.all(), Route::Host);
    const auto expected = static_cast<double>(took.count());
    for (const auto p : {figures.p50, figures.p99}) {
      EXPECT_NEAR(static_cast<double>(p.count()), expected, expected * 0.05);
    }
    EXPECT_EQ(figures.latency_sum, took);
    EXPECT_NEAR(figures.peak, (1 << 20) * 1e9 / expected, 1);
  }
}

TEST(StatsTest, BusyTimeCountsOverlappingRequestsOnce) {
  constexpr nanoseconds kStep{64 * 1000};  // busy time has units of 64 ns
  test::FakeClock clock;
  Stats stats(clock);
  {
    Stats::Timer one(stats, GpuUuid{1}), two(stats, GpuUuid{2});
    one.take(Route::Staged);
    clock.advance(kStep);
    two.take(Route::Staged);
    clock.advance(kStep);
    EXPECT_EQ(of(stats.all(), Route::Staged).busy, 2 * kStep) << "also while they run";
    one.finish({1, Route::Staged, Why::Small});
    clock.advance(kStep);
    two.finish({1, Route::Staged, Why::Small});
  }
  clock.advance(kStep);
  for (const Route route : {Route::Staged, Route::Auto}) {
    EXPECT_EQ(of(stats.all(), route).busy, 3 * kStep);
  }
  EXPECT_EQ(of(stats.of(GpuUuid{1}), Route::Staged).busy, 2 * kStep);
  EXPECT_EQ(of(stats.of(GpuUuid{2}), Route::Staged).busy, 2 * kStep);
}

TEST(StatsTest, ConcurrentCountsAreComplete) {
  Stats stats;
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 5000; ++n) {
        Stats::Timer(stats, GpuUuid{static_cast<std::uint8_t>(n % 3)})
            .finish({2, i % 2 ? Route::Staged : Route::Mapped, Why::Small});
      }
    });
  }
  threads.clear();
  EXPECT_EQ(of(stats.all(), Route::Auto).operations, 20'000u);
  EXPECT_EQ(of(stats.all(), Route::Mapped).bytes, 20'000u);
  EXPECT_EQ(stats.gpus().size(), 3u);
  const auto busy = of(stats.all(), Route::Auto).busy;
  EXPECT_EQ(of(stats.all(), Route::Auto).busy, busy) << "nothing is in progress";
}

const std::function<bool()> kNeverCancelled;

TEST(CutterTest, PiecesCoverEverythingOnceAndFitTheirSlots) {
  const std::vector<Segment> segments = {{0, 5, 10 * kMiB},
                                         {11 * kMiB, 1, 3},
                                         {12 * kMiB, 0, 0},
                                         {13 * kMiB, 999'999, 64 << 10},
                                         {20 * kMiB, 3, 2 * kMiB}};
  Cutter cutter(segments, kMiB, 4, kNeverCancelled);
  std::vector<std::uint64_t> covered(segments.size());
  Cutter::Piece piece;
  std::uint64_t last = 0;
  while (cutter.take(piece)) {
    for (const auto& part : piece.all()) {
      const Segment& whole = segments[part.segment];
      EXPECT_EQ(part.range.file_offset, whole.file_offset + covered[part.segment]);
      EXPECT_EQ(part.range.memory_offset, whole.memory_offset + covered[part.segment]);
      covered[part.segment] += part.range.length;
      const std::uint64_t begin = part.range.file_offset / kGrain * kGrain;
      EXPECT_LE(part.range.file_offset + part.range.length - begin, kMiB);
      last = part.range.length;
    }
  }
  for (std::size_t i = 0; i < segments.size(); ++i) EXPECT_EQ(covered[i], segments[i].length);
  EXPECT_LE(last, 256u << 10) << "the last pieces are small";
  EXPECT_EQ(cutter.done().bytes, 12 * kMiB + (64 << 10) + 3);
}

TEST(CutterTest, PieceIsNoLargerThanRequested) {
  const std::vector<Segment> segments = {{0, 0, 64 * kMiB}};
  Cutter cutter(segments, 4 * kMiB, 1, kNeverCancelled);
  Cutter::Piece piece;
  ASSERT_TRUE(cutter.take(piece, kMiB));
  EXPECT_EQ(piece.parts[0].range.length, kMiB);
  ASSERT_TRUE(cutter.take(piece, 8 * kMiB));
  EXPECT_EQ(piece.parts[0].range.length, 4 * kMiB) << "never more than fits into a slot";
}

TEST(CutterTest, BytesCountUpToAnEarlyEndOfFile) {
  const std::vector<Segment> segments = {{0, 100, 4 * kMiB}, {4 * kMiB, 0, 10}};
  Cutter cutter(segments, kMiB, 1, kNeverCancelled);
  Cutter::Piece piece;
  std::vector<Cutter::Piece> pieces;
  while (cutter.take(piece)) pieces.push_back(piece);
  ASSERT_GE(pieces.size(), 4u);
  cutter.ends(pieces[3].parts[0], 0);  // two workers may see the end
  cutter.ends(pieces[1].parts[0], 7);
  EXPECT_EQ(cutter.done().bytes, pieces[0].parts[0].range.length + 7 + 10);
}

TEST(CutterTest, CancelledRequestEndsAfterThePiecesThatWereTaken) {
  const std::vector<Segment> segments = {{0, 0, 8 * kMiB}};
  bool cancelled = true;  // from the start: it reads something nevertheless
  const std::function<bool()> is_cancelled = [&] { return cancelled; };
  Cutter cutter(segments, kMiB, 1, is_cancelled);
  Cutter::Piece piece;
  ASSERT_TRUE(cutter.take(piece));
  EXPECT_FALSE(cutter.take(piece));
  cancelled = false;
  EXPECT_FALSE(cutter.take(piece)) << "once cancelled, it stays so";
  EXPECT_EQ(cutter.done().bytes, kMiB);
  EXPECT_EQ(cutter.done().left, 0u);
}

TEST(CutterTest, SegmentThatWasBegunWhenTheRequestWasCancelledCountsAsNotRead) {
  const std::vector<Segment> segments = {
      {0, 0, 2 * kMiB}, {2 * kMiB, 0, 2 * kMiB}, {4 * kMiB, 0, kMiB}};
  unsigned asked = 0;
  const std::function<bool()> is_cancelled = [&] { return ++asked > 1; };
  Cutter cutter(segments, kMiB, 1, is_cancelled);
  Cutter::Piece piece;
  std::uint64_t taken = 0;
  while (cutter.take(piece)) taken += piece.parts[0].range.length;
  EXPECT_GT(taken, 2 * kMiB);
  EXPECT_EQ(cutter.done().bytes, 2 * kMiB);
  EXPECT_EQ(cutter.done().left, 2u);
}

TEST(CutterTest, RequestThatWasCancelledAfterItsEndIsComplete) {
  const std::vector<Segment> segments = {{0, 0, kMiB}};
  bool cancelled = false;
  const std::function<bool()> is_cancelled = [&] { return cancelled; };
  Cutter cutter(segments, kMiB, 1, is_cancelled);
  Cutter::Piece piece;
  while (cutter.take(piece)) continue;
  cancelled = true;
  EXPECT_FALSE(cutter.take(piece));
  EXPECT_EQ(cutter.done().bytes, kMiB);
}

// A job whose pieces wait until they are let go, one by one.
class WaitingJob : public WorkerPool::Job {
 public:
  Result<bool> work(unsigned, WorkerPool::Turn& turn) override {
    for (;;) {
      ++begun;
      if (!may_end.try_acquire_for(std::chrono::seconds(20))) return Error(ETIMEDOUT, "wait");
      if (ends) return false;
      if (turn.is_over()) return true;
    }
  }
  std::atomic<unsigned> begun{0};
  std::atomic<bool> ends{false};
  std::counting_semaphore<> may_end{0};
};

class QuickJob : public WorkerPool::Job {
 public:
  Result<bool> work(unsigned, WorkerPool::Turn& turn) override {
    while (left-- > 0) {
      if (turn.is_over()) return true;
    }
    return false;
  }
  std::atomic<int> left{1000};
};

constexpr uid_t kUser = 1000, kOther = 1001;

TEST(WorkerPoolTest, ManyJobsOfOneUserDoNotHoldUpAnother) {
  WorkerPool pool(2);
  std::array<WaitingJob, 8> slow;
  std::vector<std::jthread> waiting;
  const auto begun = [&] {
    unsigned sum = 0;
    for (const auto& each : slow) sum += each.begun;
    return sum;
  };
  for (auto& each : slow) waiting.emplace_back([&] { EXPECT_TRUE(pool.run(each, kUser)); });
  ASSERT_TRUE(test::eventually([&] { return begun() == 2; }));
  QuickJob quick;
  std::atomic<bool> done{false};
  std::jthread running([&] {
    EXPECT_TRUE(pool.run(quick, kOther));
    done = true;
  });
  ASSERT_TRUE(test::eventually([&] { return pool.jobs() == slow.size() + 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than a turn
  for (auto& each : slow) {
    if (each.begun > 0) {
      each.may_end.release();  // one worker is free
      break;
    }
  }
  EXPECT_TRUE(test::eventually([&] { return done.load(); }));
  for (auto& each : slow) each.ends = true;
  for (auto& each : slow) each.may_end.release(100);
}

TEST(WorkerPoolTest, JobThatWaitsForASlowDiskDoesNotHoldUpAnother) {
  WorkerPool pool(2);
  WaitingJob slow;
  std::jthread waiting([&] { EXPECT_TRUE(pool.run(slow, kUser)); });
  ASSERT_TRUE(test::eventually([&] { return slow.begun == 2; }));
  QuickJob quick;
  std::atomic<bool> done{false};
  std::jthread running([&] {
    EXPECT_TRUE(pool.run(quick, kUser));
    done = true;
  });
  ASSERT_TRUE(test::eventually([&] { return pool.jobs() == 2; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than a turn
  slow.may_end.release();  // one worker is free, and takes only pieces of the other job
  EXPECT_TRUE(test::eventually([&] { return done.load(); }));
  slow.ends = true;
  slow.may_end.release(100);
}

class EngineStatsTest : public EngineTest {};

TEST_F(EngineStatsTest, RequestsAreCountedByRoute) {
  const std::string content = pattern(2 * kMiB, 1);
  const UniqueFd fd = make_file("f", content);
  Target memory(&gpu(), content.size()), host(nullptr, content.size());
  ASSERT_TRUE(engine->read({fd.get()}, *memory, one({0, 0, 2 * kMiB})));
  ASSERT_TRUE(engine->read({fd.get()}, *memory, one({0, 0, 100})));
  ASSERT_TRUE(engine->read({fd.get()}, *memory, one({0, 0, 100}), Route::Pageable));
  ASSERT_TRUE(engine->read({fd.get()}, *host, one({0, 0, 100})));
  ASSERT_FALSE(engine->read({-1}, *host, one({0, 0, 100})));
  const auto figures = engine->stats().of(gpu().uuid());
  EXPECT_EQ(of(figures, Route::Staged).operations, 2u);
  EXPECT_EQ(of(figures, Route::Staged).bytes, 2 * kMiB + 100);
  EXPECT_GT(of(figures, Route::Staged).peak, 0);
  EXPECT_EQ(of(figures, Route::Pageable).operations, 1u);
  EXPECT_EQ(of(engine->stats().of({}), Route::Host).operations, 1u);
  EXPECT_EQ(of(engine->stats().all(), Route::Auto).operations, 4u);
  EXPECT_EQ(of(engine->stats().all(), Route::Auto).failures, 1u);
}

TEST_F(EngineStatsTest, PreviewPredictsTheRoute) {
  const std::string content = pattern(2 * kMiB, 1);
  const UniqueFd fd = make_file("f", content);
  const auto large = engine->preview({fd.get()}, content.size(), &gpu());
  EXPECT_EQ(large.route, Route::Staged);
  EXPECT_EQ(large.words.rfind("staged: ", 0), 0u) << large.words;
  EXPECT_GE(large.alignment, 1u);
  EXPECT_EQ(engine->preview({fd.get()}, 100, &gpu()).why, Why::Small);
  EXPECT_EQ(engine->preview({fd.get()}, 100, nullptr).route, Route::Host);
  if (drop_cache(fd)) {
    EXPECT_EQ(engine->preview({fd.get()}, content.size(), &gpu()).why, Why::NotCached);
  }
  EXPECT_EQ(engine->pinned_bytes(), 0u) << "a preview pins nothing";
}

TEST_F(EngineStatsTest, PossibilitiesNameEveryRouteOnce) {
  const UniqueFd fd = make_file("f", pattern(1000, 1));
  for (Device* device : {&gpu(), static_cast<Device*>(nullptr)}) {
    std::array<int, kRoutes> seen{};
    for (const auto& possibility : engine->possibilities({fd.get()}, device)) {
      ++seen[static_cast<std::size_t>(possibility.route)];
      EXPECT_FALSE(possibility.words.empty()) << name_of(possibility.route);
      if (possibility.route == Route::Staged) {
        EXPECT_EQ(possibility.possible, device != nullptr);
      }
      if (possibility.route == Route::Host) {
        EXPECT_TRUE(possibility.possible);
      }
    }
    for (std::size_t i = 1; i < kRoutes; ++i) EXPECT_EQ(seen[i], 1) << i;
  }
}

TEST_F(EngineStatsTest, ResidencyMatchesThePageCache) {
  const UniqueFd fd = make_file("f", pattern(2 * kMiB, 1));
  const auto all = cached_share(fd.get(), 0, 2 * kMiB);
  if (!all) GTEST_SKIP() << "this kernel has no cachestat(2)";
  EXPECT_EQ(*all, 1.0);
  if (!drop_cache(fd)) GTEST_SKIP() << "the page cache can't be dropped here";
  char byte = 0;
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM);
  ASSERT_EQ(::pread(fd.get(), &byte, 1, kMiB), 1);
  EXPECT_GT(*cached_share(fd.get(), kMiB, 1), 0.99);
  EXPECT_LT(*cached_share(fd.get(), 0, 2 * kMiB), 0.5);
  EXPECT_EQ(direct_alignment(-1), 4096u);
}

TEST(RouteTest, NamesRoundTrip) {
  for (std::uint32_t i = 0; i < kRoutes; ++i) {
    EXPECT_EQ(route_by_name(name_of(Route{i})), Route{i});
  }
  EXPECT_EQ(name_of(Route{99}), "?");
  EXPECT_EQ(route_by_name("warp"), std::nullopt);
  EXPECT_EQ(text_of(Why::ReadOnce), "registering pays off from the second read on");
  EXPECT_EQ(text_of(Why::NotPinned), "no host memory could be pinned");
  EXPECT_EQ(text_of(Why{99}), "?");
}

}  // namespace
}  // namespace sluice
