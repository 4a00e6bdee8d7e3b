// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/bench/report.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "tools/lab/bench/mounts.hpp"

namespace sluice::tools::lab::bench {
namespace {

using nlohmann::ordered_json;
using Cells = std::vector<std::string>;

// If the ratios of single rounds differ by more than this part of the ratio, the report warns.
constexpr double kNoisySpread = 0.15;

bool is_noisy(const RowResult& result, std::size_t place) {
  const auto ratios = result.round_ratios(place);
  const auto ratio = result.ratio(place);
  if (ratios.size() < 2 || !ratio) return false;
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  return *most - *least > kNoisySpread * *ratio;
}

std::string goal_text(const Goal& goal) {
  const char* format = "";
  switch (goal.kind) {
    case Goal::Kind::None:
      return "-";
    case Goal::Kind::RatioAtLeast:
      format = ">= %.2f";
      break;
    case Goal::Kind::RatioAtMost:
      format = "<= %.1fx";
      break;
    case Goal::Kind::ValueAtMost:
      format = "<= %.0f MB";
      break;
  }
  char text[32];
  std::snprintf(text, sizeof text, format, goal.bound);
  return text;
}

std::string value_cell(const RowResult& result, std::size_t place) {
  const auto value = result.value(place);
  return value ? format_value(result.row->unit, *value) : "-";
}

std::string ratio_cell(const RowResult& result, std::size_t place) {
  const auto ratio = result.ratio(place);
  if (!ratio) return "-";
  return format_ratio(result.row->unit, *ratio) + (is_noisy(result, place) ? " ~" : "");
}

// "yes" or "no"; with several places, "no" and the names of those that miss the goal: "no: a, b".
std::string verdict_cell(const RowResult& result, const std::vector<Place>& places) {
  unsigned judged = 0;
  std::string missing;
  for (std::size_t place = 1; place < places.size(); ++place) {
    const auto meets = result.meets_goal(place);
    if (!meets) continue;
    ++judged;
    if (!*meets) missing += (missing.empty() ? "" : ", ") + places[place].name;
  }
  if (judged == 0) return "-";
  if (missing.empty()) return "yes";
  return places.size() == 2 ? "no" : "no: " + missing;
}

std::vector<Cells> table_cells(const std::vector<RowResult>& results,
                               const std::vector<Place>& places) {
  Cells header{"work"};
  for (std::size_t place = 0; place < places.size(); ++place) {
    header.push_back(places[place].name);
    if (place > 0) header.push_back("ratio");
  }
  header.insert(header.end(), {"goal", "ok?"});
  std::vector<Cells> lines{header};
  for (const RowResult& result : results) {
    Cells line{result.row->title};
    for (std::size_t place = 0; place < places.size(); ++place) {
      line.push_back(value_cell(result, place));
      if (place > 0) line.push_back(ratio_cell(result, place));
    }
    line.push_back(goal_text(result.row->goal));
    line.push_back(verdict_cell(result, places));
    lines.push_back(line);
  }
  return lines;
}

ordered_json machine_json() {
  utsname system{};
  ::uname(&system);
  ordered_json machine;
  machine["kernel"] = system.release;
  machine["architecture"] = system.machine;
  machine["cores"] = ::sysconf(_SC_NPROCESSORS_ONLN);
  double load = 0;
  if (::getloadavg(&load, 1) == 1) machine["load_at_end"] = load;
  machine["memory_bytes"] = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                            static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return machine;
}

ordered_json place_json(const Place& place) {
  ordered_json json{{"name", place.name}, {"directory", place.directory}};
  json["filesystem"] = filesystem_type(place.directory);
  if (place.daemon) json["pid"] = *place.daemon;
  if (!place.command.empty()) json["command"] = place.command;
  return json;
}

ordered_json goal_json(const Goal& goal) {
  switch (goal.kind) {
    case Goal::Kind::None:
      break;
    case Goal::Kind::RatioAtLeast:
      return {{"ratio_at_least", goal.bound}};
    case Goal::Kind::RatioAtMost:
      return {{"ratio_at_most", goal.bound}};
    case Goal::Kind::ValueAtMost:
      return {{"value_at_most", goal.bound}};
  }
  return nullptr;
}

ordered_json row_json(const RowResult& result, const std::vector<Place>& places) {
  ordered_json json;
  json["name"] = result.row->name;
  json["title"] = result.row->title;
  json["unit"] = unit_name(result.row->unit);
  json["goal"] = goal_json(result.row->goal);
  if (!result.skipped.empty()) json["skipped"] = result.skipped;
  json["passes"] = result.passes;
  for (std::size_t place = 0; place < places.size(); ++place) {
    const auto median = result.median(place);
    if (!median) continue;
    ordered_json& entry = json["places"][places[place].name];
    entry["samples"] = result.samples[place];
    entry["median"] = *median;
    entry["best"] = *result.best(place);
    if (place == 0) continue;
    if (const auto ratio = result.ratio(place)) {
      entry["ratio"] = *ratio;
      entry["round_ratios"] = result.round_ratios(place);
      entry["noisy"] = is_noisy(result, place);
    }
    if (const auto meets = result.meets_goal(place)) entry["meets_goal"] = *meets;
  }
  return json;
}

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

std::string format_table(const std::vector<RowResult>& results, const std::vector<Place>& places) {
  std::vector<Cells> lines = table_cells(results, places);
  std::vector<std::size_t> widths(lines.front().size());
  for (const Cells& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (std::size_t number = 0; number < lines.size(); ++number) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      text += "| " + lines[number][i] + std::string(widths[i] - lines[number][i].size() + 1, ' ');
    }
    text += "|\n";
    if (number > 0) continue;
    for (const std::size_t width : widths) text += "|" + std::string(width + 2, '-');
    text += "|\n";
  }
  for (const RowResult& result : results) {
    if (!result.skipped.empty())
      text += std::string(result.row->name) + ": skipped: " + result.skipped + "\n";
  }
  if (text.find(" ~") != std::string::npos) {
    text +=
        "~ the ratios of single rounds differ by more than 15%: a busy machine, or work that "
        "varies\n";
  }
  return text;
}

std::string format_json(const std::vector<RowResult>& results, const std::vector<Place>& places,
                        const Plan& plan) {
  ordered_json json;
  json["version"] = 1;
  json["time"] = now_utc();
  json["machine"] = machine_json();
  json["options"] = {{"rounds", plan.rounds},
                     {"ratio_of", plan.summary == Summary::Best ? "best" : "median"},
                     {"large_file_bytes", plan.sizes.file_blocks * sizeof(Block)},
                     {"files", plan.sizes.files},
                     {"small_files", plan.sizes.small_files},
                     {"walk_files", plan.sizes.walk_directories * plan.sizes.walk_files},
                     {"list_files", plan.sizes.list_directories * plan.sizes.walk_files},
                     {"untar_source", plan.sizes.untar_source},
                     {"least_seconds", plan.sizes.least_seconds}};
  json["places"] = ordered_json::array();
  for (const Place& place : places) json["places"].push_back(place_json(place));
  json["rows"] = ordered_json::array();
  for (const RowResult& result : results) json["rows"].push_back(row_json(result, places));
  return json.dump(2) + "\n";
}

}  // namespace sluice::tools::lab::bench
