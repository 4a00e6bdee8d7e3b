// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/machine.hpp"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "base/path.hpp"
#include "base/small_file.hpp"
#include "base/units.hpp"

namespace sluice::tools::cli {

std::vector<std::string> parts_of(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto end = std::min(text.find(separator), text.size());
    if (end > 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::optional<std::string> MachineView::text(const std::string& path) const {
  auto text = read_small_file(root_ + path);
  if (!text) return std::nullopt;
  if (text->ends_with('\n')) text->pop_back();
  return *std::move(text);
}

std::optional<std::uint64_t> MachineView::number(const std::string& path) const {
  const auto found = text(path);
  return found ? parse_size(*found) : std::nullopt;
}

bool MachineView::has(const std::string& path) const {
  return ::access((root_ + path).c_str(), F_OK) == 0;
}

bool MachineView::is_directory(const std::string& path) const {
  struct stat status {};
  return ::stat((root_ + path).c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

std::optional<std::vector<std::string>> MachineView::listing(const std::string& path) const {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir((root_ + path).c_str()),
                                                      ::closedir);
  if (!directory) return std::nullopt;
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> MachineView::names(const std::string& path) const {
  return listing(path).value_or(std::vector<std::string>{});
}

std::string MachineView::resolved(const std::string& path) const {
  if (!has(path)) return {};
  const std::string real = real_path(root_ + path);
  const std::string root = root_.empty() ? root_ : real_path(root_);
  return real.starts_with(root) ? real.substr(root.size()) : std::string();
}

KernelVersion parse_kernel(std::string_view release) {
  KernelVersion version;
  const char* end = release.data() + release.size();
  const auto first = std::from_chars(release.data(), end, version.major);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '.') return {};
  if (std::from_chars(first.ptr + 1, end, version.minor).ec != std::errc()) return {};
  return version;
}

std::optional<bool> kernel_has(const MachineView& machine, const std::string& name) {
  const auto symbols = machine.text("/proc/kallsyms");
  if (!symbols || symbols->empty()) return std::nullopt;
  return symbols->find(" " + name) != std::string::npos;
}

std::optional<Limit> parse_limit(std::string_view limits, std::string_view name) {
  const auto value = [](const std::string& word) {
    return word == "unlimited" ? kUnlimited : parse_size(word).value_or(0);
  };
  for (const auto& line : parts_of(limits, '\n')) {
    if (!line.starts_with(name)) continue;
    const auto words = parts_of(std::string_view(line).substr(name.size()), ' ');
    if (words.size() < 2) return std::nullopt;
    return Limit{value(words[0]), value(words[1])};
  }
  return std::nullopt;
}

std::optional<Disk> disk_of(const MachineView& machine, unsigned major_number,
                            unsigned minor_number) {
  std::string folder = machine.resolved("/sys/dev/block/" + std::to_string(major_number) + ":" +
                                        std::to_string(minor_number));
  if (folder.empty()) return std::nullopt;
  if (machine.has(folder + "/partition")) folder = parent_path(folder);
  Disk disk;
  disk.name = folder.substr(folder.rfind('/') + 1);
  disk.raid = machine.text(folder + "/md/level").value_or("");
  disk.is_rotational = machine.text(folder + "/queue/rotational") == "1";
  // A disk in a USB case does not report itself as removable.
  disk.is_removable =
      machine.text(folder + "/removable") == "1" || folder.find("/usb") != std::string::npos;
  disk.is_virtual = disk.name.starts_with("vd") || disk.name.starts_with("xvd");
  const auto slaves = machine.names(folder + "/slaves");
  disk.is_nvme = slaves.empty() && disk.name.starts_with("nvme");
  if (slaves.empty()) return disk;
  disk.is_nvme = true;
  for (const auto& slave : slaves) {
    const auto number =
        parts_of(machine.text(folder + "/slaves/" + slave + "/dev").value_or(""), ':');
    unsigned numbers[2] = {0, 0};
    for (std::size_t i = 0; i < 2 && i < number.size(); ++i) {
      std::from_chars(number[i].data(), number[i].data() + number[i].size(), numbers[i]);
    }
    const auto below = disk_of(machine, numbers[0], numbers[1]);
    disk.is_nvme = disk.is_nvme && below && below->is_nvme;
    if (!below) continue;
    if (disk.raid.empty()) disk.raid = below->raid;
    disk.is_removable = disk.is_removable || below->is_removable;
    disk.is_virtual = disk.is_virtual || below->is_virtual;
  }
  return disk;
}

}  // namespace sluice::tools::cli
