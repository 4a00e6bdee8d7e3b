// SPDX-License-Identifier: BSD-2-Clause
// Takes every row's samples in every place, round by round, and keeps them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/lab/bench/fixtures.hpp"
#include "tools/lab/bench/rows.hpp"

namespace sluice::tools::lab::bench {

// Which of a row's samples represents all of them. Other processes only ever slow work down, so on
// a busy machine the best sample says more than the median.
enum class Summary { Median, Best };

// The samples of one row. Places are numbered as in the list given to measure_all(); 0 is the
// reference.
struct RowResult {
  const Row* row = nullptr;
  Summary summary = Summary::Median;
  std::string skipped;  // why there are no samples, or empty
  unsigned passes = 1;  // the work was done this often in each sample
  std::vector<std::vector<double>>
      samples;  // [place][round], in the row's unit; empty where it does not apply

  std::optional<double> median(std::size_t place) const;
  std::optional<double> best(std::size_t place) const;
  std::optional<double> value(std::size_t place) const;  // the one that `summary` asks for
  // Value against value: a rate as a part of the reference's, a time as a multiple of it.
  std::optional<double> ratio(std::size_t place) const;
  // The same for each single round. Its samples are close in time, so the spread of these ratios is
  // the noise of the machine.
  std::vector<double> round_ratios(std::size_t place) const;
  // Nothing if the row has no goal or the place no value.
  std::optional<bool> meets_goal(std::size_t place) const;
};

struct Plan {
  std::vector<const Row*> rows;
  Sizes sizes;
  unsigned rounds = 3;
  Summary summary = Summary::Median;
  SyncScope sync_scope = SyncScope::Machine;
};

// Works in each place's scratch directory. Throws a Failure at the first call that fails.
std::vector<RowResult> measure_all(const Plan& plan, const std::vector<Place>& places);

// "7.91 GB/s"
std::string format_value(Unit unit, double value);
// "0.98" for rates, "2.31x" for times.
std::string format_ratio(Unit unit, double ratio);
const char* unit_name(Unit unit);

}  // namespace sluice::tools::lab::bench
