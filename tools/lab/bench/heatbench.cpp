// SPDX-License-Identifier: BSD-2-Clause
// `sluice-lab heatbench` measures the cost of access statistics: counting accesses, storing the
// counts, and detecting scans. See docs/benchmarks.md.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "metadata/rocks_store.hpp"
#include "tiering/heat.hpp"
#include "tiering/scan_detector.hpp"
#include "tools/lab/bench/process.hpp"
#include "tools/lab/bench/syscalls.hpp"
#include "tools/lab/commands.hpp"

namespace sluice::tools::lab::bench {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kVerb = "heatbench";
constexpr std::chrono::seconds kHalfLife = std::chrono::hours(7 * 24);

constexpr HelpText kHelp{.usage = "sluice-lab heatbench [options]",
                         .options = R"(      --threads N       threads that count accesses (2)
      --files N         distinct files that they access (1000000)
      --seconds N       duration (20)
      --flush-every N   seconds between flushes to the store (5)
      --stored-files N  files whose heat is stored on disk (10000000)
      --only PART       one part only: updates, disk or scan
      --workdir DIR     where the stores are created and removed again (/var/tmp)
      --json FILE       also write the figures to FILE
  -h, --help            short help (-h) or full help (--help)
)",
                         .details = R"(
Measures the cost of access statistics without a mount: counting accesses, storing the
counts, and detecting scans. docs/benchmarks.md describes the parts.

Examples:
  sluice-lab heatbench --workdir /data --json heat.json

Exit status: 0 measured, whether goals were met or not; 1 failed; 2 wrong usage; 128+N
ended by signal N.
)"};

struct Options {
  unsigned threads = 2;
  std::uint64_t files = 1'000'000;
  unsigned seconds = 20;
  unsigned flush_every = 5;
  std::uint64_t stored_files = 10'000'000;
  std::string only;
  std::string workdir = "/var/tmp";
  std::string json_file;
};

// One line of the table. A goal is a bound on the value, from above or from below.
struct Figure {
  enum class Goal { None, AtLeast, AtMost };
  const char* name;   // for programs
  const char* title;  // for people
  double value;
  const char* unit;
  Goal goal = Goal::None;
  double bound = 0;

  bool met() const { return goal == Goal::AtLeast ? value >= bound : value <= bound; }
};
using Figures = std::vector<Figure>;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Spreads ids as on ext4 tiers, where files of the same directory have distant ids.
InodeId id_of(std::uint64_t file) { return InodeId{(file + 1) * 0x9E3779B97F4A7C15}; }

// Half of the accesses are uniform, half follow Zipf's law: a file of twice the rank gets half as
// many.
class Accesses {
 public:
  Accesses(std::uint64_t seed, std::uint64_t files) : state_(seed), files_(files) {
    while ((std::uint64_t{2} << octaves_) <= files) ++octaves_;
  }

  std::uint64_t next() {
    const std::uint64_t bits = random();
    if ((bits & 1) == 0) return (bits >> 1) % files_;
    // Equally many accesses to each octave of ranks, uniform within an octave.
    const std::uint64_t first = std::uint64_t{1} << (bits >> 1) % (octaves_ + 1);
    return std::min(first + (bits >> 8) % first, files_) - 1;
  }

 private:
  std::uint64_t random() {  // xorshift64*
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1D;
  }

  std::uint64_t state_;
  std::uint64_t files_;
  unsigned octaves_ = 0;
};

std::unique_ptr<RocksStore> open_store(const std::string& directory) {
  auto store = RocksStore::open(directory, kHalfLife);
  if (!store) throw Failure(store.error().text());
  return *std::move(store);
}

void must(const Result<void>& result, const std::string& where) {
  if (result) return;
  errno = result.error().code;
  throw_failure(result.error().operation, where);
}

// The disk usage in bytes, as du prints it. Files that disappear meanwhile are ignored.
double disk_usage(const std::string& directory) {
  double bytes = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    struct stat status {};
    if (::lstat(entry.path().c_str(), &status) == 0) bytes += 512.0 * double(status.st_blocks);
  }
  return bytes;
}

// The CPU time of the calling thread in seconds, which does not depend on other processes.
double processor_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

double peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * double(usage.ru_maxrss);
}

// Counts accesses while a thread flushes.
Figures measure_updates(const Options& options, const std::string& directory) {
  struct alignas(64) Counter {
    std::atomic<std::uint64_t> updates{0};  // written by one thread; no order needed
  };
  const auto store = open_store(directory);
  HeatRecorder recorder(*store, kHalfLife);
  std::vector<Counter> counters(options.threads);
  const auto updates = [&] {
    std::uint64_t sum = 0;
    for (const Counter& counter : counters) sum += counter.updates.load(std::memory_order_relaxed);
    return sum;
  };
  std::atomic<bool> stop{false};     // asks the threads to end; orders no data
  std::atomic<double> processor{0};  // a sum
  double longest_flush = 0;
  double slowest_second = 1e300;
  double elapsed = 0;
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < options.threads; ++t) {
      threads.emplace_back([&, t] {
        Accesses accesses(0x123456789 + t, options.files);
        while (!stop.load(std::memory_order_relaxed)) {
          for (int i = 0; i < 64; ++i) recorder.record(id_of(accesses.next()), {.opens = 1});
          counters[t].updates.fetch_add(64, std::memory_order_relaxed);
        }
        processor += processor_time();
      });
    }
    std::jthread flusher([&] {
      auto next = Clock::now();
      while (!stop.load(std::memory_order_relaxed)) {
        std::this_thread::sleep_for(milliseconds(20));
        if (Clock::now() < next + std::chrono::seconds(options.flush_every)) continue;
        next = Clock::now();
        must(recorder.flush(), directory);
        longest_flush = std::max(longest_flush, seconds_since(next));
      }
    });
    const auto start = Clock::now();
    auto at = start;
    std::uint64_t before = 0;
    for (unsigned second = 1; second <= options.seconds; ++second) {
      std::this_thread::sleep_until(start + std::chrono::seconds(second));
      const std::uint64_t sum = updates();
      slowest_second = std::min(slowest_second, double(sum - before) / seconds_since(at));
      before = sum;
      at = Clock::now();
    }
    stop = true;
    elapsed = seconds_since(start);
  }
  const double rate = double(updates()) / elapsed;
  const auto start = Clock::now();
  must(recorder.flush(), directory);
  longest_flush = std::max(longest_flush, seconds_since(start));

  std::uint64_t stored = 0, files = 0;
  must(store->each_heat([&](InodeId, const Heat& heat) {
    stored += heat.opens;
    return ++files > 0;
  }),
       directory);
  expect(stored == updates(), "updates were lost or counted twice", directory);
  using Goal = Figure::Goal;
  return {{"updates_per_second", "heat updates", rate, "/s", Goal::AtLeast, 1e6},
          {"processor_ns_per_update", "  processor time of each",
           1e9 * processor.load() / double(updates()), "ns"},
          {"slowest_second", "  in the slowest second", slowest_second, "/s"},
          {"distinct_files", "  distinct files", double(files), ""},
          {"longest_flush_seconds", "  longest flush", longest_flush, "s"},
          {"peak_memory_bytes", "  peak memory of the process", peak_memory(), "B"}};
}

// Waits until RocksDB has finished its background work: until the size of its files stays the same.
void wait_until_idle(const std::string& directory) {
  double size = -1;
  for (int i = 0, quiet = 0; i < 120 && quiet < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const double now = disk_usage(directory);
    quiet = now == size ? quiet + 1 : 0;
    size = now;
  }
}

// A clock that changes only in advance().
class SteppedClock final : public sluice::Clock {
 public:
  std::int64_t seconds() const override { return 1'700'000'000 + seconds_; }
  std::chrono::steady_clock::time_point monotonic() const override {
    return std::chrono::steady_clock::time_point(std::chrono::seconds(seconds_));
  }
  void advance(std::int64_t seconds) { seconds_ += seconds; }

 private:
  std::int64_t seconds_ = 0;
};

// Writes the heat of many files to disk, then updates each of them.
Figures measure_disk(const Options& options, const std::string& directory) {
  constexpr std::uint64_t kBetweenFlushes = 1'000'000;
  auto store = open_store(directory);
  SteppedClock clock;
  HeatRecorder recorder(*store, kHalfLife, clock);
  double most = 0;
  const auto write_all_once = [&] {
    const auto start = Clock::now();
    for (std::uint64_t file = 0; file < options.stored_files; ++file) {
      recorder.record(id_of(file), {.opens = 1 + static_cast<std::uint32_t>(file % 7)});
      if (file % 1000 == 0) clock.advance(1);
      if ((file + 1) % kBetweenFlushes != 0 && file + 1 != options.stored_files) continue;
      must(recorder.flush(), directory);
      most = std::max(most, disk_usage(directory));
    }
    return double(options.stored_files) / seconds_since(start);
  };
  const double fill_rate = write_all_once();
  const double after_fill = disk_usage(directory);
  wait_until_idle(directory);
  const double idle = disk_usage(directory);
  const double update_rate = write_all_once();
  const double after_update = disk_usage(directory);
  wait_until_idle(directory);
  const double idle_again = disk_usage(directory);
  store.reset();
  store = open_store(directory);
  const double reopened = disk_usage(directory);

  std::uint64_t files = 0;
  const auto start = Clock::now();
  must(store->each_heat([&](InodeId, const Heat&) { return ++files > 0; }), directory);
  const double walk_rate = double(files) / seconds_since(start);
  expect(files == options.stored_files, "not all files came back", directory);
  using Goal = Figure::Goal;
  const double bound = 100 * double(options.stored_files);  // 1 GB for ten million
  return {{"stored_files", "heat on disk: files", double(files), ""},
          {"fill_per_second", "  first writes", fill_rate, "/s"},
          {"bytes_after_fill", "  size right after them", after_fill, "B", Goal::AtMost, bound},
          {"bytes_idle", "  size when RocksDB is idle", idle, "B", Goal::AtMost, bound},
          {"update_per_second", "  second writes", update_rate, "/s"},
          {"bytes_after_update", "  size right after them", after_update, "B", Goal::AtMost, bound},
          {"bytes_idle_again", "  size when RocksDB is idle", idle_again, "B", Goal::AtMost, bound},
          {"bytes_most", "  most after any flush", most, "B", Goal::AtMost, bound},
          {"bytes_reopened", "  size after reopening", reopened, "B", Goal::AtMost, bound},
          {"walk_per_second", "  walk over all", walk_rate, "/s"}};
}

// The CPU time of a call in nanoseconds, measured while each thread makes calls for a second.
double cost_of(unsigned threads, const std::function<void(unsigned thread, unsigned i)>& call) {
  std::atomic<std::uint64_t> calls{0};  // sums; no order needed
  std::atomic<double> nanoseconds{0};
  std::vector<std::jthread> workers;
  for (unsigned t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      constexpr unsigned kRound = 1000;
      unsigned i = 0;
      const auto start = Clock::now();
      const double before = processor_time();
      while (Clock::now() - start < std::chrono::seconds(1)) {
        for (unsigned end = i + kRound; i < end; ++i) call(t, i);
      }
      calls += i;
      nanoseconds += 1e9 * (processor_time() - before);
    });
  }
  workers.clear();
  return nanoseconds.load() / double(calls.load());
}

Figures measure_scan_detector(const Options& options) {
  ScanDetector detector({});
  const pid_t self = ::getpid();
  // Threads of one process share one entry of the table; several processes do not.
  const double one = cost_of(1, [&](unsigned, unsigned i) { detector.counts(self, i % 2 == 0); });
  const double apart = cost_of(options.threads, [&](unsigned thread, unsigned i) {
    detector.counts(self + pid_t(thread), i % 2 == 0);
  });
  const double together =
      cost_of(options.threads, [&](unsigned, unsigned i) { detector.counts(self, i % 2 == 0); });
  const double process = cost_of(1, [&](unsigned, unsigned) { detector.process_of(self); });
  // Each call is from a new process, so that /proc is read each time. Normally that happens once a
  // second.
  SteppedClock clock;
  ScanDetector forgetful({}, clock);
  const double look_up = cost_of(1, [&](unsigned, unsigned) {
    clock.advance(2);
    forgetful.counts(self, true);
  });
  using Goal = Figure::Goal;
  return {{"scan_check_ns", "scan check of an open", one, "ns", Goal::AtMost, 100},
          {"scan_check_apart_ns", "  by all threads, as processes", apart, "ns"},
          {"scan_check_together_ns", "  by all threads of one process", together, "ns"},
          {"process_of_ns", "  whose thread it is", process, "ns"},
          {"proc_read_ns", "  with a look into /proc", look_up, "ns"}};
}

std::string format_value(double value, const std::string& unit) {
  char text[64];
  if (unit == "B") {
    std::snprintf(text, sizeof text, "%.0f MB", value / 1e6);
  } else if (unit == "s") {
    std::snprintf(text, sizeof text, "%.2f s", value);
  } else if (unit == "ns") {
    std::snprintf(text, sizeof text, "%.0f ns", value);
  } else if (value >= 1e5) {
    std::snprintf(text, sizeof text, "%.2f million%s", value / 1e6, unit.c_str());
  } else {
    std::snprintf(text, sizeof text, "%.0f%s", value, unit.c_str());
  }
  return text;
}

void print(const Figures& figures) {
  for (const Figure& figure : figures) {
    const bool judged = figure.goal != Figure::Goal::None;
    const char* sign = figure.goal == Figure::Goal::AtLeast ? ">= " : "<= ";
    const std::string goal = judged ? sign + format_value(figure.bound, figure.unit) : "-";
    std::printf("| %-34s | %14s | %-17s | %-3s |\n", figure.title,
                format_value(figure.value, figure.unit).c_str(), goal.c_str(),
                !judged        ? "-"
                : figure.met() ? "yes"
                               : "no");
  }
  std::fflush(stdout);
}

void write_json(const std::string& path, const Figures& figures, const Options& options) {
  nlohmann::ordered_json json;
  json["threads"] = options.threads;
  json["files"] = options.files;
  json["seconds"] = options.seconds;
  json["flush_every_seconds"] = options.flush_every;
  json["cores"] = ::sysconf(_SC_NPROCESSORS_ONLN);
  for (const Figure& figure : figures) {
    auto& entry = json["figures"][figure.name];
    entry["value"] = figure.value;
    if (figure.goal == Figure::Goal::None) continue;
    entry[figure.goal == Figure::Goal::AtLeast ? "at_least" : "at_most"] = figure.bound;
    entry["met"] = figure.met();
  }
  std::ofstream file(path);
  file << json.dump(2) << '\n';
  if (!file.flush()) throw_failure("write", path);
}

// The measuring process.
int measure_and_report(const Options& options, const std::string& scratch) {
  try {
    const auto wanted = [&](const char* part) {
      return options.only.empty() || options.only == part;
    };
    Figures all;
    const auto report = [&](const Figures& figures) {
      print(figures);
      all.insert(all.end(), figures.begin(), figures.end());
    };
    std::printf("| %-34s | %14s | %-17s | %-3s |\n", "what", "value", "goal", "ok?");
    std::printf("|%s|%s|%s|%s|\n", std::string(36, '-').c_str(), std::string(16, '-').c_str(),
                std::string(19, '-').c_str(), std::string(5, '-').c_str());
    if (wanted("updates")) report(measure_updates(options, scratch + "/updates"));
    if (wanted("disk")) report(measure_disk(options, scratch + "/disk"));
    if (wanted("scan")) report(measure_scan_detector(options));
    if (!options.json_file.empty()) write_json(options.json_file, all, options);
    return 0;
  } catch (const std::exception& error) {
    return fail(kVerb, error.what());
  }
}

int run_benchmark(const Options& options) {
  BlockedSignals signals;
  int status = kFailed;
  try {
    const std::string scratch = make_temp_directory(options.workdir, "heatbench.");
    try {
      status = signals.supervise([&] { return measure_and_report(options, scratch); });
    } catch (const std::exception& error) {
      fail(kVerb, error.what());
    }
    std::filesystem::remove_all(scratch);
  } catch (const std::exception& error) {
    status = fail(kVerb, error.what());
  }
  return status;
}

std::optional<std::string> find_problem(const Options& options) {
  const auto outside = [](std::uint64_t value, std::uint64_t most) {
    return value < 1 || value > most;
  };
  if (outside(options.threads, 1024)) return "--threads must be from 1 to 1024";
  if (outside(options.seconds, 3600)) return "--seconds must be from 1 to 3600";
  if (outside(options.flush_every, 3600)) return "--flush-every must be from 1 to 3600";
  if (options.files < 1) return "--files must be positive";
  if (options.stored_files < 1) return "--stored-files must be positive";
  if (!options.only.empty() && options.only != "updates" && options.only != "disk" &&
      options.only != "scan")
    return "--only must be updates, disk or scan";
  if (!std::filesystem::is_directory(options.workdir))
    return "--workdir: '" + options.workdir + "' is not a directory";
  return std::nullopt;
}

}  // namespace

int command_heatbench(int argc, char** argv) {
  Arguments arguments;
  Options options;
  arguments.option("--threads", options.threads);
  arguments.option("--files", options.files);
  arguments.option("--seconds", options.seconds);
  arguments.option("--flush-every", options.flush_every);
  arguments.option("--stored-files", options.stored_files);
  arguments.option("--only", options.only);
  arguments.option("--workdir", options.workdir);
  arguments.option("--json", options.json_file);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  if (const auto problem = find_problem(options)) return misuse(kVerb, *problem);
  return run_benchmark(options);
}

}  // namespace sluice::tools::lab::bench
