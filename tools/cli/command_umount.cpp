// SPDX-License-Identifier: BSD-2-Clause
#include <poll.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/process.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "fs/control/options.hpp"
#include "fs/gpu/client_process.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/mount_holders.hpp"
#include "tools/cli/stuck_mount.hpp"
#include "tools/cli/subprocess.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/mounts.hpp"

namespace sluice::tools::cli {
namespace {

constexpr HelpText kHelp{
    .usage = "sluice umount [--lazy] [--timeout TIME] MOUNTPOINT | --config FILE",
    .options =
        R"(  -l, --lazy         detach now even if files are open; the daemon ends when they are closed
      --timeout TIME how long to wait for the daemon: 30s, 5min (1min if the mount is in use
                     in another mount namespace, otherwise no limit)
  -c, --config FILE  unmount the mount point of this TOML file
  -h, --help         short help (-h) or full help (--help)
)",
    .details = R"(
Unmounts the pool, then waits until the daemon has written and closed everything. The
files stay on the tiers as ordinary files. It also removes a mount whose daemon has
died.

A container, a service or 'unshare -m' may have a copy of the mount in its own mount
namespace. The daemon runs until these copies are unmounted, too. After 5 s the command
lists the processes and their open files, and how to unmount the copies. After
--timeout it fails: the pool is unmounted here, and the daemon ends when the last copy
is gone. With --lazy it does not wait.

A mount that does not answer for 3 s is stuck, and so is one whose daemon uses a directory
of the mount itself. If its daemon was stopped (SIGSTOP), it is continued. Otherwise the
mount is removed and the daemon ended, if necessary with SIGKILL: programs that wait for
it get errors, and what was written stays. While programs have files open there, this
needs --lazy.

Examples:
  sluice umount /mnt/pool
  sluice umount --timeout 5min /mnt/pool
  fuser -vm /mnt/pool      list the processes that use the mount

Exit status: 0 unmounted, 1 failed, 2 wrong usage.
)"};

// How long a mount may take to answer. Its daemon answers at once, whatever else it does.
constexpr std::chrono::seconds kPatience{3};

// A pidfd of the daemon `pid`, safe against reuse of the number. Empty if the process is gone or is
// not sluice: a daemon in another PID namespace reports a number that is not valid here.
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

bool is_stuck(const Result<nlohmann::ordered_json>& status) {
  return !status && status.error().code == ETIMEDOUT;
}

// The daemon and mount to wait for after the unmount.
struct Unmounted {
  UniqueFd process;  // what to wait for: the keeper, which ends last, or the daemon if it has none
  pid_t keeper = 0;
  pid_t pid = 0;                  // of the daemon; 0: none is known
  unsigned major = 0, minor = 0;  // the mount's device number; 0: unknown
};

// Describes the processes that still use the mount in other mount namespaces.
std::string holders_text(const Unmounted& unmounted) {
  if (unmounted.minor == 0) return {};
  std::string out;
  for (const auto& holder : mount_holders(unmounted.major, unmounted.minor)) out += to_text(holder);
  return out;
}

void say_continued(pid_t pid) {
  std::fprintf(stderr, "sluice: umount: the daemon (process %d) was stopped; it continues\n", pid);
}

// Waits for the daemon. Returns why it gave up; nothing if the daemon has ended.
std::optional<std::string> wait_for_exit(Unmounted& unmounted,
                                         std::optional<std::chrono::seconds> limit) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds kReportAfter{5}, kInUseLimit{60};
  const bool show = ::isatty(STDERR_FILENO) == 1;
  const auto start = Clock::now();
  pollfd ended{.fd = unmounted.process.get(), .events = POLLIN, .revents = 0};
  bool shown = false;
  std::string holders, told;
  std::optional<DiskWait> disk(unmounted.pid);
  std::optional<std::string> problem;
  while (!problem && ::poll(&ended, 1, 500) == 0) {
    // If the daemon was killed, the keeper starts another, which finishes what was begun.
    if (const pid_t now = daemon_of(unmounted.keeper); now != 0 && now != unmounted.pid) {
      unmounted.pid = now;
      disk.emplace(now);
    }
    if (unmounted.keeper == 0 && has_only_blocked_threads(unmounted.pid)) break;
    if (continue_if_stopped(unmounted.pid)) say_continued(unmounted.pid);
    continue_if_stopped(unmounted.keeper);
    const auto waited = Clock::now() - start;
    if (waited >= std::min(kReportAfter, limit.value_or(kReportAfter)))
      holders = holders_text(unmounted);
    if (!holders.empty() && holders != told) {
      if (shown) std::fputc('\n', stderr);
      shown = false;
      std::fprintf(stderr, "sluice: umount: unmounted here, but still in use elsewhere:\n%s",
                   holders.c_str());
      told = holders;
    }
    if (const auto thread = disk->look()) {
      problem = "unmounted, but the daemon (process " + std::to_string(unmounted.pid) +
                ") waits for a disk that does not answer (thread " + *thread +
                "); it ends when the disk does; 'dmesg' may say which";
    } else if (waited >=
               limit.value_or(holders.empty() ? std::chrono::hours(24 * 365) : kInUseLimit)) {
      problem =
          "the daemon (process " + std::to_string(unmounted.pid) + ") has not ended within " +
          format_duration(std::chrono::duration_cast<std::chrono::seconds>(waited)) + ": " +
          (holders.empty() ? "it is still writing, see its log; use a longer --timeout, or let "
                             "it end by itself"
                           : "the pool is unmounted here but still in use elsewhere, see above; "
                             "the daemon ends after that, or at once with: kill " +
                                 std::to_string(unmounted.pid));
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
             "' shows the processes that use it, --lazy detaches it anyway";
    case EPERM:
      return where + ": only root can unmount; try: sudo sluice umount " + where;
    case EINVAL:
      return where + " is not a mount point";
    default:
      return where + ": " + std::strerror(code);
  }
}

// Says and does `continue_if_stopped` for both. Returns whether one of them was stopped.
bool continue_all(const MountServer& server) {
  const bool keeper = continue_if_stopped(server.keeper);
  const bool daemon = continue_if_stopped(server.daemon);
  if (daemon) say_continued(server.daemon);
  return keeper || daemon;
}

// The mount at `mountpoint`, found without accessing it.
std::optional<MountEntry> find_mount(const std::string& mountpoint) {
  const std::string point = absolute_path(mountpoint.substr(mountpoint.rfind('/') + 1),
                                          real_path(parent_path(mountpoint)));
  std::optional<MountEntry> found;
  for (const auto& mount : mount_table()) {
    if (mount.point == point) found = mount;  // the last one lies on top
  }
  return found;
}

// Whether a program has a file of the mount mapped, or may have: the list of a program that waits
// for the mount can block, so another process reads it.
bool is_mapped(const MountEntry& mount) {
  char device[32];
  std::snprintf(device, sizeof device, " %02x:%02x ", mount.major, mount.minor);
  const auto found =
      run_program({"sh", "-c", std::string("grep -lsF '") + device + "' /proc/[0-9]*/maps"},
                  std::chrono::seconds(2));
  return found.code < 0 || !found.out.empty();
}

// Removes a mount that does not answer, and its daemon. Killing that is safe: what it has
// acknowledged is on the tiers, and the keeper starts another, which sees that the mount is gone,
// finishes what was begun and ends.
int end_stuck(const MountEntry& mount, const MountServer& server, bool lazy) {
  const std::string where = log::escaped(mount.point);
  std::string open;
  for (const auto& holder : mount_holders(mount.major, mount.minor)) {
    for (const std::string& each : holder.open) open += "  open by " + each + "\n";
  }
  if (!lazy && open.empty() && is_mapped(mount)) {
    return fail("umount", where +
                              " does not answer, and programs have files of it mapped; --lazy "
                              "removes it, and they get errors");
  }
  if (!lazy && !open.empty()) {
    std::fputs(open.c_str(), stderr);
    return fail("umount", where +
                              " does not answer, and programs have files open there, see "
                              "above; --lazy removes it, and they get errors");
  }
  const UniqueFd daemon = open_daemon(server.daemon), keeper = open_daemon(server.keeper);
  // Forced: a program that waits for an answer, as the one that asked for the status does, would
  // keep it busy.
  if (::umount2(mount.point.c_str(), MNT_FORCE | MNT_DETACH) < 0)
    return fail("umount", describe_failure(errno, mount.point));
  std::fprintf(stderr, "sluice: umount: %s did not answer and was removed\n", where.c_str());
  constexpr int kOrderlyMs = 1000, kEndMs = 2000, kKeeperMs = 10'000;
  const auto ends_within = [](const UniqueFd& process, int milliseconds) {
    pollfd ended{.fd = process.get(), .events = POLLIN, .revents = 0};
    return !process || ::poll(&ended, 1, milliseconds) > 0;
  };
  if (!ends_within(daemon, kOrderlyMs)) {
    std::fprintf(stderr, "sluice: umount: its daemon (process %d) did not end and was killed\n",
                 server.daemon);
    ::syscall(SYS_pidfd_send_signal, daemon.get(), SIGKILL, nullptr, 0);
  }
  const bool daemon_ended = ends_within(daemon, kEndMs);
  if (daemon_ended && ends_within(keeper, kKeeperMs)) return kDone;
  return fail("umount", (daemon_ended ? "the keeper (process " + std::to_string(server.keeper)
                                      : "the daemon (process " + std::to_string(server.daemon)) +
                            ") has not ended yet; perhaps it waits for a disk that does not "
                            "answer: 'dmesg' may say which");
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
    if (!limit) return misuse("umount", "--timeout must be a time like 30s or 5min");
  }
  if (!config.empty()) {
    MountOptions options;
    if (const auto read = apply_config_file(config, options); !read) {
      return fail("umount", read.error().text());
    }
    if (options.mountpoint.empty())
      return fail("umount", log::escaped(config) + " has no mountpoint");
    path = options.mountpoint;
  }

  const std::string mountpoint = absolute_path(path);
  auto status = mount_status_within(mountpoint, kPatience);
  if (const auto mount = is_stuck(status) ? find_mount(mountpoint) : std::nullopt;
      mount && mount->is_sluice) {
    const MountServer server = server_of(mount->minor);
    if (continue_all(server)) status = mount_status_within(mountpoint, kPatience);
    if (is_stuck(status)) return end_stuck(*mount, server, lazy);
  }
  // A daemon that has a directory of its own mount open, because a part of the mount was mounted
  // into a tier, would wait for itself for ever.
  if (const auto mount = status ? find_mount(real_path(mountpoint)) : std::nullopt;
      mount && mount->is_sluice) {
    const MountServer server = server_of(mount->minor);
    if (server.daemon > 0 && has_open_on(server.daemon, mount->major, mount->minor))
      return end_stuck(*mount, server, lazy);
  }
  if (!status && status.error().code != ENOTCONN) {
    return fail("umount", describe_status_error(status.error(), mountpoint));
  }
  // Before the unmount, which makes the daemon end.
  Unmounted unmounted;
  unmounted.pid = status ? static_cast<pid_t>(number_of(*status, "pid")) : 0;
  if (status) {
    unmounted.keeper = static_cast<pid_t>(number_of(*status, "keeper"));
    unmounted.process = open_daemon(unmounted.keeper);
    if (!unmounted.process) {
      unmounted.keeper = 0;
      unmounted.process = open_daemon(unmounted.pid);
    }
  }
  const std::string point = status ? real_path(mountpoint) : mountpoint;
  for (const auto& mount : mount_table()) {
    if (mount.point != point) continue;
    unmounted.major = mount.major;
    unmounted.minor = mount.minor;
  }

  if (::umount2(mountpoint.c_str(), lazy ? MNT_DETACH : 0) < 0) {
    return fail("umount", describe_failure(errno, mountpoint));
  }
  // The database and the files on the tiers are closed only when the daemon has ended. A lazy
  // unmount may take days.
  if (unmounted.process && !lazy) {
    if (const auto problem = wait_for_exit(unmounted, limit)) return fail("umount", *problem);
  }
  return kDone;
}

}  // namespace sluice::tools::cli
