// SPDX-License-Identifier: BSD-2-Clause
// `sluice-lab movebench` measures migration on two disks that it creates: how fast the mover is
// compared with cp and fsync, and how it slows reads and an rsync beside it. See
// docs/benchmarks.md.
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tools/common/completion.hpp"
#include "tools/lab/bench/move_files.hpp"
#include "tools/lab/bench/move_site.hpp"
#include "tools/lab/bench/process.hpp"
#include "tools/lab/bench/syscalls.hpp"
#include "tools/lab/commands.hpp"

namespace sluice::tools::lab::bench {
namespace {

using nlohmann::ordered_json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kVerb = "movebench";
constexpr seconds kCopyLimit{600};
constexpr std::uint64_t kDiskBytes = 3 * kGiB;
constexpr double kLeastRate = 0.9;     // the mover's, as a part of that of cp and fsync
constexpr double kMostLatency = 1.3;   // the 99th percentile, as a multiple of that at rest
constexpr double kMostSlowdown = 1.2;  // of an rsync beside a pass
constexpr double kNoisySpread = 0.15;  // a larger spread of the rounds is reported

constexpr HelpText kHelp{.usage = "sluice-lab movebench --sluice BINARY [options] [-- FLAG...]",
                         .options = R"(      --sluice BINARY   the sluice to measure
      --workdir DIR     where the disks are created (/var/tmp)
      --rounds N        samples of each kind; the median counts (3)
      --best            compare the best samples instead of the medians: for a busy machine
      --bandwidth N     MiB/s that moves get while reads are measured (20)
      --only PART,...   only these of large, mid, small, sparse, read, rsync
      --direct-io       let the disks bypass the page cache, where that is possible (default)
      --no-direct-io    do not bypass it
      --quick           small sizes, to see whether it runs; the numbers mean little
      --json FILE       also write every sample to FILE
  -h, --help            short help (-h) or full help (--help)
)",
                         .details = R"(
Creates two disks (ext4 on loop devices), mounts pools with a tier on each, and measures
migration beside cp, and the latency of reads and the time of an rsync while files are
moved. docs/benchmarks.md describes the parts.

It drops the caches of the whole machine before each sample and needs root. It takes up to
6 GiB in DIR. What follows -- is passed to every 'sluice mount'.

Examples:
  sudo sluice-lab movebench --sluice /usr/bin/sluice --workdir /data --json moves.json

Exit status: 0 measured, whether goals were met or not; 1 failed; 2 wrong usage; 128+N
ended by signal N.
)"};

struct Options {
  std::string sluice_binary;
  std::string workdir = "/var/tmp";
  std::string json_file;
  std::string only;
  std::vector<std::string> sluice_flags;  // what followed "--"
  unsigned rounds = 3;
  unsigned bandwidth = 20;  // MiB/s, of the latency part
  bool quick = false, best = false, direct_io = true;

  bool wants(const std::string& name) const {
    return only.empty() || ("," + only + ",").find("," + name + ",") != std::string::npos;
  }
};

// The disks and pools that are measured.
struct Stage {
  const MoveSite& site;
  PoolPlace free, capped;  // pools without a bandwidth and with one
};

enum class Way { Down, Up };

// Seconds from the request to the end of the pass.
double time_mover(const Stage& stage, const FileSet& set, Way way) {
  const PoolPlace& pool = stage.free;
  const std::string& to = way == Way::Down ? pool.slow : pool.fast;
  pin(pool.mount_point + "/" + set.name, way == Way::Down ? "slow" : "fast");
  stage.site.start_cold();
  Stopwatch watch;
  watch.start();
  Pass pass(pool);
  pass.wait();
  watch.stop();
  expect(count_files(to + "/" + set.name) == set.files, "files are missing", to);
  return watch.seconds();
}

double time_cp(const Stage& stage, const FileSet& set, Way way) {
  const MoveSite& site = stage.site;
  const std::string from = (way == Way::Down ? site.fast() : site.slow()) + "/plain";
  const std::string to = (way == Way::Down ? site.slow() : site.fast()) + "/plain";
  stage.site.start_cold();
  Stopwatch watch;
  watch.start();
  run_within({"cp", "-r", "--sparse=always", from + "/" + set.name, to}, kCopyLimit);
  const std::vector<std::string> names = file_names(set.files);
  for (const std::string& name : names) {
    const std::string path = to + "/" + set.name + "/" + name;
    if (::fsync(open_file(path, O_RDONLY).get()) < 0) throw_failure("fsync", path);
  }
  watch.stop();
  std::filesystem::remove_all(from + "/" + set.name);
  return watch.seconds();
}

struct Summary {
  bool best = false;
  double of(std::vector<double> samples) const {
    std::sort(samples.begin(), samples.end());
    const std::size_t middle = samples.size() / 2;
    if (best) return samples.front();
    return samples.size() % 2 != 0 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
  }
};

// Times of the same work done two ways, round by round.
struct Row {
  std::string name, title;
  const char* unit;
  double amount;  // for rates: what is done in one sample, in the unit; 0: the samples are times
  double goal;    // 0: none
  std::vector<double> reference, ours;

  double ratio_of(double r, double o) const { return amount > 0 ? r / o : o / r; }
  double ratio(Summary by) const { return ratio_of(by.of(reference), by.of(ours)); }
  bool meets_goal(Summary by) const { return amount > 0 ? ratio(by) >= goal : ratio(by) <= goal; }
  // Whether the quartiles of the reference differ by more than the goal allows the mover to differ
  // from the reference. If so, the ratio proves nothing.
  bool is_undecided() const {
    std::vector<double> sorted = reference;
    std::sort(sorted.begin(), sorted.end());
    const double spread = sorted[(sorted.size() - 1) * 3 / 4] / sorted[(sorted.size() - 1) / 4];
    return sorted.size() < 3 || spread > (amount > 0 ? 1 / goal : goal);
  }
  bool is_noisy(Summary by) const {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(ratio_of(reference[i], ours[i]));
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    return *most - *least > kNoisySpread * ratio(by);
  }
  double shown(double sample) const { return amount > 0 ? amount / sample : sample; }
};

void measure_throughput(const Stage& stage, const Options& options, std::vector<Row>& rows) {
  for (const FileSet& set : file_sets(options.quick)) {
    if (!options.wants(set.name)) continue;
    const bool counts_files = set.bytes <= 4 * kKiB;
    const char* unit = counts_files ? "files/s" : "MB/s";
    const double amount = counts_files ? set.files : set.data() / 1e6;
    Row down{set.name + "-down", set.title + ", down", unit, amount, kLeastRate, {}, {}};
    Row up{set.name + "-up", set.title + ", up", unit, amount, kLeastRate, {}, {}};
    make_files(stage.free.mount_point + "/" + set.name, set);
    make_files(stage.site.fast() + "/plain/" + set.name, set);
    expect(count_files(stage.free.fast + "/" + set.name) == set.files, "files are elsewhere",
           stage.free.fast);
    for (unsigned round = 0; round < options.rounds; ++round) {
      for (Row* row : {&down, &up}) {
        const Way way = row == &down ? Way::Down : Way::Up;
        // They take turns to begin, so that neither always runs after the other.
        if (round % 2 == 0) row->reference.push_back(time_cp(stage, set, way));
        row->ours.push_back(time_mover(stage, set, way));
        if (round % 2 != 0) row->reference.push_back(time_cp(stage, set, way));
      }
    }
    std::filesystem::remove_all(stage.free.mount_point + "/" + set.name);
    std::filesystem::remove_all(stage.site.fast() + "/plain/" + set.name);
    rows.push_back(down);
    rows.push_back(up);
  }
}

// 4 KiB reads at random offsets of one file, bypassing the page cache.
class Reader {
 public:
  Reader(std::string path, std::uint64_t blocks) : path_(std::move(path)), blocks_(blocks) {
    fd_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
    if (fd_ && ::pread(fd_.get(), block_.get(), sizeof(Block), 0) == sizeof(Block)) return;
    direct_ = false;
    fd_ = open_file(path_, O_RDONLY);
  }
  bool is_direct() const { return direct_; }

  // Reads every block once, so that all are in the cache of the disk, if it has one.
  void read_through() {
    for (std::uint64_t index = 0; index < blocks_; ++index) {
      read_at(fd_, std::as_writable_bytes(std::span(block_.get(), 1)),
              static_cast<off_t>(index * sizeof(Block)), path_);
    }
  }

  // Reads until `is_over` returns true and returns the microseconds of each read.
  std::vector<double> read_until(const std::function<bool()>& is_over) {
    std::vector<double> times;
    while (times.size() % 16 != 0 || !is_over()) {
      state_ = state_ * 6364136223846793005 + 1442695040888963407;
      const std::uint64_t index = (state_ >> 33) % blocks_;
      const auto offset = static_cast<off_t>(index * sizeof(Block));
      if (!direct_) ::posix_fadvise(fd_.get(), offset, sizeof(Block), POSIX_FADV_DONTNEED);
      const auto begun = Clock::now();
      read_at(fd_, std::as_writable_bytes(std::span(block_.get(), 1)), offset, path_);
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begun).count());
      expect(block_->words[0] == Block::stamp(index), "wrong bytes", path_);
    }
    return times;
  }

 private:
  std::string path_;
  std::uint64_t blocks_;
  UniqueFd fd_;
  bool direct_ = true;
  std::unique_ptr<Block> block_ = std::make_unique<Block>();
  std::uint64_t state_ = 1;
};

double percentile(std::vector<double> times, double part) {
  if (times.empty()) throw Failure("no read was measured");
  const auto at = times.begin() + static_cast<std::ptrdiff_t>(part * double(times.size() - 1));
  std::nth_element(times.begin(), at, times.end());
  return *at;
}

struct LatencyNotes {
  bool direct = false;
  double reached_device = 0;  // the part of the reads at rest that did
  std::vector<double> rates;  // MiB/s moved meanwhile
};

LatencyNotes measure_latency(const Stage& stage, const Options& options, std::vector<Row>& rows) {
  const PoolPlace& pool = stage.capped;
  const std::uint64_t blocks = (options.quick ? 32 : 256) * kMiB / sizeof(Block);
  const FileSet load{"load", "", options.bandwidth, (options.quick ? 1 : 4) * kMiB, 1};
  write_blocks(pool.mount_point + "/read", blocks);
  pin(pool.mount_point + "/read", "fast");
  make_files(pool.mount_point + "/load", load);
  stage.site.start_cold();
  Reader reader(pool.mount_point + "/read", blocks);
  LatencyNotes notes{reader.is_direct(), 0, {}};
  Row middle{"read-p50", "4 KiB random read, p50", "us", 0, 0, {}, {}};
  Row tail{"read-p99", "4 KiB random read, p99", "us", 0, kMostLatency, {}, {}};
  reader.read_through();
  double made = 0, reached = 0;
  const seconds at_rest{options.quick ? 1 : 4};
  for (unsigned round = 0; round < options.rounds; ++round) {
    const auto rest = [&] {
      const auto end = Clock::now() + at_rest;
      const std::uint64_t before = stage.site.fast_disk_reads();
      const auto times = reader.read_until([&] { return Clock::now() > end; });
      reached += double(stage.site.fast_disk_reads() - before);
      made += double(times.size());
      middle.reference.push_back(percentile(times, 0.5));
      tail.reference.push_back(percentile(times, 0.99));
    };
    const auto migrate = [&] {
      pin(pool.mount_point + "/load", round % 2 == 0 ? "slow" : "fast");
      const auto begun = Clock::now();
      Pass pass(pool);
      const auto times = reader.read_until([&] { return pass.is_over(milliseconds(0)); });
      const std::chrono::duration<double> taken = Clock::now() - begun;
      middle.ours.push_back(percentile(times, 0.5));
      tail.ours.push_back(percentile(times, 0.99));
      notes.rates.push_back(pass.bytes() / double(kMiB) / taken.count());
    };
    if (round % 2 == 0) rest();
    migrate();
    if (round % 2 != 0) rest();
  }
  notes.reached_device = reached / made;
  rows.push_back(middle);
  rows.push_back(tail);
  return notes;
}

// How long an rsync of small files into the pool takes, alone and beside a pass that moves others.
// Returns how many of the passes were still running when the rsync beside them ended.
unsigned measure_rsync(const Stage& stage, const Options& options, std::vector<Row>& rows) {
  const PoolPlace& pool = stage.free;
  const FileSet load{"load", "", options.quick ? 2000U : 40'000U, 4 * kKiB, 1};
  const FileSet set{"source", "", options.quick ? 1000U : 50'000U, 4 * kKiB, 1};
  const std::string source = stage.site.area() + "/source", copy = pool.mount_point + "/copy";
  make_files(source, set);
  make_files(pool.mount_point + "/load", load);
  Row row{"rsync", "rsync of " + std::to_string(set.files) + " files", "s", 0, kMostSlowdown, {},
          {}};
  unsigned outlasted = 0;
  for (unsigned round = 0; round < options.rounds; ++round) {
    const auto time = [&] {
      Stopwatch watch;
      watch.start();
      run_within({"rsync", "-a", source + "/", copy}, kCopyLimit);
      watch.stop();
      std::filesystem::remove_all(copy);
      return watch.seconds();
    };
    const auto alone = [&] {
      stage.site.start_cold();
      row.reference.push_back(time());
    };
    if (round % 2 == 0) alone();
    pin(pool.mount_point + "/load", round % 2 == 0 ? "slow" : "fast");
    stage.site.start_cold();
    {
      Pass pass(pool);
      // The pass begins with a census.
      pass.is_over(seconds(1));
      // Its report is read meanwhile: the daemon gives up on a client that does not listen.
      auto ending = std::async(std::launch::async, [&] { pass.wait(); });
      row.ours.push_back(time());
      if (ending.wait_for(seconds(0)) != std::future_status::ready) ++outlasted;
      ending.get();
    }
    if (round % 2 != 0) alone();
  }
  std::filesystem::remove_all(pool.mount_point + "/load");
  rows.push_back(row);
  return outlasted;
}

std::string rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value < 10 ? "%.2f" : "%.0f", value);
  return text;
}

void print_table(const std::vector<Row>& rows, Summary by) {
  std::printf("| %-32s | %14s | %14s | %7s | %7s | %3s |\n", "work", "cp or idle", "mover", "ratio",
              "goal", "ok?");
  std::printf("|%s|%s|%s|%s|%s|%s|\n", std::string(34, '-').c_str(), std::string(16, '-').c_str(),
              std::string(16, '-').c_str(), std::string(9, '-').c_str(),
              std::string(9, '-').c_str(), std::string(5, '-').c_str());
  for (const Row& row : rows) {
    const auto cell = [&](const std::vector<double>& samples) {
      return rounded(row.shown(by.of(samples))) + " " + row.unit;
    };
    const bool is_rate = row.amount > 0;
    char ratio[32], goal[32];
    std::snprintf(ratio, sizeof ratio, "%.2f%s%s", row.ratio(by), is_rate ? "" : "x",
                  row.is_noisy(by) ? " ~" : "");
    std::snprintf(goal, sizeof goal, is_rate ? ">= %.1f" : "<= %.1fx", row.goal);
    const char* verdict = row.goal == 0        ? "-"
                          : row.is_undecided() ? "?"
                          : row.meets_goal(by) ? "yes"
                                               : "no";
    std::printf("| %-32s | %14s | %14s | %7s | %7s | %3s |\n", row.title.c_str(),
                cell(row.reference).c_str(), cell(row.ours).c_str(), ratio,
                row.goal == 0 ? "-" : goal, verdict);
  }
}

double load_average() {
  double load = 0;
  return ::getloadavg(&load, 1) == 1 ? load : -1;
}

struct Results {
  std::vector<Row> rows;
  LatencyNotes latency;
  double load_at_start = 0;
};

std::string format_json(const Results& results, const Options& options, bool direct_io) {
  utsname system{};
  ::uname(&system);
  ordered_json json{{"version", 1}};
  json["machine"] = {{"kernel", system.release},
                     {"architecture", system.machine},
                     {"cores", ::sysconf(_SC_NPROCESSORS_ONLN)},
                     {"load_at_start", results.load_at_start},
                     {"load_at_end", load_average()}};
  json["workdir_filesystem"] = filesystem_type(options.workdir);
  json["rounds"] = options.rounds;
  json["summary"] = options.best ? "best" : "median";
  json["direct_io"] = direct_io;
  json["bandwidth_mib"] = options.bandwidth;
  json["rows"] = ordered_json::array();
  const Summary by{options.best};
  for (const Row& row : results.rows) {
    const auto shown = [&](const std::vector<double>& samples) {
      std::vector<double> out;
      for (const double sample : samples) out.push_back(row.shown(sample));
      return out;
    };
    ordered_json entry{{"name", row.name},
                       {"title", row.title},
                       {"unit", row.unit},
                       {"reference", row.shown(by.of(row.reference))},
                       {"mover", row.shown(by.of(row.ours))},
                       {"ratio", row.ratio(by)},
                       {"goal", row.goal == 0 ? ordered_json() : ordered_json(row.goal)},
                       {"noisy", row.is_noisy(by)}};
    if (row.goal != 0) {
      entry["ok"] = row.is_undecided() ? ordered_json() : ordered_json(row.meets_goal(by));
    }
    entry["samples"] = {{"reference", shown(row.reference)}, {"mover", shown(row.ours)}};
    json["rows"].push_back(entry);
  }
  json["reads"] = {{"direct", results.latency.direct},
                   {"reached_device", results.latency.reached_device},
                   {"moved_mib_s", results.latency.rates}};
  return json.dump(2) + "\n";
}

// The measuring process.
int measure_and_report(const Options& options, const Stage& stage) {
  try {
    Results results;
    results.load_at_start = load_average();
    measure_throughput(stage, options, results.rows);
    if (options.wants("read")) results.latency = measure_latency(stage, options, results.rows);
    std::optional<unsigned> outlasted;
    if (options.wants("rsync")) outlasted = measure_rsync(stage, options, results.rows);
    print_table(results.rows, Summary{options.best});
    if (outlasted) {
      std::printf("\n%u of %u passes were still running when the rsync beside them had ended\n",
                  *outlasted, options.rounds);
    }
    if (!results.latency.rates.empty()) {
      std::printf(
          "\nreads %s, %.0f%% reached the loop device; meanwhile %.1f MiB/s moved, of %u allowed\n",
          results.latency.direct ? "with O_DIRECT" : "with their pages dropped",
          100 * results.latency.reached_device, Summary{}.of(results.latency.rates),
          options.bandwidth);
    }
    std::printf("the disks are files on %s, %s\n", filesystem_type(options.workdir).c_str(),
                stage.site.has_direct_io() ? "past its page cache"
                                           : "in its page cache: reads show no disk");
    std::printf("load average %.1f before, %.1f after, %ld cores\n", results.load_at_start,
                load_average(), ::sysconf(_SC_NPROCESSORS_ONLN));
    if (!options.json_file.empty()) {
      const std::string text = format_json(results, options, stage.site.has_direct_io());
      UniqueFd fd = open_file(options.json_file, O_WRONLY | O_CREAT | O_TRUNC);
      write_all(fd, std::as_bytes(std::span(text)), options.json_file);
      close_file(std::move(fd), options.json_file);
    }
    return 0;
  } catch (const std::exception& error) {
    return fail(kVerb, error.what());
  }
}

int run_benchmark(const Options& options) {
  BlockedSignals signals;
  int status = kFailed;
  try {
    MoveSite site(options.workdir, kDiskBytes, options.direct_io);
    make_directory(site.fast() + "/plain");
    make_directory(site.slow() + "/plain");
    std::vector<std::string> flags = options.sluice_flags;
    const PoolPlace free = site.add_pool(options.sluice_binary, "free", flags);
    flags.insert(flags.begin(), {"--bandwidth", std::to_string(options.bandwidth) + "MiB"});
    const Stage stage{site, free, site.add_pool(options.sluice_binary, "capped", flags)};
    if (signals.arrived() == 0) {
      status = signals.supervise([&] { return measure_and_report(options, stage); });
    }
  } catch (const std::exception& error) {
    fail(kVerb, error.what());
  }
  const int signal = signals.arrived();
  return signal == 0 ? status : 128 + signal;
}

std::optional<std::string> find_problem(const Options& options) {
  if (!std::filesystem::is_regular_file(options.sluice_binary))
    return "--sluice: '" + options.sluice_binary + "' is not a program";
  if (!std::filesystem::is_directory(options.workdir))
    return "--workdir: '" + options.workdir + "' is not a directory";
  if (options.rounds < 1 || options.rounds > 100) return "--rounds must be from 1 to 100";
  if (options.bandwidth < 1 || options.bandwidth > 256) return "--bandwidth must be from 1 to 256";
  return std::nullopt;
}

}  // namespace

int command_movebench(int argc, char** argv) {
  Arguments arguments;
  Options options;
  arguments.option("--sluice", options.sluice_binary, Arguments::Need::Required);
  arguments.option("--workdir", options.workdir);
  arguments.option("--rounds", options.rounds);
  arguments.flag("--best", options.best);
  arguments.option("--bandwidth", options.bandwidth);
  arguments.option("--only", options.only);
  arguments.flag("--direct-io", [&] { options.direct_io = true; });
  arguments.flag("--no-direct-io", [&] { options.direct_io = false; });
  arguments.flag("--quick", options.quick);
  arguments.option("--json", options.json_file);
  char** const end = argv + argc;
  const bool completes =
      argc > 1 && argv[1] == kCompletionMark;  // "--" may be the word to complete
  char** const dashes = completes ? end : std::find(argv, end, std::string_view("--"));
  if (dashes != end) options.sluice_flags.assign(dashes + 1, end);
  if (const auto code = arguments.parse(static_cast<int>(dashes - argv), argv, kHelp)) return *code;
  if (const auto problem = find_problem(options)) return misuse(kVerb, *problem);
  options.sluice_binary = std::filesystem::canonical(options.sluice_binary).string();
  return run_benchmark(options);
}

}  // namespace sluice::tools::lab::bench
