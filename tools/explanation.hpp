// SPDX-License-Identifier: BSD-2-Clause
// user.sluice.explain as a text for people. Pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tools/output.hpp"

namespace sluice {

// `explanation` is the attribute of the file that the user called `path`; `now` is in seconds since
// the epoch.
std::string explanation_text(const Style& style, const std::string& path,
                             const nlohmann::ordered_json& explanation, std::int64_t now);

// Why a file that wants to move does not, by the protocol's word for it; an unknown word as it is.
std::string hold_text(std::string_view hold);

}  // namespace sluice
