// SPDX-License-Identifier: BSD-2-Clause
// user.sluice.explain as a text for people. Pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tools/common/output.hpp"

namespace sluice::tools {

// "why", "hot enough for nvme". Names in the texts are not escaped; the caller escapes them before
// showing them.
struct ExplanationLine {
  std::string label;
  std::string text;
  Color color = Color::None;
};
std::vector<ExplanationLine> explanation_lines(const nlohmann::ordered_json& explanation,
                                               std::int64_t now);

// The same for a terminal or a file. `explanation` is the attribute of the file that the user
// called `path`; `now` is in seconds since the epoch.
std::string explanation_text(const Style& style, const std::string& path,
                             const nlohmann::ordered_json& explanation, std::int64_t now);

// Why a budget does not delete a file, from the protocol's word; unknown words are returned as is.
std::string kept_text(const std::string& why);

}  // namespace sluice::tools
