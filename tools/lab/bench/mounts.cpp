// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/bench/mounts.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <utility>

#include "base/small_file.hpp"
#include "tools/lab/bench/syscalls.hpp"

namespace sluice::tools::lab::bench {
namespace {

constexpr std::chrono::seconds kCommandLimit{60};
constexpr std::chrono::seconds kDaemonExitLimit{20};
constexpr const char* kTiers[] = {"nvme", "ssd", "hdd"};

struct MountEntry {
  std::string mount_point;
  std::string type;
};

// mountinfo escapes spaces, tabs, newlines and backslashes as \ooo.
std::string unescape(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      plain += static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

std::vector<MountEntry> mount_table() {
  std::vector<MountEntry> entries;
  std::istringstream file(text_of_file("/proc/self/mountinfo"));
  for (std::string line; std::getline(file, line);) {
    // id parent major:minor root MOUNT_POINT options [optional fields] - TYPE source options
    std::istringstream words(line);
    std::string word;
    MountEntry entry;
    for (int i = 0; i < 5; ++i) words >> word;
    entry.mount_point = unescape(word);
    while (words >> word && word != "-") continue;
    words >> entry.type;
    entries.push_back(entry);
  }
  return entries;
}

bool is_below(const std::string& path, const std::string& directory) {
  return directory == "/" || path == directory || path.starts_with(directory + "/");
}

bool is_mounted(const std::string& mount_point) {
  for (const MountEntry& entry : mount_table()) {
    if (entry.mount_point == mount_point) return true;
  }
  return false;
}

std::string make_tiers(const std::string& directory) {
  make_directory(directory);
  for (const char* tier : kTiers) make_directory(directory + "/" + tier);
  make_directory(directory + "/mnt");
  return directory + "/mnt";
}

Command plain_unmount(const std::string& mount_point) {
  if (::geteuid() == 0) return {"umount", mount_point};
  return {"fusermount3", "-u", mount_point};
}

Command lazy_unmount(const std::string& mount_point) {
  if (::geteuid() == 0) return {"umount", "-l", mount_point};
  return {"fusermount3", "-uz", mount_point};
}

bool succeeds(const Command& command) {
  try {
    run_within(command, kCommandLimit);
    return true;
  } catch (const Failure& failure) {
    std::fprintf(stderr, "fsbench: %s\n", failure.what());
    return false;
  }
}

pid_t sluice_pid(const std::string& binary, const std::string& mount_point) {
  const Command command{binary, "status", "--json", mount_point};
  const auto status = nlohmann::json::parse(run_within(command, kCommandLimit), nullptr, false);
  if (!status.is_object() || !status.contains("pid") || !status["pid"].is_number_integer()) {
    throw Failure(to_string(command) + ": no field \"pid\" in its answer");
  }
  return status["pid"].get<pid_t>();
}

// The process whose arguments end in `mount_point`. user.mergerfs.pid cannot be used: it is the
// process before mergerfs went into the background.
std::optional<pid_t> mergerfs_pid(const std::string& mount_point) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const pid_t pid = static_cast<pid_t>(std::atoi(entry.path().filename().c_str()));
    if (pid <= 0) continue;
    const std::string arguments = text_of_file(entry.path() / "cmdline");
    if (arguments.ends_with(std::string(1, '\0') + mount_point + '\0')) return pid;
  }
  return std::nullopt;
}

// "mergerfs version: 2.33.5" is too old: it refuses to start with unknown options.
bool mergerfs_has_passthrough() {
  const std::string answer = run_within({"mergerfs", "-V"}, kCommandLimit);
  const std::size_t digit = answer.find_first_of("0123456789");
  int major = 0;
  int minor = 0;
  if (digit == std::string::npos) return false;
  if (std::sscanf(answer.c_str() + digit, "%d.%d", &major, &minor) != 2) return false;
  return std::pair(major, minor) >= std::pair(2, 41);
}

}  // namespace

std::string filesystem_type(const std::string& path) {
  std::error_code error;
  const std::string real = std::filesystem::canonical(path, error).string();
  MountEntry best;
  for (const MountEntry& entry : mount_table()) {
    // "Not shorter", because of two mounts at the same point the later one hides the other.
    if (is_below(real, entry.mount_point) && entry.mount_point.size() >= best.mount_point.size())
      best = entry;
  }
  return best.type.empty() ? "unknown" : best.type;
}

ScratchDirectory::ScratchDirectory(const std::string& parent)
    : path_(make_temp_directory(std::filesystem::canonical(parent).string(), "fsbench.")) {}

ScratchDirectory::~ScratchDirectory() {
  if (path_.empty()) return;
  for (const MountEntry& entry : mount_table()) {
    if (!is_below(entry.mount_point, path_)) continue;
    std::fprintf(stderr, "fsbench: cannot remove %s: %s is still mounted\n", path_.c_str(),
                 entry.mount_point.c_str());
    return;
  }
  std::error_code error;
  std::filesystem::remove_all(path_, error);
  if (error)
    std::fprintf(stderr, "fsbench: remove %s: %s\n", path_.c_str(), error.message().c_str());
}

Mount::Mount(Command mount, Command unmount, std::string mount_point)
    : mount_(std::move(mount)), unmount_(std::move(unmount)), mount_point_(std::move(mount_point)) {
  try {
    run_within(mount_, kCommandLimit);
    for (int tries = 0; !is_mounted(mount_point_); ++tries) {
      if (tries == 100)
        throw Failure(to_string(mount_) + ": the command succeeded, but nothing is mounted");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  } catch (...) {
    this->unmount();
    throw;
  }
}

Mount::~Mount() { unmount(); }

void Mount::set_daemon(pid_t pid) {
  pid_ = pid;
  process_.emplace(pid);
}

void Mount::unmount() noexcept {
  try {
    // A command of the measuring process that is ending can keep the mount busy for a short time.
    for (int tries = 0; is_mounted(mount_point_) && tries < 5; ++tries) {
      if (tries > 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
      succeeds(unmount_);
    }
    if (is_mounted(mount_point_)) {
      std::fprintf(stderr, "fsbench: cannot unmount %s; detaching it\n", mount_point_.c_str());
      succeeds(lazy_unmount(mount_point_));
    }
    if (process_ && !process_->wait_ended(kDaemonExitLimit)) {
      std::fprintf(stderr,
                   "fsbench: the daemon of %s (pid %d) did not end after the unmount; killing it\n",
                   mount_point_.c_str(), static_cast<int>(*pid_));
      process_->kill();
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fsbench: unmount %s: %s\n", mount_point_.c_str(), error.what());
  }
}

std::unique_ptr<Mount> mount_sluice(const std::string& binary, const std::string& directory,
                                    const std::vector<std::string>& flags) {
  const std::string mount_point = make_tiers(directory);
  Command command{binary, "mount"};
  for (const char* tier : kTiers) {
    command.insert(command.end(), {"--tier", std::string(tier) + "=" + directory + "/" + tier});
  }
  command.insert(command.end(), {"--state", directory + "/state"});
  command.insert(command.end(), flags.begin(), flags.end());
  command.push_back(mount_point);
  auto mount =
      std::make_unique<Mount>(command, Command{binary, "umount", mount_point}, mount_point);
  mount->set_daemon(sluice_pid(binary, mount_point));
  return mount;
}

std::unique_ptr<Mount> mount_mergerfs(const std::string& directory) {
  const std::string mount_point = make_tiers(directory);
  std::string branches;
  for (const char* tier : kTiers)
    branches += (branches.empty() ? "" : ":") + directory + "/" + tier;
  std::string options =
      "cache.files=auto-full,cache.attr=120,cache.entry=120,cache.negative_entry=120,"
      "cache.readdir=true,cache.statfs=10,async_read=true,category.create=ff,dropcacheonclose="
      "false";
  if (mergerfs_has_passthrough()) options += ",passthrough.io=rw";
  auto mount = std::make_unique<Mount>(Command{"mergerfs", "-o", options, branches, mount_point},
                                       plain_unmount(mount_point), mount_point);
  if (const auto pid = mergerfs_pid(mount_point)) mount->set_daemon(*pid);
  return mount;
}

}  // namespace sluice::tools::lab::bench
