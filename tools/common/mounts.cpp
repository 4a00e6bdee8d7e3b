// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/mounts.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/small_file.hpp"

namespace sluice::tools {
namespace {

std::vector<std::string> whole_sluices(const std::vector<MountEntry>& mounts) {
  std::vector<std::string> points;
  for (const auto& mount : mounts) {
    if (!mount.is_sluice || !mount.is_whole) continue;
    if (std::find(points.begin(), points.end(), mount.point) == points.end()) {
      points.push_back(mount.point);
    }
  }
  return points;
}

// The mount point of the whole filesystem of which `point` may be a bind mount.
std::string whole_of(const std::vector<MountEntry>& mounts, const std::string& point) {
  const auto is_it = [&](const MountEntry& mount) { return mount.point == point; };
  const auto part = std::find_if(mounts.rbegin(), mounts.rend(), is_it);
  for (const auto& mount : mounts) {
    if (part->is_whole) break;
    if (mount.is_sluice && mount.is_whole && mount.major == part->major &&
        mount.minor == part->minor) {
      return mount.point;
    }
  }
  return point;
}

std::string listed(const std::vector<std::string>& points) {
  std::string list;
  for (const auto& point : points) list += (list.empty() ? "" : ", ") + log::escaped(point);
  return list;
}

}  // namespace

std::vector<MountEntry> parse_mountinfo(std::string_view text) {
  std::vector<MountEntry> mounts;
  for (const auto& line : parse_mount_lines(text)) {
    const bool is_ours = has_word(line.options, "user_id=0") ||
                         has_word(line.options, "user_id=" + std::to_string(::geteuid()));
    mounts.push_back({line.point, line.type == "fuse.sluice" && is_ours, line.root == "/",
                      line.major, line.minor});
  }
  return mounts;
}

std::vector<MountEntry> mount_table() {
  return parse_mountinfo(text_of_file("/proc/self/mountinfo"));
}

std::optional<std::string> sluice_mount_of(const std::vector<MountEntry>& mounts,
                                           const std::string& path) {
  const MountEntry* innermost = nullptr;
  for (const auto& mount : mounts) {
    if (!mount_holds(mount.point, path)) continue;
    // Of two mounts at the same point, the later one hides the earlier one.
    if (innermost == nullptr || mount.point.size() >= innermost->point.size()) innermost = &mount;
  }
  if (innermost == nullptr || !innermost->is_sluice) return std::nullopt;
  return innermost->point;
}

Result<std::string> choose_mount(const std::vector<MountEntry>& mounts, const std::string& given,
                                 const std::string& directory) {
  const auto points = whole_sluices(mounts);
  if (!given.empty()) {
    if (auto point = sluice_mount_of(mounts, given)) return whole_of(mounts, *point);
    return Error{EXDEV, "choose a mount",
                 log::escaped(given) + " is not on a mount of sluice; " +
                     (points.empty() ? "there is no mount" : "mounts: " + listed(points))};
  }
  if (auto point = sluice_mount_of(mounts, directory)) return whole_of(mounts, *point);
  if (points.size() == 1) return points[0];
  if (points.empty())
    return Error{ENOENT, "choose a mount", "no pool is mounted; see 'sluice mount --help'"};
  return Error{ENOTUNIQ, "choose a mount",
               "several pools are mounted; choose one: " + listed(points)};
}

Result<std::string> choose_mount(const std::string& given) {
  const auto mounts = mount_table();
  // Resolving links would access the mount, whose daemon may hang. The kernel reports the current
  // directory without links, and a mount point contains none.
  const std::string place = given.empty() ? given : absolute_path(given);
  const bool is_point = !place.empty() && sluice_mount_of(mounts, place) == place;
  struct stat st {};
  if (!place.empty() && !is_point && ::lstat(given.c_str(), &st) < 0 && errno == ENOENT)
    return Error{ENOENT, "choose a mount", log::escaped(given) + ": " + std::strerror(ENOENT)};
  return choose_mount(mounts, place.empty() || is_point ? place : real_path(given),
                      absolute_path("."));
}

std::vector<std::string> sluice_mounts() { return whole_sluices(mount_table()); }

}  // namespace sluice::tools
