// SPDX-License-Identifier: BSD-2-Clause
// One frame of `sluice top`, as text. A pure function of two answers of the daemon: rates are the
// differences between them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/common/output.hpp"

namespace sluice::tools::cli {

// The lines of the frame: at most `size.rows`, none wider than `size.columns`, colours aside.
// `before` and `now` are answers to {"verb":"activity"} (docs/control.md), which may lack members;
// `time` is the current time, in seconds since the epoch.
std::vector<std::string> top_frame(const nlohmann::ordered_json& before,
                                   const nlohmann::ordered_json& now, std::int64_t time,
                                   FrameSize size, const Style& style);

// The same for a terminal, as high as that, with the keys in the last row.
std::vector<std::string> top_screen(const nlohmann::ordered_json& before,
                                    const nlohmann::ordered_json& now, std::int64_t time,
                                    FrameSize size, const Style& style);

}  // namespace sluice::tools::cli
