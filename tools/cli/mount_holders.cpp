// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/mount_holders.hpp"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "base/log.hpp"
#include "base/mount_lines.hpp"
#include "base/small_file.hpp"
#include "tools/common/output.hpp"

namespace sluice::tools::cli {
namespace {

// Empty if it can't be read.
std::string link_target(const std::string& path) {
  char target[4096];
  const ssize_t length = ::readlink(path.c_str(), target, sizeof target);
  return length < 0 ? "" : std::string(target, static_cast<std::size_t>(length));
}

std::vector<std::string> names_of(const std::string& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(directory.c_str()), ::closedir);
  while (const dirent* entry = stream ? ::readdir(stream.get()) : nullptr) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  return names;
}

std::string directory_of(pid_t pid) { return "/proc/" + std::to_string(pid); }

std::string command_of(pid_t pid) {
  std::string name = text_of_file(directory_of(pid) + "/comm");
  if (name.ends_with('\n')) name.pop_back();
  return log::escaped(name);
}

// The processes of each mount namespace, in order of their numbers.
std::map<std::string, std::set<pid_t>> processes_by_namespace() {
  std::map<std::string, std::set<pid_t>> out;
  for (const std::string& name : names_of("/proc")) {
    pid_t pid = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size()) continue;
    const std::string space = link_target(directory_of(pid) + "/ns/mnt");
    if (!space.empty()) out[space].insert(pid);
  }
  return out;
}

struct Mounted {
  std::string id;  // what /proc/PID/fdinfo calls mnt_id
  std::string point;
};

std::vector<Mounted> mounts_in(pid_t pid, unsigned major, unsigned minor) {
  std::vector<Mounted> out;
  std::istringstream lines(text_of_file(directory_of(pid) + "/mountinfo"));
  for (std::string line; std::getline(lines, line);) {
    const auto parsed = parse_mount_lines(line);
    if (parsed.empty() || parsed[0].major != major || parsed[0].minor != minor) continue;
    out.push_back({line.substr(0, line.find(' ')), parsed[0].point});
  }
  return out;
}

void find_open_files(pid_t pid, const Mounted& mounted, std::vector<std::string>& open) {
  const std::string who = std::to_string(pid) + " (" + command_of(pid) + "): ";
  const auto add = [&](const std::string& path) {
    if (open.size() < MountHolder::kMostShown) open.push_back(who + log::escaped(path));
  };
  const std::string directory = directory_of(pid);
  const std::string current = link_target(directory + "/cwd");
  if (current == mounted.point || current.starts_with(mounted.point + "/")) add(current);
  for (const std::string& fd : names_of(directory + "/fdinfo")) {
    std::istringstream lines(text_of_file(directory + "/fdinfo/" + fd));
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("mnt_id:") && line.substr(line.find_last_of(" \t") + 1) == mounted.id) {
        add(link_target(directory + "/fd/" + fd));
      }
    }
  }
}

}  // namespace

std::vector<MountHolder> mount_holders(unsigned major, unsigned minor) {
  std::vector<MountHolder> holders;
  const std::string here = link_target("/proc/self/ns/mnt");
  for (const auto& [space, processes] : processes_by_namespace()) {
    const pid_t first = *processes.begin();
    for (const Mounted& mounted : mounts_in(first, major, minor)) {
      MountHolder holder{mounted.point, space == here, first, command_of(first),
                         processes.size() - 1};
      for (const pid_t pid : processes) find_open_files(pid, mounted, holder.open);
      holders.push_back(std::move(holder));
    }
  }
  return holders;
}

std::string to_text(const MountHolder& holder) {
  std::string out;
  if (holder.is_here) {
    out = "it is also mounted at " + log::escaped(holder.point) + "; run: umount " +
          shell_word(holder.point) + "\n";
  } else {
    const std::string pid = std::to_string(holder.pid);
    out = "process " + pid + " (" + holder.command + ")" +
          (holder.others == 0 ? "" : " and " + std::to_string(holder.others) + " more") +
          " in another mount namespace, where it is mounted at " + log::escaped(holder.point) +
          "; end the process, or run: nsenter -t " + pid + " -m umount " +
          shell_word(holder.point) + "\n";
  }
  for (const std::string& each : holder.open) out += "  open by " + each + "\n";
  return out;
}

}  // namespace sluice::tools::cli
