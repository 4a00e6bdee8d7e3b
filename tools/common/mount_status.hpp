// SPDX-License-Identifier: BSD-2-Clause
// The status of a running mount: the JSON in the user.sluice.status attribute of its root.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace sluice::tools {

// Fails with ENODATA if nothing of Sluice is mounted at `path`, ENOTCONN if its daemon has died,
// EUCLEAN if the answer is not a JSON object, or with the error of the kernel.
Result<nlohmann::ordered_json> mount_status(const std::string& path);

// Describes why mount_status(path) failed.
std::string describe_status_error(const Error& error, const std::string& path);

// Members by name; tolerates what an older or newer daemon omits or types differently.
std::string text_of(const nlohmann::ordered_json& object, std::string_view key);
std::uint64_t number_of(const nlohmann::ordered_json& object, std::string_view key);
double real_of(const nlohmann::ordered_json& object, std::string_view key);
bool flag_of(const nlohmann::ordered_json& object, std::string_view key);
// How much of a tier is used, in percent, rounded up as df does.
unsigned percent_used(const nlohmann::ordered_json& tier);
// Whether the tier is in this state ("full", "draining", ...).
bool has_state(const nlohmann::ordered_json& tier, std::string_view state);
// null if there is none.
const nlohmann::ordered_json& member_of(const nlohmann::ordered_json& object, std::string_view key);

}  // namespace sluice::tools
