// SPDX-License-Identifier: BSD-2-Clause
#include <dirent.h>
#include <poll.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "fs/control/options.hpp"
#include "fs/gpu/client_process.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/mount_holders.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/mounts.hpp"

namespace sluice {
namespace {

constexpr HelpText kHelp{
    .usage = "sluice umount [--lazy] [--timeout TIME] MOUNTPOINT | --config FILE",
    .options =
        R"(  -l, --lazy         detach now, although files are open; the daemon ends after the last
      --timeout TIME the most to wait for the daemon: 30s, 5min (1min if the mount is held
                     elsewhere, else no limit)
  -c, --config FILE  the mount point that this TOML file names
  -h, --help         this list; the whole description
)",
    .details = R"(
Unmounts, then waits until the daemon has written and closed everything. What is
on the tiers stays there, as ordinary files. A mount whose daemon has died is
cleared away too.

A container, a service or 'unshare -m' may have the mount in a mount namespace of its
own, where it stays, and the daemon with it. After 5 s the command says which
processes those are and what they have open, and how to unmount it there. It fails if
they still have the mount after --timeout: it is unmounted here then, and the daemon
ends by itself when the last of them is gone. With --lazy it does not wait.

Examples:
  sluice umount /mnt/pool
  sluice umount --timeout 5min /mnt/pool
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

// What is to be waited for after the unmount.
struct Waiting {
  UniqueFd daemon;
  pid_t pid = 0;
  unsigned major = 0, minor = 0;  // the mount's device number; 0: not known
};

std::string held_by(const Waiting& waiting) {
  if (waiting.minor == 0) return {};
  std::string out;
  for (const auto& holder : mount_holders(waiting.major, waiting.minor)) out += to_text(holder);
  return out;
}

// Returns why it gave up; nothing if the daemon has ended.
std::optional<std::string> wait_for_exit(const Waiting& waiting,
                                         std::optional<std::chrono::seconds> limit) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds kPatience{5}, kHeldLimit{60};
  const bool show = ::isatty(STDERR_FILENO) == 1;
  const auto start = Clock::now();
  pollfd ended{.fd = waiting.daemon.get(), .events = POLLIN, .revents = 0};
  bool shown = false;
  std::string holders, told;
  std::optional<std::string> problem;
  while (!problem && ::poll(&ended, 1, 500) == 0) {
    if (only_hangs(waiting.pid)) break;
    const auto waited = Clock::now() - start;
    if (waited >= std::min(kPatience, limit.value_or(kPatience))) holders = held_by(waiting);
    if (!holders.empty() && holders != told) {
      if (shown) std::fputc('\n', stderr);
      shown = false;
      std::fprintf(stderr, "sluice: umount: unmounted here, but still in use elsewhere:\n%s",
                   holders.c_str());
      told = holders;
    }
    if (waited >= limit.value_or(holders.empty() ? std::chrono::hours(24 * 365) : kHeldLimit)) {
      problem = "the daemon (process " + std::to_string(waiting.pid) + ") has not ended within " +
                format_duration(std::chrono::duration_cast<std::chrono::seconds>(waited)) + ": " +
                (holders.empty() ? "it is still writing, see its log; wait for it with a longer "
                                   "--timeout, or let it end by itself"
                                 : "the mount is gone here but held elsewhere, see above; it ends "
                                   "when that is over, or at once by: kill " +
                                       std::to_string(waiting.pid));
    } else if (show) {
      std::fputs(shown ? "." : "waiting for the daemon to finish .", stderr);
      shown = true;
    }
  }
  if (shown) std::fputc('\n', stderr);
  return problem;
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
  std::string config, timeout;
  arguments.flag("-l,--lazy", lazy);
  arguments.option("--timeout", timeout);
  arguments.option("-c,--config", config);
  arguments.option("MOUNTPOINT", path);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  if (path.empty() == config.empty()) {
    return misuse("umount",
                  "either MOUNTPOINT or --config is required; see 'sluice umount --help'");
  }
  std::optional<std::chrono::seconds> limit;
  if (!timeout.empty()) {
    // A number alone is seconds, as for timeout(1).
    const bool has_unit = timeout.find_first_not_of("0123456789.") != std::string::npos;
    limit = parse_duration(has_unit ? timeout : timeout + "s");
    if (!limit) return misuse("umount", "--timeout takes a time: 30s, 5min");
  }
  if (!config.empty()) {
    MountOptions options;
    if (const auto read = apply_config_file(config, options); !read) {
      return fail("umount", read.error().text());
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
  // Looked at before the unmount, which is what makes the daemon go.
  Waiting waiting;
  waiting.pid = status ? static_cast<pid_t>(number_of(*status, "pid")) : 0;
  if (status) waiting.daemon = open_daemon(waiting.pid);
  const std::string point = status ? real_path(mountpoint) : mountpoint;
  for (const auto& mount : mount_table()) {
    if (mount.point != point) continue;
    waiting.major = mount.major;
    waiting.minor = mount.minor;
  }

  if (::umount2(mountpoint.c_str(), lazy ? MNT_DETACH : 0) < 0) {
    return fail("umount", describe_failure(errno, mountpoint));
  }
  // Only when the daemon is gone are its database and the tiers' files closed. A lazy unmount may
  // take days.
  if (waiting.daemon && !lazy) {
    if (const auto problem = wait_for_exit(waiting, limit)) return fail("umount", *problem);
  }
  return kDone;
}

}  // namespace sluice
