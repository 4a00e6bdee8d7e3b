// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/machine_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "base/small_file.hpp"

namespace sluice {
namespace {

// The number after `name` in a file of names and numbers.
std::optional<std::uint64_t> number_of(const std::string& path, const std::string& name) {
  std::istringstream file(text_of_file(path));
  std::string word, rest;
  for (std::uint64_t value = 0; file >> word >> value; std::getline(file, rest)) {
    if (word == name) return value;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::istringstream file(text_of_file(path));
  std::uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // also for "max", which is no limit
}

// The path of our control group, such as "/system.slice/sluice.service". Version 2 only.
std::string control_group(const std::string& root) {
  std::istringstream file(text_of_file(root + "proc/self/cgroup"));
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("0::/", 0) == 0) return line.substr(3);
  }
  return {};
}

}  // namespace

MachineMemory machine_memory(const std::string& root) {
  const auto all = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                   static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::string info = root + "proc/meminfo";
  MachineMemory out{all, all};
  if (const auto total = number_of(info, "MemTotal:")) out.total = *total << 10;
  if (const auto available = number_of(info, "MemAvailable:")) out.available = *available << 10;

  // A group also has the limits of those that it is in.
  std::string group = control_group(root);
  while (!group.empty()) {
    const std::string path = root + "sys/fs/cgroup" + group + "/";
    const auto limit = number_in(path + "memory.max"), used = number_in(path + "memory.current");
    if (limit && used) {
      const std::uint64_t cached = number_of(path + "memory.stat", "file").value_or(0);
      const std::uint64_t kept = *used - std::min(*used, cached);
      out.total = std::min(out.total, *limit);
      out.available = std::min(out.available, *limit - std::min(*limit, kept));
    }
    if (group == "/") break;
    group.resize(std::max<std::size_t>(group.rfind('/'), 1));
  }
  return out;
}

}  // namespace sluice
