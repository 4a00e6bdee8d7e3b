// SPDX-License-Identifier: BSD-2-Clause
// `sluice-lab tracegen` generates a trace of file accesses for `sluice-lab simulate`. The same
// options and seed give the same trace. docs/simulator.md describes the options.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "tools/lab/commands.hpp"

namespace sluice::tools::lab {
namespace {

constexpr std::string_view kVerb = "tracegen";

constexpr HelpText kHelp{.usage = "sluice-lab tracegen [options]",
                         .options = R"(      --objects N       number of files (20000)
      --accesses N      number of accesses, not counting scans (1500000)
      --days N          length of the trace (14)
      --zipf SKEW       the n-th file is used as often as 1/n^SKEW (0.9)
      --drift PART      part of the files that change their rank each day (0)
      --scan PART       part of the files that are read each night (0)
      --burst N         mean number of accesses in a row to a file (1)
      --burst-gap N     mean seconds between these (600)
      --median-size N   median size of the files in bytes (65536)
      --sigma N         standard deviation of the logarithm of sizes; 0: all are equal (2.3)
      --seed N          the same seed gives the same trace (1)
  -o, --output FILE     where to write the trace; '-' (default) is standard output
  -h, --help            short help (-h) or full help (--help)
)",
                         .details = R"(
Generates a trace of file accesses for 'sluice-lab simulate': files drawn by Zipf's law,
whose ranks may drift, with bursts and nightly scans. docs/simulator.md has details.

Examples:
  sluice-lab tracegen --days 7 --drift 0.05 --scan 1 -o week.csv
  sluice-lab simulate --trace week.csv --tiers nvme=5%,hdd

Exit status: 0 written, 1 failed, 2 wrong usage.
)"};

constexpr double kHour = 3600, kDay = 24 * kHour;
constexpr double kEpoch = 1'700'006'400;  // midnight, UTC
constexpr double kScanStart = 2 * kHour, kScanTime = 2 * kHour;

struct Options {
  std::uint32_t objects = 20'000;
  std::uint64_t accesses = 1'500'000;  // without scans
  double days = 14;
  double zipf = 0.9;
  double drift = 0;
  double scan = 0;
  double burst = 1;
  double burst_gap = 600;
  double median_size = 65'536;
  double sigma = 2.3;  // e^2.3 is 10: three sigmas to each side are six orders of magnitude
  std::uint64_t seed = 1;
  std::string output = "-";
};

// SplitMix64, with our own distributions: those of the standard library differ between
// implementations.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  std::uint32_t below(std::uint32_t bound) {
    return std::min(bound - 1, static_cast<std::uint32_t>(uniform() * bound));
  }
  double exponential(double mean) { return -mean * std::log1p(-uniform()); }
  double normal() {
    return std::sqrt(-2 * std::log1p(-uniform())) * std::cos(2 * M_PI * uniform());
  }

 private:
  std::uint64_t state_;
};

struct Access {
  double time;
  std::uint32_t object;
};

// Ranks 1, 2, ... with probabilities that fall as 1 / rank^skew.
class Zipf {
 public:
  Zipf(std::uint32_t ranks, double skew) : sums_(ranks) {
    double sum = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      sums_[rank] = sum += std::pow(rank + 1.0, -skew);
    }
  }
  std::uint32_t draw(Random& random) const {
    const double at = random.uniform() * sums_.back();
    const auto found = std::upper_bound(sums_.begin(), sums_.end(), at);
    return static_cast<std::uint32_t>(std::min(found, sums_.end() - 1) - sums_.begin());
  }

 private:
  std::vector<double> sums_;
};

std::vector<std::uint64_t> draw_sizes(const Options& options, Random& random) {
  constexpr double kLargest = 1e12;
  std::vector<std::uint64_t> sizes(options.objects);
  for (auto& size : sizes) {
    const double drawn = options.median_size * std::exp(options.sigma * random.normal());
    size = static_cast<std::uint64_t>(std::clamp(drawn, 1.0, kLargest));
  }
  return sizes;
}

void add_sessions(const Options& options, Random& random, std::vector<Access>& accesses) {
  const Zipf zipf(options.objects, options.zipf);
  std::vector<std::uint32_t> object_at(options.objects);  // by rank
  std::iota(object_at.begin(), object_at.end(), 0u);
  for (std::uint32_t i = options.objects; i > 1; --i) {
    std::swap(object_at[i - 1], object_at[random.below(i)]);
  }
  const double length = options.days * kDay;
  const auto sessions =
      static_cast<std::uint64_t>(static_cast<double>(options.accesses) / options.burst);
  double drifted_to = 0;
  // A Poisson process: generates sorted uniform times one after the other.
  std::vector<double> starts(sessions);
  for (auto& start : starts) start = random.uniform() * length;
  std::sort(starts.begin(), starts.end());
  for (const double start : starts) {
    for (; drifted_to + kHour <= start; drifted_to += kHour) {
      const double swaps = options.drift * options.objects / 24;
      auto times = static_cast<std::uint64_t>(swaps);
      if (random.uniform() < swaps - static_cast<double>(times)) ++times;
      for (; times > 0; --times) {
        std::swap(object_at[random.below(options.objects)],
                  object_at[random.below(options.objects)]);
      }
    }
    const auto object = object_at[zipf.draw(random)];
    double time = start;
    do {
      accesses.push_back({time, object});
      time += random.exponential(options.burst_gap);
    } while (time < length && random.uniform() >= 1 / options.burst);
  }
}

// Each night, reads the same part of all objects once, as a backup or a search does.
void add_scans(const Options& options, std::vector<Access>& accesses) {
  const auto scanned = static_cast<std::uint32_t>(options.scan * options.objects);
  for (double night = kScanStart; night + kScanTime <= options.days * kDay; night += kDay) {
    for (std::uint32_t object = 0; object < scanned; ++object) {
      accesses.push_back({night + kScanTime * object / scanned, object});
    }
  }
}

int write(const Options& options, const std::vector<Access>& accesses,
          const std::vector<std::uint64_t>& sizes) {
  const bool to_stdout = options.output == "-";
  std::FILE* const out = to_stdout ? stdout : std::fopen(options.output.c_str(), "we");
  if (out == nullptr) {
    return fail(kVerb, options.output + ": " + std::strerror(errno));
  }
  std::fputs("time,id,size,path\n", out);
  for (const auto& access : accesses) {
    if (std::ferror(out) != 0) break;
    std::fprintf(out, "%.3f,%u,%llu,/%02u/%u.dat\n", kEpoch + access.time, access.object + 2,
                 static_cast<unsigned long long>(sizes[access.object]), access.object % 100,
                 access.object);
  }
  if (to_stdout) return kDone;  // run_program() looks whether it was written
  const bool failed = std::ferror(out) != 0;
  if (std::fclose(out) != 0 || failed) {
    return fail(kVerb, "cannot write " + options.output);
  }
  return kDone;
}

std::optional<std::string> find_problem(const Options& options) {
  if (options.objects < 1) return "--objects must be positive";
  if (!(options.days > 0)) return "--days must be positive";
  if (!(options.zipf >= 0)) return "--zipf must not be negative";
  if (!(options.drift >= 0)) return "--drift must not be negative";
  if (!(options.scan >= 0 && options.scan <= 1)) return "--scan must be from 0 to 1";
  if (!(options.burst >= 1 && options.burst <= 1e6)) return "--burst must be from 1 to 1000000";
  if (!(options.burst_gap > 0)) return "--burst-gap must be positive";
  if (!(options.median_size > 0)) return "--median-size must be positive";
  if (!(options.sigma >= 0)) return "--sigma must not be negative";
  return std::nullopt;
}

}  // namespace

int command_tracegen(int argc, char** argv) {
  Arguments arguments;
  Options options;
  arguments.option("--objects", options.objects);
  arguments.option("--accesses", options.accesses);
  arguments.option("--days", options.days);
  arguments.option("--zipf", options.zipf);
  arguments.option("--drift", options.drift);
  arguments.option("--scan", options.scan);
  arguments.option("--burst", options.burst);
  arguments.option("--burst-gap", options.burst_gap);
  arguments.option("--median-size", options.median_size);
  arguments.option("--sigma", options.sigma);
  arguments.option("--seed", options.seed);
  arguments.option("-o,--output", options.output);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  if (const auto problem = find_problem(options)) return misuse(kVerb, *problem);

  Random random(options.seed);
  const auto sizes = draw_sizes(options, random);
  std::vector<Access> accesses;
  add_sessions(options, random, accesses);
  add_scans(options, accesses);
  std::stable_sort(accesses.begin(), accesses.end(),
                   [](const Access& a, const Access& b) { return a.time < b.time; });
  return write(options, accesses, sizes);
}

}  // namespace sluice::tools::lab
