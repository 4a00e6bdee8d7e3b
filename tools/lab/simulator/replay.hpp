// SPDX-License-Identifier: BSD-2-Clause
// Replays a trace against one contender and counts. Threads: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/lab/simulator/contender.hpp"

namespace sluice::tools::lab {

// Requests after the warm-up; creations do not count.
struct ReplayResult {
  struct Count {
    std::uint64_t requests = 0, hits = 0;
    double ratio() const {
      return requests == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(requests);
    }
  };

  std::string policy;
  std::uint64_t fast_bytes = 0;  // size of the fastest tier
  Count requests = {};
  Count bytes = {};  // each request counts the size of its object
  Traffic traffic = {};
  double service_mean = 0, service_p99 = 0;  // seconds per request
  std::vector<Count> slices = {};            // requests by equal parts of the trace's time

  double hit_ratio() const { return requests.ratio(); }
  double byte_hit_ratio() const { return bytes.ratio(); }
};

inline constexpr std::size_t kSlices =
    84;  // four a day over three weeks, two an hour over two days

// Calls `progress` occasionally with the number of records that are done.
// REQUIRES: as make_contender().
ReplayResult replay(std::string_view policy, const Trace& trace, const SimulationOptions& options,
                    const std::function<void(std::size_t records)>& progress = {});

// The difference of hit ratios between the best oracle among `all`, with a fast tier of the same
// size, and `outcome`. Nothing without an oracle.
std::optional<double> gap_to_oracle(const ReplayResult& outcome, std::span<const ReplayResult> all);

}  // namespace sluice::tools::lab
