// SPDX-License-Identifier: BSD-2-Clause
// The results for people (a table that is also Markdown) and for programs (JSON).
#pragma once

#include <string>
#include <vector>

#include "tools/lab/bench/runner.hpp"

namespace sluice::tools::lab::bench {

std::string format_table(const std::vector<RowResult>& results, const std::vector<Place>& places);

// Every sample, with the machine and the options that made it.
std::string format_json(const std::vector<RowResult>& results, const std::vector<Place>& places,
                        const Plan& plan);

}  // namespace sluice::tools::lab::bench
