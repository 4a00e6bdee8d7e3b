// SPDX-License-Identifier: BSD-2-Clause
#include "tools/web/replay.hpp"

#include <array>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "tools/lab/simulator/options.hpp"
#include "tools/lab/simulator/replay.hpp"

namespace sluice::tools::web {
namespace {

using namespace lab;  // the simulator

using Json = nlohmann::ordered_json;

// Sizes of the fastest tier, as parts of the trace's bytes.
constexpr std::array kPercents{1.0, 2.0, 5.0, 10.0, 20.0, 40.0};
// Sluice, classic cache policies, autotier, and the oracle.
constexpr std::array<std::string_view, 7> kPolicies{"sluice", "lru",      "arc",        "s3fifo",
                                                    "gdsf",   "autotier", "belady-size"};

}  // namespace

WebReplay::WebReplay(std::string trace_file, std::string fast_tier)
    : trace_file_(std::move(trace_file)),
      fast_tier_(std::move(fast_tier)),
      state_{{"state", "none"}} {
  if (trace_file_.empty()) return;
  set_state({{"state", "running"}, {"done", 0}, {"total", kPercents.size() * kPolicies.size()}});
  thread_ = std::jthread([this](const std::stop_token& stop) {
    begin_thread("sluice-replay");
    try {
      run(stop);
    } catch (const std::exception& error) {
      set_state({{"state", "failed"}, {"error", log::escaped(error.what())}});
    }
  });
}

Json WebReplay::state() const {
  const MutexLock lock(mutex_);
  return state_;
}

void WebReplay::set_state(Json state) {
  const MutexLock lock(mutex_);
  state_ = std::move(state);
}

void WebReplay::run(const std::stop_token& stop) {
  Trace trace;
  if (const auto read = read_trace(trace_file_, std::nullopt, trace); !read) {
    set_state({{"state", "failed"}, {"error", read.error().text()}});
    return;
  }
  const std::uint64_t bytes = trace.total_bytes();
  SimulationOptions options;
  options.tiers = resolve(
      {{.name = "fast", .size = {.percent = 1}}, {.name = "slow", .size = {.is_unlimited = true}}},
      trace);
  Json results = Json::array();
  for (const double percent : kPercents) {
    options.tiers.front().bytes = TierSize{.percent = percent}.in(trace);
    for (const std::string_view policy : kPolicies) {
      if (stop.stop_requested()) return;
      const ReplayResult outcome = replay(policy, trace, options);
      results.push_back({{"policy", policy},
                         {"percent", percent},
                         {"fast_bytes", outcome.fast_bytes},
                         {"hit_ratio", outcome.hit_ratio()},
                         {"moved_bytes", outcome.traffic.bytes_in + outcome.traffic.bytes_out}});
      set_state({{"state", "running"},
                 {"done", results.size()},
                 {"total", kPercents.size() * kPolicies.size()}});
    }
  }
  set_state({{"state", "done"},
             {"tier", fast_tier_},
             {"trace",
              {{"accesses", trace.records()},
               {"files", trace.sizes.size()},
               {"bytes", bytes},
               {"seconds", static_cast<double>(trace.span_us()) / 1e6}}},
             {"results", results}});
}

}  // namespace sluice::tools::web
