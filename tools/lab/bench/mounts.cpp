// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/bench/mounts.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/mount_lines.hpp"
#include "tools/lab/bench/syscalls.hpp"

namespace sluice::tools::lab::bench {
namespace {

constexpr std::chrono::seconds kCommandLimit{60};
constexpr std::chrono::seconds kDaemonExitLimit{20};
constexpr const char* kTiers[] = {"nvme", "ssd", "hdd"};

bool is_mounted(const std::string& mount_point) {
  const auto mounts = mount_lines();
  return std::any_of(mounts.begin(), mounts.end(),
                     [&](const MountLine& mount) { return mount.point == mount_point; });
}

std::string make_tiers(const std::string& directory) {
  make_directory(directory);
  for (const char* tier : kTiers) make_directory(directory + "/" + tier);
  make_directory(directory + "/mnt");
  return directory + "/mnt";
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

}  // namespace

std::string filesystem_type(const std::string& path) {
  std::error_code error;
  const std::string real = std::filesystem::canonical(path, error).string();
  const auto mount = mount_holding(mount_lines(), real);
  return mount ? mount->type : "unknown";
}

ScratchDirectory::ScratchDirectory(const std::string& parent)
    : path_(make_temp_directory(std::filesystem::canonical(parent).string(), "fsbench.")) {}

ScratchDirectory::~ScratchDirectory() {
  if (path_.empty()) return;
  for (const MountLine& mount : mount_lines()) {
    if (!mount_holds(path_, mount.point)) continue;
    std::fprintf(stderr, "fsbench: cannot remove %s: %s is still mounted\n", path_.c_str(),
                 mount.point.c_str());
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

}  // namespace sluice::tools::lab::bench
