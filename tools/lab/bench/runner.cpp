// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/bench/runner.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "tools/lab/bench/syscalls.hpp"

namespace sluice::tools::lab::bench {
namespace {

constexpr unsigned kMostPasses = 2000;

std::optional<double> median_of(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// The value of a sample in the row's unit.
double in_unit(Unit unit, const Measured& measured, unsigned passes) {
  switch (unit) {
    case Unit::GigabytesPerSecond:
      return measured.amount / measured.seconds / 1e9;
    case Unit::ThousandsPerSecond:
      return measured.amount / measured.seconds / 1e3;
    case Unit::Seconds:
      return measured.seconds / passes;
    case Unit::Megabytes:
      return measured.amount / 1e6;
  }
  return 0;
}

// Progress on stderr: a line that is rewritten on a terminal, otherwise one line per row.
class Progress {
 public:
  explicit Progress(std::size_t steps) : steps_(steps) {}

  void step(const Row& row, const std::string& what, const std::string& place) {
    if (terminal_) {
      std::fprintf(stderr, "\r\033[K%s: %s, %s%s", row.title, what.c_str(), place.c_str(),
                   left().c_str());
    }
    ++done_;
  }

  void finish(const RowResult& result, const std::vector<Place>& places) {
    if (terminal_) {
      std::fputs("\r\033[K", stderr);
      return;
    }
    std::string line = std::string(result.row->name) + ":";
    for (std::size_t place = 0; place < places.size(); ++place) {
      const auto value = result.value(place);
      if (!value) continue;
      line += " " + places[place].name + " " + format_value(result.row->unit, *value);
      if (const auto ratio = result.ratio(place); ratio && place > 0) {
        line += " (" + format_ratio(result.row->unit, *ratio) + ")";
      }
    }
    if (!result.skipped.empty()) line += " skipped: " + result.skipped;
    std::fprintf(stderr, "%s\n", line.c_str());
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::string left() const {
    if (done_ == 0) return "";
    const double elapsed = std::chrono::duration<double>(Clock::now() - started_).count();
    const double seconds = elapsed / double(done_) * double(steps_ - std::min(done_, steps_));
    char text[48];
    std::snprintf(text, sizeof text, " (about %d:%02d left)", int(seconds) / 60, int(seconds) % 60);
    return text;
  }

  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  Clock::time_point started_ = Clock::now();
  std::size_t steps_;
  std::size_t done_ = 0;
};

class Runner {
 public:
  Runner(const Plan& plan, const std::vector<Place>& places)
      : plan_(plan),
        places_(places),
        progress_(plan.rows.size() * (plan.rounds + 1) * places.size()) {
    for (const Place& place : places)
      fixtures_.emplace_back(place, plan.sizes, places.front().scratch, plan.sync_scope);
  }

  RowResult measure(const Row& row) {
    RowResult result;
    result.row = &row;
    result.summary = plan_.summary;
    result.samples.resize(places_.size());
    if (row.needs == Row::Needs::DropCaches && !can_drop_caches()) {
      result.skipped = "dropping the kernel's caches needs root";
    } else {
      if (row.repeat == Row::Repeat::UntilLongEnough) result.passes = calibrate(row);
      for (unsigned round = 0; round < plan_.rounds; ++round) take_round(round, result);
    }
    progress_.finish(result, places_);
    return result;
  }

 private:
  // Does the work once in every place without recording it: this creates the fixtures and shows how
  // often the reference must repeat the work for a sample that is long enough.
  unsigned calibrate(const Row& row) {
    double seconds = plan_.sizes.least_seconds;
    for (std::size_t place = 0; place < places_.size(); ++place) {
      progress_.step(row, "warm-up", places_[place].name);
      const auto measured =
          row.measure({places_[place], fixtures_[place], plan_.sizes, 1, plan_.rounds});
      if (place == 0 && measured) seconds = measured->seconds;
    }
    const double passes = std::ceil(plan_.sizes.least_seconds / std::max(seconds, 1e-6));
    return static_cast<unsigned>(std::clamp(passes, 1.0, double(kMostPasses)));
  }

  void take_round(unsigned round, RowResult& result) {
    const Row& row = *result.row;
    const std::string what =
        "round " + std::to_string(round + 1) + "/" + std::to_string(plan_.rounds);
    for (std::size_t i = 0; i < places_.size(); ++i) {
      // Each round begins with another place, so that no place always follows the same one.
      const std::size_t place = (i + round) % places_.size();
      progress_.step(row, what, places_[place].name);
      const auto measured =
          row.measure({places_[place], fixtures_[place], plan_.sizes, result.passes, round});
      if (measured) result.samples[place].push_back(in_unit(row.unit, *measured, result.passes));
    }
  }

  const Plan& plan_;
  const std::vector<Place>& places_;
  std::vector<Fixtures> fixtures_;
  Progress progress_;
};

}  // namespace

std::optional<double> RowResult::median(std::size_t place) const {
  return median_of(samples[place]);
}

std::optional<double> RowResult::best(std::size_t place) const {
  const auto& values = samples[place];
  if (values.empty()) return std::nullopt;
  const bool less_is_better = row->unit == Unit::Seconds || row->unit == Unit::Megabytes;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return less_is_better ? *least : *most;
}

std::optional<double> RowResult::value(std::size_t place) const {
  return summary == Summary::Best ? best(place) : median(place);
}

std::optional<double> RowResult::ratio(std::size_t place) const {
  const auto ours = value(place);
  const auto reference = value(0);
  if (!ours || !reference || *reference == 0) return std::nullopt;
  return *ours / *reference;
}

std::vector<double> RowResult::round_ratios(std::size_t place) const {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(samples[place].size(), samples[0].size()); ++i) {
    if (samples[0][i] != 0) ratios.push_back(samples[place][i] / samples[0][i]);
  }
  return ratios;
}

std::optional<bool> RowResult::meets_goal(std::size_t place) const {
  if (row->goal.kind == Goal::Kind::None) return std::nullopt;
  const auto judged = row->goal.kind == Goal::Kind::ValueAtMost ? value(place) : ratio(place);
  if (!judged) return std::nullopt;
  return row->goal.kind == Goal::Kind::RatioAtLeast ? *judged >= row->goal.bound
                                                    : *judged <= row->goal.bound;
}

std::vector<RowResult> measure_all(const Plan& plan, const std::vector<Place>& places) {
  Runner runner(plan, places);
  std::vector<RowResult> results;
  for (const Row* row : plan.rows) results.push_back(runner.measure(*row));
  return results;
}

const char* unit_name(Unit unit) {
  switch (unit) {
    case Unit::GigabytesPerSecond:
      return "GB/s";
    case Unit::ThousandsPerSecond:
      return "k/s";
    case Unit::Seconds:
      return "s";
    case Unit::Megabytes:
      return "MB";
  }
  return "";
}

std::string format_value(Unit unit, double value) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f %s",
                value < 10    ? 2
                : value < 100 ? 1
                              : 0,
                value, unit_name(unit));
  return text;
}

std::string format_ratio(Unit unit, double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, unit == Unit::Seconds ? "%.2fx" : "%.2f", ratio);
  return text;
}

}  // namespace sluice::tools::lab::bench
