// SPDX-License-Identifier: BSD-2-Clause
// The metrics of a mount, in the text format of Prometheus (exposition format 0.0.4).
// docs/metrics.md lists the names.
//
// Threads: thread-safe; the functions have no state.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

// `activity` is the result of Reporter::activity().
std::string metrics_text(const nlohmann::json& activity);

}  // namespace sluice
