// SPDX-License-Identifier: BSD-2-Clause
// What a running mount says of itself: the JSON in the user.sluice.status attribute of its root.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace sluice {

// Fails with ENODATA if nothing of Sluice is mounted at `path`, ENOTCONN if its daemon has died,
// EUCLEAN if the answer is no JSON object, or with what the kernel says of the path.
Result<nlohmann::ordered_json> mount_status(const std::string& path);

// Why mount_status(path) failed, for a person.
std::string describe_status_error(const Error& error, const std::string& path);

// Members by name, forgiving what an older or newer daemon leaves out or types differently.
std::string text_of(const nlohmann::ordered_json& object, std::string_view key);
std::uint64_t number_of(const nlohmann::ordered_json& object, std::string_view key);
double real_of(const nlohmann::ordered_json& object, std::string_view key);
bool flag_of(const nlohmann::ordered_json& object, std::string_view key);
// null if there is none.
const nlohmann::ordered_json& member_of(const nlohmann::ordered_json& object, std::string_view key);

}  // namespace sluice
