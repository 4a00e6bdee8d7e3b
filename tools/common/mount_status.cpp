// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/mount_status.hpp"

#include <sys/xattr.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/log.hpp"

namespace sluice::tools {

using Json = nlohmann::ordered_json;

Result<Json> mount_status(const std::string& path) {
  std::vector<char> value(64 << 10);
  const ssize_t size = ::getxattr(path.c_str(), "user.sluice.status", value.data(), value.size());
  if (size < 0) {
    int code = errno == EOPNOTSUPP ? ENODATA : errno;
    // The daemon died while it had our request, and no keeper holds the mount.
    if (code == ECONNABORTED) code = ENOTCONN;
    return Error(code, "read mount status");
  }
  Json status =
      Json::parse(value.begin(), value.begin() + size, nullptr, /*allow_exceptions=*/false);
  if (!status.is_object()) return Error(EUCLEAN, "parse mount status");
  return status;
}

std::string describe_status_error(const Error& error, const std::string& path) {
  const std::string where = log::escaped(path);
  switch (error.code) {
    case ENODATA:
      return where + " is not a mount point of sluice; 'findmnt -t fuse.sluice' lists the mounts";
    case ENOTCONN:
      return where + ": the daemon of this mount has died; run 'sluice umount " + where +
             "', then mount again";
    case EUCLEAN:
      return where + ": cannot parse the daemon's answer; is it another version of sluice?";
    default:
      return where + ": " + (error.detail ? *error.detail : std::strerror(error.code));
  }
}

const Json& member_of(const Json& object, std::string_view key) {
  static const Json kNone;
  if (!object.is_object()) return kNone;
  const auto found = object.find(std::string(key));
  return found == object.end() ? kNone : *found;
}

std::string text_of(const Json& object, std::string_view key) {
  const Json& member = member_of(object, key);
  return member.is_string() ? member.get<std::string>() : std::string();
}

std::uint64_t number_of(const Json& object, std::string_view key) {
  const Json& member = member_of(object, key);
  if (member.is_number_unsigned()) return member.get<std::uint64_t>();
  const double real = real_of(object, key);
  return real > 0 && real < 0x1p64 ? static_cast<std::uint64_t>(real) : 0;
}

double real_of(const Json& object, std::string_view key) {
  const Json& member = member_of(object, key);
  return member.is_number() ? member.get<double>() : 0;
}

bool flag_of(const Json& object, std::string_view key) {
  const Json& member = member_of(object, key);
  return member.is_boolean() && member.get<bool>();
}

unsigned percent_used(const nlohmann::ordered_json& tier) {
  const double used = real_of(tier, "used"), all = used + real_of(tier, "free");
  return all > 0 ? static_cast<unsigned>(std::ceil(100 * used / all)) : 0;
}

bool has_state(const nlohmann::ordered_json& tier, std::string_view state) {
  const auto& states = member_of(tier, "states");
  return std::any_of(states.begin(), states.end(),
                     [&](const auto& each) { return text_of(each, "name") == state; });
}

}  // namespace sluice::tools
