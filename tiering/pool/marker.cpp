// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/marker.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/small_file.hpp"
#include "base/unique_fd.hpp"

namespace sluice {
namespace {

// On disk: raise it when an older reader would misunderstand the file.
constexpr int kMarkerVersion = 1;
constexpr const char* kMarkerName = "tier.json";
constexpr const char* kMarkerTemp = "tier.json.new";

nlohmann::json to_json(const Member& m) {
  nlohmann::json j = {{"name", m.name}, {"uuid", m.uuid}, {"slot", m.slot}};
  if (m.retired) j["retired"] = true;
  return j;
}

// Throws nlohmann::json::exception, or std::out_of_range for a slot that does not fit an identity.
Member member_from(const nlohmann::json& j) {
  const auto& slot = j.at("slot");
  if (!slot.is_number_unsigned() || slot.get<std::uint64_t>() < 1 ||
      slot.get<std::uint64_t>() > kMaxSlot) {
    throw std::out_of_range("slot");
  }
  return {j.at("name").get<std::string>(), j.at("uuid").get<std::string>(),
          j.at("slot").get<unsigned>(), j.value("retired", false)};
}

}  // namespace

Result<std::optional<Marker>> read_marker(int root_fd) {
  const UniqueFd dir(
      ::openat(root_fd, kPrivateDirectory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const UniqueFd fd(dir ? ::openat(dir.get(), kMarkerName, O_RDONLY | O_NOFOLLOW | O_CLOEXEC) : -1);
  if (!fd) {
    if (errno == ENOENT) return std::optional<Marker>{};
    return Error::last("open tier marker");
  }
  const std::string text = SLUICE_TRY(read_to_end(fd.get()));
  try {
    const auto j = nlohmann::json::parse(text);
    if (j.at("version").get<int>() > kMarkerVersion)
      return Error(EPROTONOSUPPORT, "tier marker version");
    Marker marker{j.at("pool").get<std::string>(), member_from(j.at("tier")), {}};
    for (const auto& m : j.at("members")) marker.members.push_back(member_from(m));
    return std::optional<Marker>{std::move(marker)};
  } catch (const std::exception&) {
    return Error(EUCLEAN, "parse tier marker");
  }
}

Result<void> write_marker(int root_fd, const Marker& marker) {
  nlohmann::json members = nlohmann::json::array();
  for (const Member& m : marker.members) members.push_back(to_json(m));
  const nlohmann::json j = {{"version", kMarkerVersion},
                            {"pool", marker.pool},
                            {"tier", to_json(marker.self)},
                            {"members", members}};
  const std::string text = j.dump(2) + "\n";

  if (::mkdirat(root_fd, kPrivateDirectory, 0700) < 0 && errno != EEXIST)
    return Error::last("make .sluice");
  const UniqueFd dir(
      ::openat(root_fd, kPrivateDirectory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!dir) return Error::last("open .sluice");
  const UniqueFd fd(::openat(dir.get(), kMarkerTemp,
                             O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return Error::last("create tier marker");
  const ssize_t wrote = ::write(fd.get(), text.data(), text.size());
  if (wrote < 0) return Error::last("write tier marker");
  if (static_cast<std::size_t>(wrote) != text.size()) return Error(ENOSPC, "write tier marker");
  if (::fsync(fd.get()) < 0) return Error::last("sync tier marker");
  if (::renameat(dir.get(), kMarkerTemp, dir.get(), kMarkerName) < 0)
    return Error::last("rename tier marker");
  if (::fsync(dir.get()) < 0 || ::fsync(root_fd) < 0) return Error::last("sync .sluice");
  return {};
}

bool has_private_directory(int root_fd) {
  return ::faccessat(root_fd, kPrivateDirectory, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

void remove_private_directory(int root_fd) {
  const UniqueFd dir(
      ::openat(root_fd, kPrivateDirectory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!dir) return;
  for (const char* name : {kMarkerTemp, kMarkerName, "lock"}) ::unlinkat(dir.get(), name, 0);
  for (const char* name : {"tmp", "twins", "spares"}) ::unlinkat(dir.get(), name, AT_REMOVEDIR);
  ::unlinkat(root_fd, kPrivateDirectory, AT_REMOVEDIR);
}

Member replaced(Member member) {
  member.name += "#" + std::to_string(member.slot);
  member.retired = true;
  return member;
}

std::string new_uuid() {
  std::array<std::uint8_t, 16> b{};
  // Cannot fail for 16 bytes once the kernel's random pool is seeded, which happens long before
  // disks are mounted.
  [[maybe_unused]] const ssize_t got = ::getrandom(b.data(), b.size(), 0);
  b[6] = static_cast<std::uint8_t>((b[6] & 0x0f) | 0x40);
  b[8] = static_cast<std::uint8_t>((b[8] & 0x3f) | 0x80);
  std::array<char, 37> text{};
  std::snprintf(text.data(), text.size(),
                "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
                b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
                b[15]);
  return text.data();
}

}  // namespace sluice
