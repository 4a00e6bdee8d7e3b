// SPDX-License-Identifier: BSD-2-Clause
// The report of `sluice-lab gpu-bench`: samples in, tables and JSON out. Pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/common/output.hpp"

namespace sluice::tools::lab::gpu_bench {

// Appended to the name of a way whose thread is bound to a core.
inline constexpr const char* kOnOneCore = ", on one core";

struct Row {
  std::string phase;  // cold, cold latency, loads, warm, sizes, beside
  std::string way;
  std::uint64_t bytes = 0;  // of one operation
  unsigned threads = 1;
  std::vector<double> seconds = {};     // of one operation, each round
  std::vector<double> cpu_per_gb = {};  // each round
  std::vector<double> latencies = {};   // of each small read
  double first_seconds = 0;             // of a first operation that is not counted
  double cached = 0;                    // part that was cached although it should have been cold
  std::uint64_t wrong_words = 0;
  std::string route = {};
  std::string skipped = {};  // the reason if there are no figures
};

struct Report {
  std::string path, on_tier, mount, memory, driver;
  std::uint64_t size = 0;
  unsigned rounds = 0;
  bool quick = false, has_gpu = false, checked_on_gpu = false;
  std::vector<Row> rows;
};

// The median; 0 if there are no samples.
double median(std::vector<double> values);
// The value that `part` of them do not exceed; 0 if there are no samples.
double percentile(std::vector<double> values, double part);

// A goal, and whether it was met.
struct Bar {
  std::string what;
  double value = 0, limit = 0;
  bool is_most = false;  // the value may be at most the limit; else at least
  std::string unit;      // "of the ceiling"
  bool is_met() const { return is_most ? value <= limit : value >= limit; }
};
// The goals for which there are figures.
std::vector<Bar> bars_of(const Report& report);

std::string report_text(const Style& style, const Report& report);
nlohmann::ordered_json report_json(const Report& report);

}  // namespace sluice::tools::lab::gpu_bench
