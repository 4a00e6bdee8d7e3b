// SPDX-License-Identifier: BSD-2-Clause
// The rows of the table: what is measured, its unit and its goal.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "tools/lab/bench/fixtures.hpp"

namespace sluice::tools::lab::bench {

struct Goal {
  enum class Kind { None, RatioAtLeast, RatioAtMost, ValueAtMost };
  Kind kind = Kind::None;
  double bound = 0;
};

enum class Unit { GigabytesPerSecond, ThousandsPerSecond, Seconds, Megabytes };

// One sample: `amount` (bytes, operations, files) done in `seconds`. For Unit::Megabytes only
// `amount` counts.
struct Measured {
  double amount = 0;
  double seconds = 0;
};

// What a row's function is given.
struct Sample {
  const Place& place;
  Fixtures& fixtures;
  const Sizes& sizes;
  unsigned passes;  // how often to do the work; the same in every place
  unsigned round;
};

struct Row {
  enum class Repeat { Once, UntilLongEnough };
  enum class Needs { Nothing, DropCaches };

  const char* name;
  const char* title;
  Unit unit;
  Goal goal;
  // Prepares, measures and cleans up; only the work itself is timed. Returns nothing if the row
  // does not apply to the place.
  std::optional<Measured> (*measure)(const Sample&);
  Repeat repeat = Repeat::UntilLongEnough;
  Needs needs = Needs::Nothing;
};

std::span<const Row> all_rows();
const Row* find_row(const std::string& name);  // null if there is none

}  // namespace sluice::tools::lab::bench
