// SPDX-License-Identifier: BSD-2-Clause
// Draws outcomes as a self-contained SVG: no script, no style sheet, no font file.
// Threads: pure functions.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tools/lab/simulator/replay.hpp"

namespace sluice::tools::lab {

struct Chart {
  struct Line {
    std::string name;
    std::vector<std::pair<double, double>> points;  // x, and y from 0 to 1
  };
  std::string title, subtitle, x_label, y_label = {};
  std::vector<std::pair<double, std::string>> x_ticks = {};  // ascending; two or more
  bool has_dots = false;                                     // marks at the points of a line
  std::vector<Line> lines = {};
};

std::string svg_of(const Chart& chart);

// Hit ratio over the sizes of the fastest tier.
Chart chart_over_sizes(std::span<const ReplayResult> outcomes, const std::string& subtitle);
// Hit ratio over time. REQUIRES: all have a fast tier of one size.
Chart chart_over_time(std::span<const ReplayResult> outcomes, const Trace& trace,
                      const std::string& subtitle);

}  // namespace sluice::tools::lab
