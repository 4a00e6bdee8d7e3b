// SPDX-License-Identifier: BSD-2-Clause
// Runs the measurements of `sluice-lab gpu-bench`: every way takes its turn in each phase, and
// every byte is checked.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/lab/gpu_bench/bench.hpp"
#include "tools/lab/gpu_bench/report.hpp"

namespace sluice::tools::lab::gpu_bench {

inline constexpr std::string_view kPhases[] = {"cold", "loads", "warm", "sizes", "beside"};

// Returns a row for each phase and way. If something can't be measured here, the row has the
// reason. `routes` are our routes that are measured warm. Shows its progress on a terminal.
// REQUIRES: `phases` are in kPhases.
std::vector<Row> measure(Bench bench, unsigned rounds, bool quick, std::vector<Route> routes,
                         const std::vector<std::string>& phases);

}  // namespace sluice::tools::lab::gpu_bench
