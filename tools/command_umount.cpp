// SPDX-License-Identifier: BSD-2-Clause
#include <dirent.h>
#include <poll.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/unique_fd.hpp"
#include "fs/client_process.hpp"
#include "fs/options.hpp"
#include "tools/commands.hpp"
#include "tools/mount_status.hpp"

namespace sluice {
namespace {

constexpr HelpText kHelp{
    .usage = "sluice umount [--lazy] MOUNTPOINT | --config FILE",
    .options =
        R"(  -l, --lazy         detach now, although files are open; the daemon ends after the last
  -c, --config FILE  the mount point that this TOML file names
  -h, --help         this list; the whole description
)",
    .details = R"(
Unmounts, then waits until the daemon has written and closed everything. What is
on the tiers stays there, as ordinary files. A mount whose daemon has died is
cleared away too.

Examples:
  sluice umount /mnt/pool
  fuser -vm /mnt/pool      who keeps it busy

Exit status: 0 unmounted, 1 failed, 2 wrong usage.
)"};

// A handle on process `pid` that a reused number can't confuse. Empty if it is gone, or if it is
// not one of ours: a daemon in another PID namespace tells a number that means nothing here.
UniqueFd open_daemon(pid_t pid) {
  if (pid <= 0) return {};
  UniqueFd daemon = open_process(pid);
  char target[4096];
  const std::string link = "/proc/" + std::to_string(pid) + "/exe";
  const ssize_t length = ::readlink(link.c_str(), target, sizeof target);
  if (length < 0) return {};
  const std::string_view exe(target, static_cast<std::size_t>(length));
  if (!exe.substr(exe.rfind('/') + 1).starts_with("sluice")) return {};
  return daemon;
}

// Whether the daemon has ended but for threads that wait for a filesystem that never answers
// (DescriptorTaker): they have nothing open of its files, and can't be ended.
bool only_hangs(pid_t pid) {
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task/";
  DIR* const directory = ::opendir(tasks.c_str());
  if (directory == nullptr) return false;
  bool result = true;
  while (const dirent* task = ::readdir(directory)) {
    std::ifstream file(tasks + task->d_name + "/stat");
    std::string stat;
    if (task->d_name[0] == '.' || !std::getline(file, stat)) continue;
    const bool has_ended = stat.find(") Z ") != std::string::npos;
    result = result && (has_ended || stat.find("(sluice-take)") != std::string::npos);
  }
  ::closedir(directory);
  return result;
}

void wait_for_exit(const UniqueFd& daemon, pid_t pid) {
  const bool show = ::isatty(STDERR_FILENO) == 1;
  pollfd ended{.fd = daemon.get(), .events = POLLIN, .revents = 0};
  bool shown = false;
  while (::poll(&ended, 1, 500) == 0) {
    if (only_hangs(pid)) break;
    if (!show) continue;
    std::fputs(shown ? "." : "waiting for the daemon to finish .", stderr);
    shown = true;
  }
  if (shown) std::fputc('\n', stderr);
}

std::string describe_failure(int code, const std::string& mountpoint) {
  const std::string where = log::escaped(mountpoint);
  switch (code) {
    case EBUSY:
      return where + " is busy; 'fuser -vm " + where +
             "' shows who uses it, --lazy detaches it all the same";
    case EPERM:
      return where + ": only root can unmount; try: sudo sluice umount " + where;
    case EINVAL:
      return where + " is not a mount point";
    default:
      return where + ": " + std::strerror(code);
  }
}

}  // namespace

int command_umount(int argc, char** argv) {
  Arguments arguments;
  std::string path;
  bool lazy = false;
  std::string config;
  arguments.flag("-l,--lazy", lazy);
  arguments.option("-c,--config", config);
  arguments.option("MOUNTPOINT", path);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  if (path.empty() == config.empty()) {
    return misuse("umount",
                  "either MOUNTPOINT or --config is required; see 'sluice umount --help'");
  }
  if (!config.empty()) {
    MountOptions options;
    if (const auto error = apply_config_file(config, options)) {
      return fail("umount", error->message);
    }
    if (options.mountpoint.empty())
      return fail("umount", log::escaped(config) + " names no mountpoint");
    path = options.mountpoint;
  }

  const std::string mountpoint = absolute_path(path);
  const auto status = mount_status(mountpoint);
  if (!status && status.error().code != ENOTCONN) {
    return fail("umount", describe_status_error(status.error(), mountpoint));
  }
  // Opened before the unmount, which is what makes the daemon go.
  UniqueFd daemon;
  const auto pid = status ? static_cast<pid_t>(number_of(*status, "pid")) : 0;
  if (status) daemon = open_daemon(pid);

  if (::umount2(mountpoint.c_str(), lazy ? MNT_DETACH : 0) < 0) {
    return fail("umount", describe_failure(errno, mountpoint));
  }
  // Only when the daemon is gone are its database and the tiers' files closed. A lazy unmount may
  // take days.
  if (daemon && !lazy) wait_for_exit(daemon, pid);
  return kDone;
}

}  // namespace sluice
