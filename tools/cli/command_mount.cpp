// SPDX-License-Identifier: BSD-2-Clause
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/unique_fd.hpp"
#include "fs/control/options.hpp"
#include "fs/daemon.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/tier_access.hpp"

namespace sluice {
namespace {

constexpr HelpText kHelp{
    .usage = "sluice mount [--config FILE] [--tier NAME=PATH]... [options] MOUNTPOINT",
    .options = R"(  -c, --config FILE        read options and tiers from this TOML file
      --tier NAME=PATH[,KEY=VALUE]...
                           a tier, fastest first; these replace the file's tiers
                           keys: capacity, reserve, high_watermark, low_watermark,
                           threshold, moves
      --state DIR          database and log (default /var/lib/sluice/<pool id>)
  -o, --mount-options WORDS
                           for the kernel: ro, noatime, noexec, nosuid, nodev, ...
      --small-file SIZE    keep files up to this size in the page cache (128KiB)
      --half-life DURATION the score of a file halves in this time (7d); or never
      --heat-ignore NAMES  programs whose opens are no use of a file
      --heat-sample TIME   count use of a file that stays open this often (10min)
      --no-migrate         move files only when asked to
      --interval DURATION  between two passes that look for files to move (15min)
      --min-stay DURATION  of a file on a tier before heat may move it again (1h)
      --windows TIMES      when files may move by themselves: 22:00-06:00,12:00-13:00
      --bandwidth SIZE     that moves may write in a second (no limit)
      --verify             read each copy back before the original goes
      --no-gpu             serve host memory only, never load CUDA
      --gpu-max-concurrent-ops N
                           GPU requests on their way at once (32)
      --gpu-chunk SIZE     one piece of a large GPU request (4MiB)
      --gpu-threads N      that copy for GPUs (0: as many as fill the bus)
      --gpu-mapped-memory SHARE
                           page cache that GPUs may read themselves (25%)
      --gpu-host-memory SHARE
                           memory that clients may share with the daemon (50%)
      --no-gpu-cufile      never load libcufile
      --no-passthrough     serve every byte from the daemon
      --no-io-uring        take requests from /dev/fuse only
      --degraded           mount although a tier is missing
  -f, --foreground         stay attached to the terminal and log there
      --log-level LEVEL    trace, debug, info (default), warn, error
      --log-format FORMAT  text (default), json: an object a line
      --log-file FILE      default <state>/sluice.log
      --metrics WHERE      for Prometheus: off (default), unix, or 127.0.0.1:PORT
  -h, --help               this list; the whole description
)",
    .details = R"(
Presents the tiers as one namespace at MOUNTPOINT, and returns when the mount
answers (0) or has failed (1). It must be root: files are made in the name of
whoever asks. MOUNTPOINT may be left out if the config file names it.

Tiers belong below a directory that only root can enter (mode 0700): users reach the
files through the mount alone. Where they can enter a tier by its path, a warning says
so, with the command that closes it.

Each option is also SLUICE_<NAME> in the environment (SLUICE_SMALL_FILE) and
<name> in the file (small_file). Flags win over the environment, which wins over
the file. SLUICE_TIER holds tiers separated by ';'; SLUICE_CONFIG names the file.
Durations are numbers with a unit: s, min, h, d, w. Rules, which send files to a
tier by name, size and age, are in the file alone: see sluice.toml(5).

Examples:
  sluice mount --tier nvme=/nvme --tier ssd=/ssd --tier hdd=/hdd /mnt/pool
  sluice mount --tier nvme=/nvme,capacity=800GiB,high_watermark=85 \
               --tier hdd=/hdd --state /var/lib/sluice/pool /mnt/pool
  sluice mount --config /etc/sluice/pool.toml

Exit status: 0 mounted, 1 failed, 2 wrong usage or configuration.
)"};

// What the command line said, before it is laid over file and environment.
struct Flags {
  std::string config;
  std::string mountpoint;
  std::vector<std::string> tiers;
  std::vector<std::string> mount_options;
  std::map<std::string_view, std::string> values;  // of those given, by the name in the file
};

std::string flag_name(std::string_view option) {
  std::string flag(option);
  for (char& c : flag) c = c == '_' ? '-' : c;
  return flag;
}

void add_flags(Arguments& arguments, Flags& flags) {
  arguments.option("-c,--config", flags.config);
  arguments.option("--tier", flags.tiers);
  arguments.option("MOUNTPOINT", flags.mountpoint);
  for (const auto& spec : option_specs()) {
    const std::string name = flag_name(spec.name);
    const auto take = [&flags, &spec](const std::string& value) {
      flags.values[spec.name] = value;
    };
    if (spec.name == "mountpoint") continue;
    if (spec.name == "mount_options") {
      arguments.option("-o,--" + name, flags.mount_options);
    } else if (spec.kind == OptionSpec::Kind::Switch) {
      const std::string shorthand = spec.name == "foreground" ? "-f," : "";
      arguments.flag(shorthand + "--" + name, [take] { take("true"); });
      arguments.flag("--no-" + name, [take] { take("false"); });
    } else {
      arguments.option_call("--" + name, take);
    }
  }
}

Result<void> apply_flags(const Flags& flags, MountOptions& options) {
  for (const auto& spec : option_specs()) {
    const auto given = flags.values.find(spec.name);
    if (given == flags.values.end()) continue;
    const std::string flag = "--" + flag_name(spec.name);
    SLUICE_TRY(apply_option(spec, flag, given->second, options));
  }
  if (!flags.mountpoint.empty()) options.mountpoint = absolute_path(flags.mountpoint);
  if (!flags.mount_options.empty()) {
    options.mount_options.clear();
    for (const auto& words : flags.mount_options) options.mount_options += words + ",";
  }
  if (!flags.tiers.empty()) options.tiers.clear();
  for (const auto& tier : flags.tiers) {
    SLUICE_TRY(append_tier("--tier", tier, options));
  }
  return {};
}

Result<void> read_options(const Flags& flags, MountOptions& options) {
  std::string config = flags.config;
  if (const char* named = std::getenv("SLUICE_CONFIG"); config.empty() && named != nullptr) {
    config = named;
  }
  if (!config.empty()) {
    SLUICE_TRY(apply_config_file(config, options));
    // As in fstab, so that `mount -a` knows what is mounted already.
    options.source = absolute_path(config);
  }
  SLUICE_TRY(apply_environment([](const char* name) { return std::getenv(name); }, options));
  return apply_flags(flags, options);
}

dev_t device_of(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_dev : 0;
}

// True if the mount answers a question that only its daemon can have answered.
bool answers(const std::string& mountpoint, dev_t device_before) {
  struct statfs filesystem {};
  if (::statfs(mountpoint.c_str(), &filesystem) < 0) return false;
  return filesystem.f_type == FUSE_SUPER_MAGIC && device_of(mountpoint) != device_before;
}

std::string log_name(const MountOptions& options) {
  if (!options.log_file.empty()) return options.log_file;
  if (!options.state.empty()) return options.state + "/sluice.log";
  return "sluice.log in the pool's directory below /var/lib/sluice";
}

void replace_with_null(std::initializer_list<int> descriptors) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int descriptor : descriptors) ::dup2(null.get(), descriptor);
}

// The child's half: serves until unmounted. It says one thing to `report`: '+', or '-' and the
// reason.
int serve_in_background(const MountOptions& options, UniqueFd report) {
  ::setsid();
  // A parent that was interrupted must not take the mount with it when we write to the pipe.
  std::signal(SIGPIPE, SIG_IGN);
  if (::chdir("/") < 0) return kFailed;
  replace_with_null({STDIN_FILENO, STDOUT_FILENO});
  return run_daemon(options, [&](const Result<void>& mounted) {
    const std::string word = mounted ? "+" : "-" + mounted.error().text();
    // The reader may be gone; then there is nobody to tell.
    [[maybe_unused]] const auto written = ::write(report.get(), word.data(), word.size());
    report.reset();
    if (!log::take_over_stderr()) replace_with_null({STDERR_FILENO});
  });
}

std::string read_report(const UniqueFd& report) {
  std::string word;
  std::array<char, 4096> piece{};
  for (;;) {
    const ssize_t got = ::read(report.get(), piece.data(), piece.size());
    if (got > 0) word.append(piece.data(), static_cast<std::size_t>(got));
    if (got == 0 || (got < 0 && errno != EINTR)) return word;
  }
}

std::string describe_death(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    return "signal " + std::to_string(signal) + ", " + ::strsignal(signal);
  }
  return "exit code " + std::to_string(WEXITSTATUS(status));
}

int mount_in_background(const MountOptions& options) {
  const dev_t device_before = device_of(options.mountpoint);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) < 0) return fail("mount", std::strerror(errno));
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return fail("mount", std::string("can't fork: ") + std::strerror(errno));
  if (child == 0) {
    reader.reset();
    return serve_in_background(options, std::move(writer));
  }

  writer.reset();
  const std::string word = read_report(reader);
  if (word.empty()) {
    return fail("mount", "the daemon ended (" + describe_death(child) +
                             ") before the mount answered; see " + log_name(options));
  }
  if (word[0] != '+') {
    describe_death(child);  // it still has its database to close
    return fail("mount", word.substr(1));
  }
  if (!answers(options.mountpoint, device_before)) {
    return fail("mount", "the daemon is up but " + log::escaped(options.mountpoint) +
                             " does not answer; see " + log_name(options));
  }
  return kDone;
}

int mount_in_foreground(const MountOptions& options) {
  // No look from outside here: the thread that reports may be the one that would have to answer.
  return run_daemon(options, [&](const Result<void>& mounted) {
    if (!mounted) {
      fail("mount", mounted.error().text());
    } else {
      std::fprintf(stderr, "sluice: mounted at %s\n", log::escaped(options.mountpoint).c_str());
    }
  });
}

void warn_of_open_tiers(const MountOptions& options) {
  std::vector<NamedTier> tiers;
  for (const auto& tier : options.tiers) tiers.push_back({tier.name, tier.path});
  if (const std::string warning = open_tiers_warning(tiers); !warning.empty()) {
    std::fprintf(stderr, "sluice: mount: warning: %s\n", warning.c_str());
  }
}

}  // namespace

int command_mount(int argc, char** argv) {
  Arguments arguments;
  Flags flags;
  add_flags(arguments, flags);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;

  MountOptions options;
  // What trying again does not change is misuse, which the service is not restarted for.
  if (const auto read = read_options(flags, options); !read)
    return misuse("mount", read.error().text());
  if (options.mountpoint.empty()) {
    return misuse("mount", "MOUNTPOINT is required; see 'sluice mount --help'");
  }
  if (const auto checked = check_options(options); !checked)
    return misuse("mount", checked.error().text());
  if (::geteuid() != 0) {
    return fail("mount",
                "only root can mount, because files are made in the name of whoever asks; "
                "try: sudo sluice mount ...");
  }
  if (const auto checked = check_tiers(options); !checked)
    return fail("mount", checked.error().text());
  warn_of_open_tiers(options);
  return options.foreground ? mount_in_foreground(options) : mount_in_background(options);
}

}  // namespace sluice
