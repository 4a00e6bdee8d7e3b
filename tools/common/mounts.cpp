// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/mounts.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>

#include "base/log.hpp"
#include "base/path.hpp"

namespace sluice {
namespace {

bool is_octal(char c) { return c >= '0' && c <= '7'; }

// The kernel writes spaces, tabs, newlines and backslashes as \ooo.
std::string unescaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && is_octal(text[i + 1]) && is_octal(text[i + 2]) &&
        is_octal(text[i + 3])) {
      out +=
          static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + text[i + 3] - '0');
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::vector<std::string_view> split_at(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const auto end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

unsigned number_in(std::string_view text) {
  unsigned number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

bool holds(const std::string& point, const std::string& path) {
  if (point == "/") return true;
  return path.starts_with(point) && (path.size() == point.size() || path[point.size()] == '/');
}

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

std::vector<MountLine> parse_mount_lines(std::string_view text) {
  // "36 35 98:0 /root /mnt/point rw,noatime master:1 - ext4 /dev/sda1 rw,data=ordered": proc(5).
  std::vector<MountLine> lines;
  for (const auto line : split_at(text, '\n')) {
    const auto fields = split_at(line, ' ');
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 7 || fields.end() - dash < 2) continue;
    const auto colon = std::min(fields[2].find(':'), fields[2].size() - 1);
    const auto behind = [&](std::ptrdiff_t n) {
      return fields.end() - dash > n ? unescaped(dash[n]) : std::string();
    };
    lines.push_back({number_in(fields[2].substr(0, colon)), number_in(fields[2].substr(colon + 1)),
                     unescaped(fields[3]), unescaped(fields[4]), std::string(fields[5]), behind(1),
                     behind(2), behind(3)});
  }
  return lines;
}

std::optional<MountLine> mount_holding(const std::vector<MountLine>& lines,
                                       const std::string& path) {
  const MountLine* innermost = nullptr;
  for (const auto& line : lines) {
    if (!holds(line.point, path)) continue;
    if (innermost == nullptr || line.point.size() >= innermost->point.size()) innermost = &line;
  }
  if (innermost == nullptr) return std::nullopt;
  return *innermost;
}

bool has_word(std::string_view words, std::string_view word) {
  const auto all = split_at(words, ',');
  return std::find(all.begin(), all.end(), word) != all.end();
}

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
  std::ifstream in("/proc/self/mountinfo");
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  return parse_mountinfo(text);
}

std::optional<std::string> sluice_mount_of(const std::vector<MountEntry>& mounts,
                                           const std::string& path) {
  const MountEntry* innermost = nullptr;
  for (const auto& mount : mounts) {
    if (!holds(mount.point, path)) continue;
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
  return choose_mount(mounts, place.empty() || is_point ? place : real_path(given),
                      absolute_path("."));
}

std::vector<std::string> sluice_mounts() { return whole_sluices(mount_table()); }

}  // namespace sluice
