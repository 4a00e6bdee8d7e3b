// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/simulator/replay.hpp"

#include <algorithm>
#include <numeric>

namespace sluice::tools::lab {

ReplayResult replay(std::string_view policy, const Trace& trace, const SimulationOptions& options,
                    const std::function<void(std::size_t records)>& progress) {
  constexpr std::size_t kReportEvery = 1 << 14;
  const auto contender = make_contender(policy, trace, options);
  ReplayResult outcome{.policy = std::string(policy), .fast_bytes = options.tiers.front().bytes};
  outcome.slices.resize(kSlices);
  const auto start = trace.times.empty() ? 0 : trace.times.front();
  const auto counted_from =
      start + std::chrono::duration_cast<std::chrono::microseconds>(options.warmup).count();
  const double slice_us = static_cast<double>(trace.span_us() + 1) / kSlices;
  std::vector<std::uint8_t> exists(trace.sizes.size(), options.placing == Placing::Slowest);
  Traffic before_counting;
  std::vector<float> services;
  services.reserve(trace.records());
  bool is_counting = false;

  for (std::size_t record = 0; record < trace.records(); ++record) {
    if (progress && record % kReportEvery == 0) progress(record);
    const auto object = trace.objects[record];
    const auto time = trace.times[record];
    if (!is_counting && time >= counted_from) {
      is_counting = true;
      before_counting = contender->traffic();
    }
    const bool is_creation = exists[object] == 0;
    exists[object] = 1;
    const auto tier = contender->locate(static_cast<std::uint32_t>(record));
    const double service =
        contender->disks().serve(tier, trace.sizes[object], static_cast<double>(time) / 1e6);
    const bool is_hit =
        contender->access(static_cast<std::uint32_t>(record),
                          is_creation ? Contender::Access::Creation : Contender::Access::Use);
    if (is_creation || !is_counting) continue;
    services.push_back(static_cast<float>(service));
    auto& slice =
        outcome.slices[static_cast<std::size_t>(static_cast<double>(time - start) / slice_us)];
    ++slice.requests;
    ++outcome.requests.requests;
    outcome.bytes.requests += trace.sizes[object];
    if (!is_hit) continue;
    ++slice.hits;
    ++outcome.requests.hits;
    outcome.bytes.hits += trace.sizes[object];
  }
  if (!services.empty()) {
    const auto count = static_cast<double>(services.size());
    outcome.service_mean = std::accumulate(services.begin(), services.end(), 0.0) / count;
    const auto p99 = services.begin() + static_cast<std::ptrdiff_t>(services.size() * 99 / 100);
    std::nth_element(services.begin(), p99, services.end());
    outcome.service_p99 = *p99;
  }
  const auto& traffic = contender->traffic();
  if (is_counting) {
    outcome.traffic = {.bytes_in = traffic.bytes_in - before_counting.bytes_in,
                       .bytes_out = traffic.bytes_out - before_counting.bytes_out,
                       .moves = traffic.moves - before_counting.moves};
  }
  return outcome;
}

std::optional<double> gap_to_oracle(const ReplayResult& outcome,
                                    std::span<const ReplayResult> all) {
  std::optional<double> best;
  for (const auto& other : all) {
    if (is_oracle(other.policy) && other.fast_bytes == outcome.fast_bytes) {
      best = std::max(best.value_or(0), other.hit_ratio());
    }
  }
  if (!best) return std::nullopt;
  return *best - outcome.hit_ratio();
}

}  // namespace sluice::tools::lab
