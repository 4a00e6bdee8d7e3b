// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/gpu_bench/report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/units.hpp"

namespace sluice::tools::lab::gpu_bench {
namespace {

using Json = nlohmann::ordered_json;

// Less than this is caused by the page cache itself (a page of an index, a race with read-ahead).
constexpr double kStillCold = 0.01;

std::string fixed(double value, int digits) {
  char out[64];
  std::snprintf(out, sizeof out, "%.*f", digits, value);
  return out;
}

double rate_of(const Row& row) {
  const double seconds = median(row.seconds);
  return seconds > 0 ? static_cast<double>(row.bytes) / seconds / 1e9 : 0;
}

// The fastest row of a phase whose name begins with `way`; 0 if there is none.
double best_rate(const Report& report, const std::string& phase, const std::string& way) {
  double best = 0;
  for (const auto& row : report.rows) {
    if (row.phase == phase && row.way.starts_with(way)) best = std::max(best, rate_of(row));
  }
  return best;
}

const Row* find_row(const Report& report, const std::string& phase, const std::string& way,
                    std::uint64_t bytes) {
  for (const auto& row : report.rows) {
    if (row.phase == phase && row.way == way && row.bytes == bytes && row.threads == 1 &&
        !row.seconds.empty()) {
      return &row;
    }
  }
  return nullptr;
}

// The value that the rows of a phase are compared with.
double reference_of(const Report& report, const std::string& phase) {
  if (phase == "cold") return best_rate(report, phase, "disk");
  return best_rate(report, "warm", "copy");
}

std::string remarks(const Row& row) {
  if (row.wrong_words > 0) return "WRONG: " + format_count(row.wrong_words) + " words";
  return row.route;
}

std::string mark(const Row& row) { return row.cached > kStillCold ? "*" : ""; }

std::string large_table(const Style& style, const Report& report, const std::string& phase,
                        const std::string& reference_name) {
  using Align = Table::Align;
  Table table({{"WAY"},
               {"GB/s", Align::Right},
               {reference_name, Align::Right},
               {"CPU s/GB", Align::Right},
               {"ROUTE"}});
  const double reference = reference_of(report, phase);
  bool has_rows = false;
  for (const auto& row : report.rows) {
    if (row.phase != phase || row.bytes != report.size) continue;
    has_rows = true;
    if (row.seconds.empty()) {
      table.add({row.way, {"skipped: " + row.skipped, Color::Dim}});
      continue;
    }
    const double rate = rate_of(row);
    table.add({row.way,
               fixed(rate, rate < 10 ? 2 : 1) + mark(row),
               reference > 0 ? fixed(rate / reference, 2) : "-",
               fixed(median(row.cpu_per_gb), 3),
               {remarks(row), row.wrong_words > 0 ? Color::Red : Color::None}});
  }
  return has_rows ? style.paint(Color::Bold, phase + ", " + format_size(report.size)) + "\n" +
                        table.text(style) + "\n"
                  : "";
}

std::string small_table(const Style& style, const Report& report) {
  using Align = Table::Align;
  Table table({{"SIZE", Align::Right},
               {"THREADS", Align::Right},
               {"WAY"},
               {"p50 us", Align::Right},
               {"p99 us", Align::Right},
               {"OPS/s", Align::Right},
               {"GB/s", Align::Right},
               {"ROUTE"}});
  for (const auto& row : report.rows) {
    const bool is_cold = row.phase == "cold latency";
    const bool is_beside = row.phase == "beside" && row.bytes != report.size;
    if ((row.phase != "sizes" && !is_cold && !is_beside) || row.seconds.empty()) continue;
    const double seconds = median(row.seconds);
    table.add({format_size(row.bytes),
               std::to_string(row.threads),
               row.way + (is_cold ? ", cold" + mark(row) : ""),
               fixed(percentile(row.latencies, 0.5) * 1e6, 1),
               fixed(percentile(row.latencies, 0.99) * 1e6, 1),
               format_count(static_cast<std::uint64_t>(1 / seconds)),
               fixed(rate_of(row), 2),
               {remarks(row), row.wrong_words > 0 ? Color::Red : Color::None}});
  }
  return style.paint(Color::Bold, "sizes, at random offsets") + "\n" + table.text(style) + "\n";
}

// The rate of each load, and the ratio of each to the one before.
std::string loads_lines(const Report& report) {
  std::string out;
  for (const auto& row : report.rows) {
    if (row.phase != "loads") continue;
    out += "loads one after another, " + row.way + mark(row) + ":";
    for (const double seconds : row.seconds)
      out += " " + fixed(static_cast<double>(row.bytes) / seconds / 1e9, 1);
    out += row.skipped.empty() ? " GB/s\n" : " skipped: " + row.skipped + "\n";
  }
  return out.empty() ? out : out + "\n";
}

// The smallest ratio of the rate of a load to that of the one before.
double steadiest(const Row& row) {
  double least = 1;
  for (std::size_t i = 1; i < row.seconds.size(); ++i)
    least = std::min(least, row.seconds[i - 1] / row.seconds[i]);
  return least;
}

}  // namespace

double median(std::vector<double> values) { return percentile(std::move(values), 0.5); }

double percentile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  const auto rank = static_cast<std::size_t>(std::ceil(part * static_cast<double>(values.size())));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::max<std::size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

std::vector<Bar> bars_of(const Report& report) {
  std::vector<Bar> bars;
  const double ceiling = reference_of(report, "warm");
  const auto rate_bar = [&](const std::string& what, const Row* row, double reference, double limit,
                            const std::string& unit) {
    if (row != nullptr && reference > 0) {
      bars.push_back({what, rate_of(*row) / reference, limit, false, unit});
    }
  };
  for (const char* way : {"daemon auto", "daemon staged"}) {
    const Row* row = find_row(report, "warm", way, report.size);
    const double goal = way == std::string("daemon auto") ? 0.98 : 0.90;
    rate_bar(std::string("warm, ") + way, row, ceiling, goal, "of the ceiling");
    rate_bar(std::string("warm, ") + way, row, best_rate(report, "warm", "cuFile"), 1.0,
             "of cuFile's best");
  }
  const Row* mapped = find_row(report, "warm", "daemon mapped", report.size);
  rate_bar("warm, daemon mapped", mapped, ceiling, 0.98, "of the ceiling");
  if (mapped != nullptr) {
    bars.push_back({"warm, daemon mapped", median(mapped->cpu_per_gb), 0.05, true, "CPU s/GB"});
  }
  const Row* cold = find_row(report, "cold", "daemon auto", report.size);
  if (cold != nullptr && cold->cached <= kStillCold) {
    rate_bar("cold, daemon auto", cold, reference_of(report, "cold"), 0.95, "of the disk");
    bars.push_back({"cold, daemon auto", median(cold->cpu_per_gb), 0.3, true, "CPU s/GB"});
  }
  const auto latency_bar = [&](const std::string& what, const std::string& phase, double limit,
                               const std::string& how = "") {
    if (const Row* row = find_row(report, phase, "daemon auto" + how, 4096)) {
      bars.push_back({what + how, percentile(row->latencies, 0.5) * 1e6, limit, true, "us p50"});
    }
  };
  latency_bar("4 KiB by ioctl, cached", "sizes", 20);
  latency_bar("4 KiB by ioctl, cached", "sizes", 20, kOnOneCore);
  latency_bar("4 KiB by ioctl, cold", "cold latency", 100);
  for (const auto& row : report.rows) {
    if (row.phase == "loads" && !row.seconds.empty()) {
      bars.push_back({"loads, " + row.way, steadiest(row), 0.9, false, "of the load before"});
    }
    if (row.phase == "beside" && !row.latencies.empty()) {
      bars.push_back(
          {"4 KiB, " + row.way, percentile(row.latencies, 0.99) * 1e6, 1000, true, "us p99"});
    }
  }
  return bars;
}

std::string report_text(const Style& style, const Report& report) {
  std::string out = style.paint(Color::Bold, safe_name(style, report.path)) + " to " +
                    report.memory + (report.driver.empty() ? "" : ", CUDA " + report.driver) +
                    "; median of " + std::to_string(report.rounds) + "; checked " +
                    (report.checked_on_gpu ? "on the GPU" : "on the host") + "\n\n";
  out += large_table(style, report, "warm", "OF CEILING");
  out += large_table(style, report, "cold", "OF DISK");
  out += loads_lines(report);
  out += small_table(style, report);
  out += large_table(style, report, "beside", "OF CEILING");
  const bool has_mark = std::any_of(report.rows.begin(), report.rows.end(),
                                    [](const Row& row) { return row.cached > kStillCold; });
  if (has_mark) out += "* not cold: part of the file could not be dropped from the page cache\n\n";
  // The goals are for GPUs only.
  if (!report.has_gpu) return out + "no GPU: these figures are for host memory\n";
  for (const auto& bar : bars_of(report)) {
    out += style.paint(bar.is_met() ? Color::Green : Color::Red,
                       bar.is_met() ? "ok      " : "missed  ") +
           bar.what + ": " + fixed(bar.value, bar.value < 10 ? 3 : 1) + " " + bar.unit + " (" +
           (bar.is_most ? "at most " : "at least ") + fixed(bar.limit, 2) + ")\n";
  }
  return out;
}

Json report_json(const Report& report) {
  Json rows = Json::array();
  for (const auto& row : report.rows) {
    rows.push_back({{"phase", row.phase},
                    {"way", row.way},
                    {"bytes", row.bytes},
                    {"threads", row.threads},
                    {"skipped", row.skipped.empty() ? Json() : Json(row.skipped)},
                    {"route", row.route},
                    {"median", median(row.seconds)},
                    {"gb_per_s", rate_of(row)},
                    {"cpu_s_per_gb", median(row.cpu_per_gb)},
                    {"p1_us", percentile(row.latencies, 0.01) * 1e6},
                    {"p50_us", percentile(row.latencies, 0.5) * 1e6},
                    {"p90_us", percentile(row.latencies, 0.9) * 1e6},
                    {"p99_us", percentile(row.latencies, 0.99) * 1e6},
                    {"p999_us", percentile(row.latencies, 0.999) * 1e6},
                    {"cached", row.cached},
                    {"wrong_words", row.wrong_words},
                    {"first_seconds", row.first_seconds},
                    {"seconds", row.seconds},
                    {"cpu_samples", row.cpu_per_gb}});
  }
  Json bars = Json::array();
  for (const auto& bar : report.has_gpu ? bars_of(report) : std::vector<Bar>{}) {
    bars.push_back({{"what", bar.what},
                    {"value", bar.value},
                    {bar.is_most ? "at_most" : "at_least", bar.limit},
                    {"unit", bar.unit},
                    {"met", bar.is_met()}});
  }
  return {
      {"version", SLUICE_VERSION}, {"path", report.path},
      {"on_tier", report.on_tier}, {"mount", report.mount.empty() ? Json() : Json(report.mount)},
      {"memory", report.memory},   {"driver", report.driver},
      {"size", report.size},       {"rounds", report.rounds},
      {"quick", report.quick},     {"checked_on_gpu", report.checked_on_gpu},
      {"bars", std::move(bars)},   {"rows", std::move(rows)}};
}

}  // namespace sluice::tools::lab::gpu_bench
