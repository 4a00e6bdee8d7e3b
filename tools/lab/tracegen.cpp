// SPDX-License-Identifier: BSD-2-Clause
// tracegen: makes a trace of file accesses for `sluice simulate`, the same one for the same seed.
// docs/simulator.md says what the options mean.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace {

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

// SplitMix64. The standard's distributions differ between libraries; these are ours.
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
  // A Poisson process: sorted uniform times, made one after the other.
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

// Reads each night the same part of all objects, each once, as a backup or a search does.
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
    std::fprintf(stderr, "tracegen: %s: %s\n", options.output.c_str(), std::strerror(errno));
    return 1;
  }
  std::fputs("time,id,size,path\n", out);
  for (const auto& access : accesses) {
    std::fprintf(out, "%.3f,%u,%llu,/%02u/%u.dat\n", kEpoch + access.time, access.object + 2,
                 static_cast<unsigned long long>(sizes[access.object]), access.object % 100,
                 access.object);
  }
  const bool failed = std::ferror(out) != 0;
  if ((to_stdout ? std::fflush(out) : std::fclose(out)) != 0 || failed) {
    std::fprintf(stderr, "tracegen: %s: can't be written\n", options.output.c_str());
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Makes a trace of file accesses for `sluice simulate`.");
  Options options;
  app.add_option("--objects", options.objects, "files")->check(CLI::PositiveNumber);
  app.add_option("--accesses", options.accesses, "accesses, without those of scans");
  app.add_option("--days", options.days, "length")->check(CLI::PositiveNumber);
  app.add_option("--zipf", options.zipf, "skew: the n-th file is used as often as 1/n^skew")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--drift", options.drift, "part of the files that change their rank each day")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--scan", options.scan, "part of the files that are read each night")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--burst", options.burst, "mean accesses in a row to a file that is drawn")
      ->check(CLI::Range(1.0, 1e6));
  app.add_option("--burst-gap", options.burst_gap, "mean seconds between these")
      ->check(CLI::PositiveNumber);
  app.add_option("--median-size", options.median_size, "bytes")->check(CLI::PositiveNumber);
  app.add_option("--sigma", options.sigma, "of the logarithm of sizes; 0: all are equal")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seed", options.seed, "the same seed makes the same trace");
  app.add_option("-o,--output", options.output, "file; '-' is standard output");
  CLI11_PARSE(app, argc, argv);

  Random random(options.seed);
  const auto sizes = draw_sizes(options, random);
  std::vector<Access> accesses;
  add_sessions(options, random, accesses);
  add_scans(options, accesses);
  std::stable_sort(accesses.begin(), accesses.end(),
                   [](const Access& a, const Access& b) { return a.time < b.time; });
  return write(options, accesses, sizes);
}
