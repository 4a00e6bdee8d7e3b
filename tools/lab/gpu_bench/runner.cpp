// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/gpu_bench/runner.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <sstream>
#include <thread>

#include "base/small_file.hpp"
#include "base/units.hpp"
#include "gpu/residency.hpp"
#include "tools/common/progress.hpp"

namespace sluice::tools::lab::gpu_bench {
namespace {

using std::chrono::duration;
using std::chrono::steady_clock;

// CPU time of this process and of the daemon.
double cpu_seconds(pid_t daemon) {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  double total = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  const std::string text = text_of_file("/proc/" + std::to_string(daemon) + "/stat");
  // "pid (name, which may have anything in it) S ppid ..."; utime is the 12th after the name.
  const auto end = text.rfind(')');
  if (daemon == 0 || end == std::string::npos) return total;
  std::istringstream fields(text.substr(end + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return total + (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// Binds the calling thread to its core. Otherwise, if its core is still busy with the reply, the
// kernel wakes the thread on an idle core, and its next request goes to another thread of the
// daemon, with cold caches.
class OnOneCore {
 public:
  OnOneCore() {
    ::sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(static_cast<unsigned>(std::max(0, ::sched_getcpu())), &here);
    ::sched_setaffinity(0, sizeof here, &here);
  }
  ~OnOneCore() { ::sched_setaffinity(0, sizeof before_, &before_); }
  OnOneCore(const OnOneCore&) = delete;
  OnOneCore& operator=(const OnOneCore&) = delete;

 private:
  cpu_set_t before_;
};

class Runner {
 public:
  Runner(Bench bench, unsigned rounds, bool quick, std::vector<Route> routes)
      : bench_(std::move(bench)), rounds_(rounds), quick_(quick), routes_(std::move(routes)) {}

  std::vector<Row> run(const std::vector<std::string>& phases) {
    const auto is_wanted = [&](std::string_view phase) {
      return std::find(phases.begin(), phases.end(), phase) != phases.end();
    };
    // Cold reads come first, because pages that the mapped route has registered can't be dropped.
    if (is_wanted("cold")) cold();
    if (is_wanted("loads")) loads();
    if (is_wanted("warm")) warm();
    if (is_wanted("sizes")) small();
    if (is_wanted("beside")) beside();
    return std::move(rows_);
  }

 private:
  static constexpr unsigned kLoads = 6;
  struct Contender {
    WayPtr way;
    std::size_t row;
  };

  Row& new_row(const std::string& phase, const std::string& way, std::uint64_t bytes,
               unsigned threads = 1) {
    Row row;
    row.phase = phase, row.way = way, row.bytes = bytes, row.threads = threads;
    rows_.push_back(std::move(row));
    return rows_.back();
  }
  void skip(const std::string& phase, const std::string& way, const Error& error) {
    const bool is_missing = way == "cuFile" && !bench_.cufile;
    new_row(phase, way, bench_.file.size).skipped =
        is_missing ? bench_.why_no_cufile : error.text();
  }

  // Adds a row for the way, unless it is not possible here.
  void enter(std::vector<Contender>& contenders, const std::string& phase, const std::string& name,
             Result<WayPtr> way) {
    if (!way) return skip(phase, name, way.error());
    new_row(phase, (*way)->name(), bench_.file.size);
    contenders.push_back({std::move(*way), rows_.size() - 1});
  }
  void enter_ours(std::vector<Contender>& contenders, const std::string& phase,
                  const std::vector<Route>& routes) {
    for (const Route route : routes) {
      const std::string name(name_of(route));
      enter(contenders, phase, "daemon " + name, daemon_way(bench_, route));
      enter(contenders, phase, "in-process " + name, engine_way(bench_, route));
    }
  }

  // Measures all of them in each round, starting with a different one each time: the speed of a
  // disk depends on the requests before.
  template <typename Measure>
  void in_turns(std::vector<Contender>& contenders, Measure measure) {
    for (unsigned round = 0; round < rounds_; ++round) {
      for (std::size_t i = 0; i < contenders.size(); ++i) {
        auto& [way, row] = contenders[(round + i) % contenders.size()];
        if (rows_[row].skipped.empty()) measure(*way, rows_[row]);
      }
    }
  }

  // Reads the whole file once, measures and checks it. False if it failed; the row then has the
  // reason.
  bool sample(Way& way, Row& row, bool counts) {
    progress_.clear();
    if (progress_.is_terminal()) progress_.show(row.phase + ", " + way.name());
    const std::uint64_t size = bench_.file.size;
    const auto failed = [&](const Error& error) {
      row.skipped = error.text();
      return false;
    };
    if (way.is_checked()) {
      const auto cleared = bench_.target->clear(0, size);
      if (!cleared) return failed(cleared.error());
    }
    const double cpu = cpu_seconds(bench_.file.daemon);
    const auto begin = steady_clock::now();
    const auto read = way.read(0, size, 0);
    const double seconds = duration<double>(steady_clock::now() - begin).count();
    if (!read) return failed(read.error());
    const double cpu_used = cpu_seconds(bench_.file.daemon) - cpu;
    row.route = way.route();
    if (counts) {
      row.seconds.push_back(seconds);
      row.cpu_per_gb.push_back(cpu_used / (static_cast<double>(size) / 1e9));
    } else {
      row.first_seconds = seconds;
    }
    if (way.is_checked()) {
      const auto wrong = bench_.target->wrong_words(0, size, 0);
      if (!wrong) return failed(wrong.error());
      row.wrong_words += *wrong;
    }
    return true;
  }

  void cold() {
    std::vector<Contender> contenders;
    for (const std::uint64_t piece : {4 * kMiB, 1 * kMiB}) {
      enter(contenders, "cold", "disk, O_DIRECT", disk_way(bench_, piece));
    }
    enter(contenders, "cold", "mmap", mmap_way(bench_));
    enter(contenders, "cold", "cuFile", cufile_way(bench_, bench_.threads, 16 * kMiB, O_DIRECT));
    enter_ours(contenders, "cold", {Route::Auto});
    in_turns(contenders, [&](Way& way, Row& row) {
      row.cached = std::max(row.cached, drop_from_cache(bench_.file));
      sample(way, row, true);
      way.rest();
    });
    for (auto& [way, row] : contenders) {
      if (way->is_checked() && rows_[row].skipped.empty()) cold_latency(*way);
    }
  }

  void cold_latency(Way& way) {
    Row& row = new_row("cold latency", way.name(), 4 * kKiB);
    row.cached = drop_from_cache(bench_.file);
    read_small(way, row, 1, quick_ ? 50 : 200, duration<double>(5));
    way.rest();
  }

  // Loads of the file one after another, as programs do that start again: from the page cache, and
  // the first one from the disk, which has time to fill the page cache then. Between loads, Sluice
  // changes its route.
  void loads() {
    for (const bool from_disk : {false, true}) {
      auto way = daemon_way(bench_, Route::Auto);
      const std::string name = from_disk ? "daemon auto, cold at first" : "daemon auto, cached";
      if (!way) return skip("loads", name, way.error());
      // A changed file is not registered any more, and will not be for two seconds.
      const UniqueFd file(::open(bench_.file.path.c_str(), O_RDWR | O_CLOEXEC));
      if (!file || ::futimens(file.get(), nullptr) != 0)
        return skip("loads", name, Error::last("change the times of the test file"));
      std::this_thread::sleep_for(std::chrono::seconds(5));
      Row& row = new_row("loads", name, bench_.file.size);
      const double cached = drop_from_cache(bench_.file);
      if (from_disk) {
        row.cached = cached;
      } else {
        const UniqueFd again(::open(bench_.file.path.c_str(), O_RDONLY | O_CLOEXEC));
        std::vector<char> buffer(4 * kMiB);
        while (::read(again.get(), buffer.data(), buffer.size()) > 0) continue;
      }
      for (unsigned load = 0; load < kLoads; ++load) {
        if (!sample(**way, row, true)) return;
        if (load == 0) wait_until_cached();
      }
    }
  }

  // The daemon reads a file that it has read past the page cache into it when the disk is idle.
  void wait_until_cached() const {
    const UniqueFd file(::open(bench_.file.on_tier.c_str(), O_RDONLY | O_CLOEXEC));
    const auto end = steady_clock::now() + std::chrono::seconds(30);
    while (file && steady_clock::now() < end &&
           cached_share(file.get(), 0, bench_.file.size).value_or(1) < 1)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }

  // Small reads while others read the whole file again and again.
  void beside() {
    constexpr unsigned kReaders = 4;
    // The small reads have the first bytes of the memory to themselves.
    constexpr std::uint64_t kSmallPart = 64 * kMiB;
    if (bench_.file.size <= 2 * kSmallPart) return;
    for (const Route route : {Route::Staged, Route::Auto}) {
      auto small = daemon_way(bench_, Route::Auto);
      if (!small) return skip("beside", "daemon", small.error());
      std::vector<WayPtr> ways;
      for (unsigned i = 0; i < kReaders; ++i) {
        auto way = daemon_way(bench_, route);
        if (!way) return skip("beside", "daemon", way.error());
        ways.push_back(std::move(*way));
      }
      std::atomic<std::uint64_t> bytes{0};  // of the large reads
      std::atomic<bool> failed{false};
      const double cpu = cpu_seconds(bench_.file.daemon);
      const auto begin = steady_clock::now();
      {
        std::vector<std::jthread> readers;
        for (const WayPtr& way : ways) {
          readers.emplace_back([&](const std::stop_token& stop) {
            const std::uint64_t length = bench_.file.size - kSmallPart;
            while (!stop.stop_requested() && !failed) {
              if (!way->read(kSmallPart, length, kSmallPart)) failed = true;
              bytes += length;
            }
          });
        }
        Row& row =
            new_row("beside", (*small)->name() + ", beside 4 x " + ways[0]->name(), 4 * kKiB);
        read_small(**small, row, 1, 100'000, duration<double>(quick_ ? 1 : 3));
      }
      const double seconds = duration<double>(steady_clock::now() - begin).count();
      Row& row = new_row("beside", "4 x " + ways[0]->name(), bench_.file.size);
      if (failed) {
        row.skipped = "a read failed";
        continue;
      }
      const double size = static_cast<double>(bench_.file.size), all = static_cast<double>(bytes);
      row.seconds.push_back(seconds * size / all);
      row.cpu_per_gb.push_back((cpu_seconds(bench_.file.daemon) - cpu) / (all / 1e9));
      row.route = ways[0]->route();
    }
  }

  void warm() {
    std::vector<Contender> contenders;
    for (const std::uint64_t piece : {64 * kMiB, 4 * kMiB}) {
      enter(contenders, "warm", "copy", copy_way(bench_, piece));
    }
    enter(contenders, "warm", "mmap", mmap_way(bench_));
    enter_cufile(contenders);
    enter_ours(contenders, "warm", routes_);
    // The first read of each way fills caches, and registers the file for the mapped route.
    for (auto& [way, row] : contenders) sample(*way, rows_[row], false);
    in_turns(contenders, [&](Way& way, Row& row) { sample(way, row, true); });
  }

  // cuFile with its fastest setting.
  void enter_cufile(std::vector<Contender>& contenders) {
    WayPtr best;
    double best_seconds = 0;
    const std::vector<unsigned> counts =
        quick_ ? std::vector<unsigned>{16} : std::vector<unsigned>{1, 4, 8, 16};
    const std::vector<std::uint64_t> pieces =
        quick_ ? std::vector{4 * kMiB} : std::vector{1 * kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB};
    for (const unsigned threads : counts) {
      for (const std::uint64_t piece : pieces) {
        auto way = cufile_way(bench_, threads, piece);
        if (!way) return skip("warm", "cuFile", way.error());
        Row row{};
        // The first read fills caches.
        if (!sample(**way, row, false) || !sample(**way, row, true)) {
          new_row("warm", (*way)->name(), bench_.file.size).skipped = row.skipped;
          return;
        }
        if (!best || row.seconds[0] < best_seconds) {
          best = std::move(*way);
          best_seconds = row.seconds[0];
        }
      }
    }
    enter(contenders, "warm", "cuFile", std::move(best));
  }

  // Reads at random offsets, by several threads at once, each to its own part of the memory.
  void read_small(Way& way, Row& row, unsigned threads, std::size_t most, duration<double> limit) {
    constexpr std::uint64_t kSlots = 64;
    const std::uint64_t places = bench_.file.size / row.bytes;
    const std::uint64_t slots =
        std::clamp<std::uint64_t>(bench_.target->size() / row.bytes / threads, 1, kSlots);
    struct Mine {
      std::vector<double> latencies;
      std::vector<std::uint64_t> offsets;  // by slot: the offset that was read into it
    };
    std::vector<Mine> mine(threads);
    const double cpu = cpu_seconds(bench_.file.daemon);
    const auto begin = steady_clock::now();
    const auto done = in_parallel(threads, [&](unsigned thread) -> Result<void> {
      std::mt19937_64 random(thread + 1);
      Mine& own = mine[thread];
      own.offsets.reserve(slots);
      own.latencies.reserve(most);
      while (own.latencies.size() < most) {
        const auto before = steady_clock::now();
        if (before - begin > limit && own.latencies.size() >= 3) return {};
        const std::uint64_t from = random() % places * row.bytes;
        const std::uint64_t slot = own.latencies.size() % slots;
        SLUICE_TRY(way.read(from, row.bytes, (thread * slots + slot) * row.bytes));
        own.latencies.push_back(duration<double>(steady_clock::now() - before).count());
        if (slot == own.offsets.size()) own.offsets.push_back(from);
        own.offsets[slot] = from;
      }
      return {};
    });
    const double seconds = duration<double>(steady_clock::now() - begin).count();
    if (!done) {
      row.skipped = done.error().text();
      return;
    }
    std::size_t count = 0;
    for (unsigned thread = 0; thread < threads; ++thread) {
      const Mine& own = mine[thread];
      count += own.latencies.size();
      row.latencies.insert(row.latencies.end(), own.latencies.begin(), own.latencies.end());
      for (std::size_t slot = 0; way.is_checked() && slot < own.offsets.size(); ++slot) {
        const auto wrong = bench_.target->wrong_words((thread * slots + slot) * row.bytes,
                                                      row.bytes, own.offsets[slot]);
        row.wrong_words += wrong ? *wrong : row.bytes / 8;
      }
    }
    row.route = way.route();
    row.seconds.push_back(seconds / static_cast<double>(count));
    row.cpu_per_gb.push_back((cpu_seconds(bench_.file.daemon) - cpu) /
                             (static_cast<double>(count * row.bytes) / 1e9));
  }

  void small() {
    std::vector<WayPtr> ways;
    const auto add = [&](Result<WayPtr> way) {
      if (way) ways.push_back(std::move(*way));
    };
    add(mmap_way(bench_));
    add(cufile_way(bench_, 1, 64 * kMiB));
    add(daemon_way(bench_, Route::Auto));
    add(engine_way(bench_, Route::Auto));
    for (const std::uint64_t bytes : {4 * kKiB, 64 * kKiB, 1 * kMiB, 16 * kMiB, 256 * kMiB}) {
      if (quick_ && bytes > 16 * kMiB) continue;
      for (const unsigned threads : {1u, 4u, 16u}) {
        if (threads * bytes > bench_.file.size) continue;
        if (threads > 1 && (bytes > kMiB || (quick_ && threads == 4))) continue;
        for (const auto& way : ways) {
          if (progress_.is_terminal()) progress_.show(format_size(bytes) + ", " + way->name());
          const duration<double> limit(quick_ ? 0.1 : 0.4);
          read_small(*way, new_row("sizes", way->name(), bytes, threads), threads, 20'000, limit);
          if (threads > 1 || bytes > 64 * kKiB || !way->name().starts_with("daemon")) continue;
          const OnOneCore kept;
          read_small(*way, new_row("sizes", way->name() + kOnOneCore, bytes), 1, 20'000, limit);
        }
      }
    }
  }

  Bench bench_;
  const unsigned rounds_;
  const bool quick_;
  const std::vector<Route> routes_;
  std::vector<Row> rows_;
  ProgressLine progress_;
};

}  // namespace

std::vector<Row> measure(Bench bench, unsigned rounds, bool quick, std::vector<Route> routes,
                         const std::vector<std::string>& phases) {
  return Runner(std::move(bench), rounds, quick, std::move(routes)).run(phases);
}

}  // namespace sluice::tools::lab::gpu_bench
