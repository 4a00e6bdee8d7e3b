// SPDX-License-Identifier: BSD-2-Clause
// What `sluice init --for models` adds: rules and budgets for a pool of models, datasets and KV
// caches, and how programs find it. docs/models.md is its guide. Threads: immutable.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fs/control/options.hpp"

namespace sluice::tools::cli {

// The lines above the first tier.
std::string models_options();

// The lines below the last tier. `fastest_bytes` is the size of the first tier; 0: it is not known.
std::string models_rules(const std::vector<TierOptions>& tiers, std::uint64_t fastest_bytes);

// Variables of programs and the directories that they name.
std::vector<std::pair<std::string, std::string>> models_environment(const std::string& mountpoint);

// Commands for the mounted pool: directories, which belong to `owner` (root if it is empty), and
// variables.
std::string models_steps(const std::string& mountpoint, const std::string& owner);

}  // namespace sluice::tools::cli
