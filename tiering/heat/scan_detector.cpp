// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/heat/scan_detector.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/unique_fd.hpp"

namespace sluice {
namespace {

using std::chrono::seconds;

constexpr std::size_t kNameBytes = 15;  // TASK_COMM_LEN without the zero
constexpr seconds kIdle{60};
constexpr seconds kProcIsTrueFor{1};

// An opener is scanning if it opened at least kWalkFiles files for the first time, and fewer than
// one in kWalkOneIn of its opens was of a file that it had opened before.
constexpr std::uint32_t kWalkFiles = 256;
constexpr std::uint32_t kWalkOneIn = 4;

// Counts are halved at this limit, so that old behaviour (for example, reading everything once at
// start) does not outweigh present behaviour.
constexpr std::uint32_t kMostOpens = 4096;
static_assert(kMostOpens / 2 > kWalkFiles * kWalkOneIn, "halving must not end a walk");

// Calls `act` with each line of `text`, without the newline.
template <typename Act>
void each_line(std::string_view text, Act act) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    act(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

}  // namespace

ScanDetector::ScanDetector(Settings settings, const Clock& clock)
    : proc_(std::move(settings.proc)), clock_(clock) {
  for (std::string& entry : settings.ignored) {
    if (entry.empty()) continue;
    if (entry.front() == '/') {
      cgroups_.push_back(std::move(entry));
    } else {
      names_.push_back(entry.substr(0, kNameBytes));
    }
  }
  std::sort(names_.begin(), names_.end());
}

bool ScanDetector::counts(pid_t opener, bool opened_by_it_before) {
  if (opener <= 0) return true;
  const TimePoint now = clock_.monotonic();
  Set& set = set_of(opener);
  {
    MutexLock lock(set.mutex);
    Opener& entry = find(set, opener, now);
    entry.add(opened_by_it_before);
    if (now < entry.ignored_at + kProcIsTrueFor) return !entry.ignored && !entry.is_walking();
    entry.ignored_at = now;  // other threads use the old answer until the new one is known
  }
  // Not under the lock: reading /proc takes locks in the kernel.
  const bool ignored = is_ignored(opener);
  MutexLock lock(set.mutex);
  Opener& entry = find(set, opener, now);
  entry.ignored = ignored;
  entry.ignored_at = now;
  return !ignored && !entry.is_walking();
}

pid_t ScanDetector::process_of(pid_t thread) {
  if (thread <= 0) return thread;
  const TimePoint now = clock_.monotonic();
  Set& set = set_of(thread);
  {
    MutexLock lock(set.mutex);
    const Opener& entry = find(set, thread, now);
    if (now < entry.process_at + kProcIsTrueFor) return entry.process;
  }
  const pid_t process = look_up_process(thread);
  MutexLock lock(set.mutex);
  Opener& entry = find(set, thread, now);
  entry.process = process;
  entry.process_at = now;
  return process;
}

void ScanDetector::Opener::add(bool opened_by_it_before) {
  ++(opened_by_it_before ? known_files : new_files);
  if (new_files + known_files < kMostOpens) return;
  new_files /= 2;
  known_files /= 2;
}

bool ScanDetector::Opener::is_walking() const {
  return new_files >= kWalkFiles && known_files * kWalkOneIn < new_files + known_files;
}

ScanDetector::Opener& ScanDetector::find(Set& set, pid_t pid, TimePoint now) {
  Opener* oldest = &set.openers.front();
  for (Opener& entry : set.openers) {
    if (entry.pid == pid) {
      if (entry.last_seen + kIdle <= now) entry = Opener{.pid = pid};
      entry.last_seen = now;
      return entry;
    }
    if (entry.last_seen < oldest->last_seen) oldest = &entry;
  }
  *oldest = Opener{.pid = pid, .last_seen = now};
  return *oldest;
}

bool ScanDetector::is_ignored(pid_t pid) const {
  if (!names_.empty()) {
    std::string name = read_proc(pid, "comm");
    if (name.ends_with('\n')) name.pop_back();
    if (name.size() > kNameBytes) name.resize(kNameBytes);
    if (std::binary_search(names_.begin(), names_.end(), name)) return true;
  }
  if (cgroups_.empty()) return false;
  bool found = false;
  // "0::/system.slice/backup.service"; cgroup version 1 adds lines like "4:memory:/...".
  each_line(read_proc(pid, "cgroup"), [&](std::string_view line) {
    const std::size_t controllers = line.find(':');
    const std::size_t path = line.find(':', controllers + 1);
    if (controllers == std::string_view::npos || path == std::string_view::npos) return;
    found = found || std::any_of(cgroups_.begin(), cgroups_.end(), [&](const std::string& begin) {
              return line.substr(path + 1).starts_with(begin);
            });
  });
  return found;
}

pid_t ScanDetector::look_up_process(pid_t thread) const {
  constexpr std::string_view kField = "Tgid:\t";
  pid_t process = thread;
  each_line(read_proc(thread, "status"), [&](std::string_view line) {
    if (!line.starts_with(kField)) return;
    line.remove_prefix(kField.size());
    pid_t number = 0;
    const auto parsed = std::from_chars(line.data(), line.data() + line.size(), number);
    if (parsed.ec == std::errc{} && number > 0) process = number;
  });
  return process;
}

// The content of the file; empty if the process has ended.
std::string ScanDetector::read_proc(pid_t pid, const char* file) const {
  const std::string path = proc_ + "/" + std::to_string(pid) + "/" + file;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(4096, '\0');
  const ssize_t length = fd ? ::read(fd.get(), text.data(), text.size()) : 0;
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  return text;
}

}  // namespace sluice
