// SPDX-License-Identifier: BSD-2-Clause
// Metrics are what a mount tells monitoring: the text that Prometheus reads (exposition format
// 0.0.4). docs/metrics.md lists the names. Pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

// From what Reporter::activity() says.
std::string metrics_text(const nlohmann::json& activity);

}  // namespace sluice
