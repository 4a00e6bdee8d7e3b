// SPDX-License-Identifier: BSD-2-Clause
#include "base/process.hpp"

#include <dirent.h>
#include <unistd.h>

#include <string>

#include "base/small_file.hpp"

namespace sluice {

bool has_only_blocked_threads(pid_t pid) {
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task/";
  DIR* const directory = ::opendir(tasks.c_str());
  if (directory == nullptr) return false;
  bool result = true;
  while (const dirent* task = ::readdir(directory)) {
    if (task->d_name[0] == '.') continue;
    const std::string stat = text_of_file(tasks + task->d_name + "/stat");
    if (stat.empty()) continue;  // it has ended
    const auto is = [&](const std::string& state) { return stat.find(state) != std::string::npos; };
    const auto is_blocked = [&](const char* name) { return is("(" + std::string(name) + ") D "); };
    const bool has_ended = is(") Z ") || is(") X ");
    result = result && (has_ended || is_blocked(kTakerThread) || is_blocked(kTakeThread) ||
                        is_blocked(kNoticeThread));
  }
  ::closedir(directory);
  return result;
}

void close_all_but(int one) {
  if (one > 0) ::close_range(0, static_cast<unsigned>(one) - 1, 0);
  ::close_range(static_cast<unsigned>(one) + 1, ~0u, 0);
}

}  // namespace sluice
