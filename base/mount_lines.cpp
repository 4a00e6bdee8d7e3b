// SPDX-License-Identifier: BSD-2-Clause
#include "base/mount_lines.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>

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

}  // namespace

bool mount_holds(const std::string& point, const std::string& path) {
  if (point == "/") return true;
  return path.starts_with(point) && (path.size() == point.size() || path[point.size()] == '/');
}

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
    if (!mount_holds(line.point, path)) continue;
    if (innermost == nullptr || line.point.size() >= innermost->point.size()) innermost = &line;
  }
  if (innermost == nullptr) return std::nullopt;
  return *innermost;
}

bool has_word(std::string_view words, std::string_view word) {
  const auto all = split_at(words, ',');
  return std::find(all.begin(), all.end(), word) != all.end();
}

std::vector<MountLine> mount_lines() {
  std::ifstream in("/proc/self/mountinfo");
  std::string text;
  for (std::string line; std::getline(in, line);) text += line + "\n";
  return parse_mount_lines(text);
}

}  // namespace sluice
