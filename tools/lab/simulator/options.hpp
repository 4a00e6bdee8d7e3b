// SPDX-License-Identifier: BSD-2-Clause
// Parses the values of `sluice-lab simulate`'s options. Each function returns nothing, or what is
// wrong and what is allowed. Threads: pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/lab/simulator/contender.hpp"

namespace sluice {

using Complaint = std::optional<std::string>;

// A size in bytes, or a part of all the bytes that a trace names.
struct TierSize {
  std::uint64_t bytes = 0;
  double percent = 0;         // counts if not 0
  bool is_unlimited = false;  // as large as it must be

  std::uint64_t in(const Trace& trace) const;
};

struct TierSpec {
  std::string name;
  TierSize size = {};
  std::optional<double> threshold = {};
};

// "nvme=10GiB,ssd=5%,hdd": fastest first, two or more; the last may have no size.
[[nodiscard]] Complaint parse_tiers(std::string_view text, std::vector<TierSpec>& out);
// "1GiB,5%".
[[nodiscard]] Complaint parse_sizes(std::string_view text, std::vector<TierSize>& out);
// "nvme=100,ssd=10", for tiers that are in `tiers`; thresholds may not rise towards slower tiers.
[[nodiscard]] Complaint parse_thresholds(std::string_view text, std::vector<TierSpec>& tiers);
// Names of contender_names(), each once, or "all".
[[nodiscard]] Complaint parse_policies(std::string_view text, std::vector<std::string>& out);
// "90s", "15min", "12h", "7d", "2w"; `zero`, if not empty, is a word for none.
[[nodiscard]] Complaint parse_span(std::string_view text, std::string_view zero,
                                   std::chrono::seconds& out);

// The tiers at work. Without a threshold of its own the slowest has 0, the one before it 10, and
// those above 100, as in the configuration.
std::vector<SimulatedTier> resolve(const std::vector<TierSpec>& specs, const Trace& trace);

}  // namespace sluice
