// SPDX-License-Identifier: BSD-2-Clause
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/units.hpp"
#include "tools/common/output.hpp"
#include "tools/common/progress.hpp"
#include "tools/lab/commands.hpp"
#include "tools/lab/simulator/chart.hpp"
#include "tools/lab/simulator/options.hpp"
#include "tools/lab/simulator/replay.hpp"

namespace sluice::tools::lab {
namespace {

using Json = nlohmann::ordered_json;

constexpr HelpText kHelp{
    .usage = "sluice-lab simulate --trace FILE --tiers NAME=SIZE,... [options]",
    .options = R"(      --trace FILE           accesses to replay; '-' is standard input
      --tiers NAME=SIZE,...  fastest first; SIZE is 10GiB, or 5% of the trace's bytes
      --policy POLICIES      all (default), or some of sluice, lru, lfu, arc, s3fifo,
                             gdsf, autotier, belady, belady-size, separated by commas;
                             not in all: budget
      --sizes SIZE,...       replay with each of these as the fastest tier's size
      --format NAME          csv, oracle or kv; default: detected
      --half-life TIME       half-life of the score: 7d (default), or never
      --interval TIME        between two passes of sluice and autotier (15min)
      --min-stay TIME        minimum time on a tier before heat moves a file (1h)
      --optimize WHAT        time (default) or hits: what sluice values files by
      --threshold TIER=N,... sluice goes by these scores instead of by value
      --high-watermark N     percent (90)
      --low-watermark N      percent (10 below the high one)
      --place WHERE          slowest (default): all files start on the slowest tier; fastest:
                             the first access creates a file on the fastest tier with room
      --warmup TIME          exclude the beginning of the trace from the figures
      --chart FILE.svg       hit ratio over --sizes, or over time
      --json                 one JSON object; its members are stable
      --bytes                exact numbers of bytes in the table
      --color WHEN           auto (default), always, never
  -h, --help                 short help (-h) or full help (--help)
)",
    .details = R"(
Replays a trace of file accesses against Sluice's planner and other policies that
choose what the fastest tier holds. Prints for each policy how many requests and
bytes that tier served, how long a request took, and how much was moved to and from
that tier. GAP is the distance in percentage points of requests to an oracle that knows
the future: the better of belady and belady-size, if one of them is among the policies.
Tiers whose names begin with nvme, ssd or hdd are as fast as such disks usually are,
others as their position suggests.

A trace is either text with the columns time (seconds), id and size (bytes), as
'sluice trace record' writes it, or libCacheSim's binary format oracleGeneral,
uncompressed, or JSON lines of requests to an inference server with timestamp and
hash_ids, whose blocks are files of one size. docs/simulator.md describes formats and
policies.

Examples:
  sluice-lab simulate --trace week.csv --tiers nvme=200GiB,ssd=2TiB,hdd
  sluice-lab simulate --trace week.csv --tiers nvme=5%,hdd --sizes 1%,2%,5%,10%,20% \
      --chart sizes.svg
  sluice-lab simulate --trace kv.jsonl --tiers budget=20%,slow --policy budget,lru,belady
  zstd -dc w01.oracleGeneral.zst | sluice-lab simulate --trace - --tiers fast=10%,slow

Exit status: 0 replayed, 1 failed (the trace can't be read), 2 wrong usage.
)"};

// The options as given.
struct Request {
  std::string trace, tiers;
  std::string policies = "all";
  std::string sizes, format, threshold, chart;
  std::string half_life = "7d", interval = "15min", min_stay = "1h", warmup = "0s";
  std::string place = "slowest", optimize = "time";
  std::string color = "auto";
  unsigned high_watermark = 90;
  std::optional<unsigned> low_watermark;
  bool json = false;
  bool bytes = false;
};

// The options after parsing.
struct Job {
  std::vector<TierSpec> tiers;
  std::vector<TierSize> sizes;  // of the fastest tier; empty: use the size in `tiers`
  std::vector<std::string> policies;
  std::optional<TraceFormat> format;
  SimulationOptions options;
};

Error invalid(std::string detail) { return {EINVAL, "read options", std::move(detail)}; }

template <typename T>
Result<T> named(const char* option, Result<T> parsed) {
  return parsed ? std::move(parsed) : Result<T>(parsed.error().at(option));
}

Result<void> understand(const Request& request, Job& job) {
  auto& options = job.options;
  job.tiers = SLUICE_TRY(named("--tiers", parse_tiers(request.tiers)));
  job.policies = SLUICE_TRY(named("--policy", parse_policies(request.policies)));
  if (!request.sizes.empty()) job.sizes = SLUICE_TRY(named("--sizes", parse_sizes(request.sizes)));
  if (!request.threshold.empty()) {
    SLUICE_TRY(named("--threshold", parse_thresholds(request.threshold, job.tiers)));
  }
  if (!request.format.empty() && !(job.format = trace_format(request.format))) {
    return invalid("--format: must be csv, oracle or kv");
  }
  options.half_life = SLUICE_TRY(named("--half-life", parse_span(request.half_life, "never")));
  options.interval = SLUICE_TRY(named("--interval", parse_span(request.interval, "")));
  if (options.interval.count() < 1) return invalid("--interval: must be a second or more");
  options.min_stay = SLUICE_TRY(named("--min-stay", parse_span(request.min_stay, "")));
  options.warmup = SLUICE_TRY(named("--warmup", parse_span(request.warmup, "")));
  if (request.place != "slowest" && request.place != "fastest") {
    return invalid("--place: must be slowest or fastest");
  }
  if (request.optimize != "time" && request.optimize != "hits")
    return invalid("--optimize: must be time or hits");
  options.objective = request.optimize == "hits" ? Objective::Hits : Objective::Time;
  options.method = request.threshold.empty() ? Method::Value : Method::Thresholds;
  options.placing = request.place == "fastest" ? Placing::Fastest : Placing::Slowest;
  options.high_watermark = request.high_watermark;
  options.low_watermark =
      request.low_watermark.value_or(request.high_watermark > 10 ? request.high_watermark - 10 : 0);
  if (options.high_watermark < 1 || options.high_watermark > 100 ||
      options.low_watermark > options.high_watermark) {
    return invalid(
        "--high-watermark, --low-watermark: must be percentages, the low one not above the high "
        "one");
  }
  return {};
}

// ENOSPC if the tiers are too small for the trace.
Result<void> check_room(const std::vector<SimulatedTier>& tiers, const Trace& trace) {
  const auto needed = trace.total_bytes();
  if (tiers.front().bytes == 0) return invalid("the size of the fastest tier is 0");
  if (tiers.back().bytes >= needed) return {};
  return Error{ENOSPC, "replay",
               "the slowest tier, " + tiers.back().name + ", has " +
                   format_size(tiers.back().bytes) + ", but the files of the trace need " +
                   format_size(needed) + "; omit its size to make it as large as needed"};
}

std::vector<ReplayResult> replay_all(Job& job, const Trace& trace) {
  std::vector<ReplayResult> outcomes;
  ProgressLine line;
  if (job.sizes.empty()) job.sizes.push_back(job.tiers.front().size);
  for (const auto& size : job.sizes) {
    job.options.tiers.front().bytes = size.in(trace);
    for (const auto& policy : job.policies) {
      outcomes.push_back(replay(policy, trace, job.options, [&](std::size_t records) {
        if (!line.is_terminal() || !line.is_due()) return;
        line.show("replaying " + policy + ": " + std::to_string(100 * records / trace.records()) +
                  "%");
      }));
    }
  }
  return outcomes;
}

std::string percent(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f%%", 100 * ratio);
  return text;
}

std::string points(std::optional<double> difference) {
  if (!difference) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", 100 * *difference);
  return text;
}

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f ms", 1000 * seconds);
  return text;
}

std::string summary_of(const Trace& trace) {
  return format_count(trace.records()) + " accesses to " + format_count(trace.sizes.size()) +
         " files of " + format_size(trace.total_bytes()) + " in " +
         format_duration(std::chrono::seconds(trace.span_us() / 1'000'000));
}

void print_for_people(const Style& style, const Job& job, const Trace& trace,
                      std::span<const ReplayResult> outcomes, bool exact) {
  using Align = Table::Align;
  const auto size = [&](std::uint64_t bytes) {
    return exact ? std::to_string(bytes) : format_size(bytes);
  };
  Table table({{safe_name(style, job.tiers.front().name), Align::Right},
               {"POLICY"},
               {"HITS", Align::Right},
               {"BYTE HITS", Align::Right},
               {"GAP", Align::Right},
               {"MEAN", Align::Right},
               {"P99", Align::Right},
               {"MOVED IN", Align::Right},
               {"MOVED OUT", Align::Right},
               {"MOVES", Align::Right}});
  for (const auto& outcome : outcomes) {
    table.add({size(outcome.fast_bytes),
               {outcome.policy, outcome.policy == "sluice" ? Color::Bold : Color::None},
               percent(outcome.hit_ratio()),
               percent(outcome.byte_hit_ratio()),
               points(gap_to_oracle(outcome, outcomes)),
               milliseconds(outcome.service_mean),
               milliseconds(outcome.service_p99),
               size(outcome.traffic.bytes_in),
               size(outcome.traffic.bytes_out),
               format_count(outcome.traffic.moves)});
  }
  const std::string out = summary_of(trace) + "\n\n" + table.text(style);
  std::fputs(out.c_str(), stdout);
}

void print_json(const Job& job, const Trace& trace, std::span<const ReplayResult> outcomes) {
  Json tiers = Json::array();
  for (const auto& tier : job.options.tiers) {
    tiers.push_back({{"name", tier.name},
                     {"bytes", tier.bytes},
                     {"threshold", tier.threshold},
                     {"latency_s", tier.speed.latency},
                     {"bandwidth", tier.speed.bandwidth}});
  }
  Json results = Json::array();
  for (const auto& outcome : outcomes) {
    const auto gap = gap_to_oracle(outcome, outcomes);
    results.push_back({{"policy", outcome.policy},
                       {"fast_bytes", outcome.fast_bytes},
                       {"requests", outcome.requests.requests},
                       {"hits", outcome.requests.hits},
                       {"hit_ratio", outcome.hit_ratio()},
                       {"bytes", outcome.bytes.requests},
                       {"hit_bytes", outcome.bytes.hits},
                       {"byte_hit_ratio", outcome.byte_hit_ratio()},
                       {"gap", gap ? Json(*gap) : Json()},
                       {"service_mean_s", outcome.service_mean},
                       {"service_p99_s", outcome.service_p99},
                       {"moved_in_bytes", outcome.traffic.bytes_in},
                       {"moved_out_bytes", outcome.traffic.bytes_out},
                       {"moves", outcome.traffic.moves}});
  }
  const auto& options = job.options;
  const Json all{{"trace",
                  {{"accesses", trace.records()},
                   {"files", trace.sizes.size()},
                   {"bytes", trace.total_bytes()},
                   {"seconds", static_cast<double>(trace.span_us()) / 1e6}}},
                 {"tiers", tiers},
                 {"options",
                  {{"method", options.method == Method::Value ? "value" : "thresholds"},
                   {"optimize", options.objective == Objective::Time ? "time" : "hits"},
                   {"half_life_s", options.half_life.count()},
                   {"interval_s", options.interval.count()},
                   {"min_stay_s", options.min_stay.count()},
                   {"high_watermark", options.high_watermark},
                   {"low_watermark", options.low_watermark},
                   {"place", options.placing == Placing::Fastest ? "fastest" : "slowest"},
                   {"warmup_s", options.warmup.count()}}},
                 {"results", results}};
  std::puts(all.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

Result<void> write_chart(const std::string& file, const Job& job, const Trace& trace,
                         std::span<const ReplayResult> outcomes) {
  const auto chart =
      job.sizes.size() > 1
          ? chart_over_sizes(outcomes, summary_of(trace))
          : chart_over_time(outcomes, trace,
                            summary_of(trace) + "; " + job.tiers.front().name + " has " +
                                format_size(job.options.tiers.front().bytes));
  std::ofstream out(file, std::ios::binary);
  out << svg_of(chart);
  out.close();
  if (!out) return Error{EIO, "write a chart", "--chart: cannot write " + file};
  return {};
}

}  // namespace

int command_simulate(int argc, char** argv) {
  Arguments arguments;
  Request request;
  arguments.option("--trace", request.trace, Arguments::Need::Required);
  arguments.option("--tiers", request.tiers, Arguments::Need::Required);
  arguments.option("--policy", request.policies);
  arguments.option("--sizes", request.sizes);
  arguments.option("--format", request.format);
  arguments.option("--half-life", request.half_life);
  arguments.option("--interval", request.interval);
  arguments.option("--min-stay", request.min_stay);
  arguments.option("--threshold", request.threshold);
  arguments.option("--high-watermark", request.high_watermark);
  arguments.option("--low-watermark", request.low_watermark);
  arguments.option("--place", request.place);
  arguments.option("--optimize", request.optimize);
  arguments.option("--warmup", request.warmup);
  arguments.option("--chart", request.chart);
  arguments.flag("--json", request.json);
  arguments.flag("--bytes", request.bytes);
  arguments.option("--color", request.color);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  const auto style = Style::create(request.color);
  Job job;
  if (!style) return misuse("simulate", "--color: must be auto, always or never");
  if (const auto understood = understand(request, job); !understood)
    return misuse("simulate", understood.error().text());

  Trace trace;
  if (const auto read = read_trace(request.trace, job.format, trace); !read) {
    return fail("simulate", read.error().text());
  }
  job.options.tiers = resolve(job.tiers, trace);
  if (const auto fits = check_room(job.options.tiers, trace); !fits)
    return fail("simulate", fits.error().text());
  if (trace.out_of_order > 0) {
    std::fprintf(stderr,
                 "sluice-lab: simulate: %s records were out of order; they were sorted by time\n",
                 format_count(trace.out_of_order).c_str());
  }
  const auto outcomes = replay_all(job, trace);
  if (request.json) {
    print_json(job, trace, outcomes);
  } else {
    print_for_people(*style, job, trace, outcomes, request.bytes);
  }
  if (!request.chart.empty()) {
    if (const auto written = write_chart(request.chart, job, trace, outcomes); !written) {
      return fail("simulate", written.error().text());
    }
  }
  return kDone;
}

}  // namespace sluice::tools::lab
