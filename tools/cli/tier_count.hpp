// SPDX-License-Identifier: BSD-2-Clause
// Counts the files of a tier by walking its directory, the only reliable source.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace sluice::tools::cli {

struct TierCount {
  std::uint64_t files = 0;  // everything that is not a directory; a hard-linked file once
  std::uint64_t bytes = 0;  // sum of the regular files' lengths
  bool complete = false;    // false: the time was up, or a folder could not be read
};

// Walks `path` until done or `deadline`, skipping .sluice at its top. `progress` is called
// occasionally.
TierCount count_tier(const std::string& path, std::chrono::steady_clock::time_point deadline,
                     const std::function<void(const TierCount&)>& progress);

}  // namespace sluice::tools::cli
