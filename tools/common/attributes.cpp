// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/attributes.hpp"

#include <fts.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/units.hpp"
#include "fs/control/options.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/output.hpp"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

// One path per fts_open(), so that a failure can be reported for that path.
struct FtsCloser {
  void operator()(FTS* walk) const { ::fts_close(walk); }
};

Json tier_status(const std::string& mountpoint, const std::string& name) {
  const auto status = mount_status(mountpoint);
  if (!status || !status->contains("tiers")) return Json::object();
  for (const auto& tier : (*status)["tiers"]) {
    if (text_of(tier, "name") == name) return tier;
  }
  return Json::object();
}

// "since 2026-11-15 06:07:28 (its disk was unmounted)".
std::string offline_since(const Json& tier) {
  const auto since = static_cast<std::int64_t>(number_of(tier, "offline_since"));
  return (since > 0 ? "since " + format_time(since) : "since before the daemon was started") +
         " (" + log::escaped(text_of(tier, "why")) +
         (has_state(tier, "given-up") ? "; it was given up, with the files on it" : "") + ")";
}

// The tiers of the mount that are offline, each with the reason; empty if all are online.
std::string offline_tiers(const std::string& mountpoint) {
  const auto status = mount_status(mountpoint);
  std::string out;
  if (!status) return out;
  for (const auto& tier : member_of(*status, "tiers")) {
    if (flag_of(tier, "online")) continue;
    out += (out.empty() ? "" : ", ") + text_of(tier, "name") + " " + offline_since(tier);
  }
  return out;
}

std::string describe_file_error(const std::vector<MountEntry>& mounts, const std::string& path,
                                int code) {
  const std::string where = log::escaped(path) + ": ";
  if (code == ENOTCONN) {
    return where + std::strerror(code) +
           "; the daemon of this mount has died; run 'sluice umount', then mount again";
  }
  const auto mount = code == EIO ? sluice_mount_of(mounts, absolute_path(path)) : std::nullopt;
  const std::string offline = mount ? offline_tiers(*mount) : "";
  if (offline.empty()) return where + std::strerror(code);
  return where + "it may be on a tier that is offline, or a part of it: " + offline +
         "; it can be used again when the tier is back";
}

}  // namespace

Result<std::string> read_attribute(const std::string& path, const char* name) {
  std::string value(64 << 10, '\0');
  const ssize_t size = ::getxattr(path.c_str(), name, value.data(), value.size());
  if (size < 0) return Error::last("read attribute");
  value.resize(static_cast<std::size_t>(size));
  return value;
}

Result<Json> read_explanation(const std::string& path) {
  const std::string text = SLUICE_TRY(read_attribute(path, "user.sluice.explain"));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Error(EUCLEAN, "parse explanation");
  return json;
}

Result<void> set_attribute(const std::string& path, const char* name, const std::string& value) {
  if (::setxattr(path.c_str(), name, value.data(), value.size(), 0) < 0) {
    return Error::last("set attribute");
  }
  return {};
}

Result<void> remove_attribute(const std::string& path, const char* name) {
  if (::removexattr(path.c_str(), name) < 0) return Error::last("remove attribute");
  return {};
}

std::optional<Target> find_target(const std::vector<MountEntry>& mounts, const std::string& path,
                                  std::string& problem) {
  const std::string where = log::escaped(path);
  struct stat status {};
  if (::stat(path.c_str(), &status) < 0) {
    problem = describe_file_error(mounts, path, errno);
    return std::nullopt;
  }
  const auto mount = sluice_mount_of(mounts, real_path(path));
  if (!mount) {
    problem = where + ": not on a mount of sluice; 'findmnt -t fuse.sluice' lists the mounts";
    return std::nullopt;
  }
  return Target{path, *mount, S_ISDIR(status.st_mode)};
}

std::string unknown_tier(const std::string& mountpoint, const std::string& tier) {
  const auto status = mount_status(mountpoint);
  if (!status || !status->contains("tiers")) return {};
  std::vector<std::string> names;
  for (const auto& each : (*status)["tiers"]) names.push_back(text_of(each, "name"));
  std::vector<std::string_view> views;
  std::string list;
  for (const auto& name : names) {
    if (name == tier) return {};
    views.push_back(name);
    list += (list.empty() ? "" : ", ") + name;
  }
  const auto close = closest_word(tier, views);
  return log::escaped(mountpoint) + " has no tier '" + log::escaped(tier) + "' (it has " + list +
         ")" + (close ? "; did you mean '" + std::string(*close) + "'?" : "");
}

std::optional<std::uint64_t> free_on(const std::string& mountpoint, const std::string& tier) {
  const Json status = tier_status(mountpoint, tier);
  if (!member_of(status, "free").is_number_unsigned()) return std::nullopt;
  return number_of(status, "free");
}

std::optional<std::uint64_t> total_of(const std::string& mountpoint, const std::string& tier) {
  const Json status = tier_status(mountpoint, tier);
  if (!member_of(status, "total").is_number_unsigned()) return std::nullopt;
  return number_of(status, "total");
}

std::string describe_attribute_error(const Error& error, const Target& target,
                                     const std::string& tier, std::uint64_t bytes) {
  const std::string where = log::escaped(target.path) + ": ";
  switch (error.code) {
    case EINVAL: {
      const std::string unknown = unknown_tier(target.mount, tier);
      return where + (unknown.empty() ? "cannot be on tier " + log::escaped(tier) : unknown);
    }
    case EPERM:
    case EACCES:
      return where + "not permitted; moving or pinning a file needs write permission";
    case ENOSPC:
      return where + "no space on tier " + log::escaped(tier) + " (" +
             format_size(number_of(tier_status(target.mount, tier), "free")) + " free, " +
             format_size(bytes) + " needed); see 'sluice status'";
    case EBUSY:
      return where + "tier " + log::escaped(tier) +
             " is being drained and takes no files; 'sluice tier drain " + log::escaped(tier) +
             " --cancel' ends that";
    case EROFS: {
      if (target.is_directory)
        return where + "nothing was set: a part of the directory is on a tier that is read-only; " +
               "see 'sluice status'";
      const bool is_there = has_state(tier_status(target.mount, tier), "read-only");
      const auto own = read_attribute(target.path, "user.sluice.tier");
      return where + "tier " + log::escaped(is_there || !own ? tier : *own) +
             " is read-only: files can't move " + (is_there ? "there" : "away") +
             "; see dmesg for the reason";
    }
    case EIO: {
      const Json status = tier_status(target.mount, tier);
      if (status.contains("online") && !flag_of(status, "online"))
        return where + "tier " + log::escaped(tier) + " has been offline " + offline_since(status) +
               "; try again when its disk is back";
      return describe_file_error(mount_table(), target.path, error.code);
    }
    case EAGAIN:
      return where + "too many of your requested moves are still waiting; see 'sluice moves'";
    case ENODATA:
    case EOPNOTSUPP:
      return where + "the daemon of " + log::escaped(target.mount) +
             " does not support this; is it an older version?";
    default:
      return where + std::strerror(error.code);
  }
}

void each_file(const std::string& path, const std::function<void(const FoundFile&)>& found,
               const std::function<void(const std::string&)>& problem) {
  std::string root = path;
  std::array<char*, 2> roots{root.data(), nullptr};
  // A link given by the user is followed, as `chown` does; links found during the walk are not.
  const std::unique_ptr<FTS, FtsCloser> walk(
      ::fts_open(roots.data(), FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR | FTS_XDEV, nullptr));
  if (!walk) return problem(log::escaped(path) + ": " + std::strerror(errno));
  bool has_directories = false;
  errno = 0;
  while (const FTSENT* entry = ::fts_read(walk.get())) {
    switch (entry->fts_info) {
      case FTS_F:
        found({.path = entry->fts_path,
               .bytes = static_cast<std::uint64_t>(
                   std::min<off_t>(entry->fts_statp->st_size, entry->fts_statp->st_blocks * 512)),
               .device = entry->fts_statp->st_dev,
               .inode = entry->fts_statp->st_ino,
               .links = entry->fts_statp->st_nlink});
        break;
      case FTS_DNR:
      case FTS_ERR:
      case FTS_NS:
        problem(describe_file_error(mount_table(), entry->fts_path, entry->fts_errno));
        break;
      case FTS_DP:
        has_directories = true;
        break;
      default:
        break;
    }
    errno = 0;
  }
  if (const int code = errno; code != 0) problem(describe_file_error(mount_table(), path, code));
  // fts takes a listing that ends with an error for a complete one.
  const auto mount =
      has_directories ? sluice_mount_of(mount_table(), real_path(path)) : std::nullopt;
  const std::string offline = mount ? offline_tiers(*mount) : "";
  if (!offline.empty())
    problem(log::escaped(path) + ": without files on a tier that is offline: " + offline);
}

}  // namespace sluice::tools
