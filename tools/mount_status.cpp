// SPDX-License-Identifier: BSD-2-Clause
#include "tools/mount_status.hpp"

#include <sys/xattr.h>

#include <cstring>
#include <vector>

#include "base/log.hpp"

namespace sluice {

using Json = nlohmann::ordered_json;

Result<Json> mount_status(const std::string& path) {
  std::vector<char> value(64 << 10);
  const ssize_t size = ::getxattr(path.c_str(), "user.sluice.status", value.data(), value.size());
  if (size < 0) {
    const int code = errno == EOPNOTSUPP ? ENODATA : errno;
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
      return where +
             " is not a mount point of sluice; 'findmnt -t fuse.sluice' lists those there are";
    case ENOTCONN:
      return where + ": the daemon of this mount has died; run 'sluice umount " + where +
             "', then mount again";
    case EUCLEAN:
      return where + ": the mount's answer can't be understood; is its daemon of another version?";
    default:
      return where + ": " + std::strerror(error.code);
  }
}

std::string text_of(const Json& object, std::string_view key) {
  if (!object.is_object()) return {};
  const auto found = object.find(std::string(key));
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::uint64_t number_of(const Json& object, std::string_view key) {
  if (!object.is_object()) return 0;
  const auto found = object.find(std::string(key));
  return found != object.end() && found->is_number() ? found->get<std::uint64_t>() : 0;
}

bool flag_of(const Json& object, std::string_view key) {
  if (!object.is_object()) return false;
  const auto found = object.find(std::string(key));
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

}  // namespace sluice
