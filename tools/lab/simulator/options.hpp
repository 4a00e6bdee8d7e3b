// SPDX-License-Identifier: BSD-2-Clause
// Parses the values of the options of `sluice-lab simulate`. The detail of an error says what is
// wrong and what is allowed. Threads: pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "tools/lab/simulator/contender.hpp"

namespace sluice::tools::lab {

// A size in bytes, or a percentage of the trace's bytes.
struct TierSize {
  std::uint64_t bytes = 0;
  double percent = 0;         // used if not 0
  bool is_unlimited = false;  // as large as needed

  std::uint64_t in(const Trace& trace) const;
};

struct TierSpec {
  std::string name;
  TierSize size = {};
  std::optional<double> threshold = {};
};

// "nvme=10GiB,ssd=5%,hdd": fastest first, two or more; the last may have no size.
Result<std::vector<TierSpec>> parse_tiers(std::string_view text);
// "1GiB,5%".
Result<std::vector<TierSize>> parse_sizes(std::string_view text);
// "nvme=100,ssd=10", for tiers that are in `tiers`; thresholds may not rise towards slower tiers.
Result<void> parse_thresholds(std::string_view text, std::vector<TierSpec>& tiers);
// Names of contender_names(), each once, or "all".
Result<std::vector<std::string>> parse_policies(std::string_view text);
// "90s", "15min", "12h", "7d", "2w"; `zero`, if not empty, is a word for none.
Result<std::chrono::seconds> parse_span(std::string_view text, std::string_view zero);

// The tiers for a replay. The default thresholds are those of the configuration: 0 for the slowest
// tier, 10 for the one before it, 100 for the others.
std::vector<SimulatedTier> resolve(const std::vector<TierSpec>& specs, const Trace& trace);

}  // namespace sluice::tools::lab
