// SPDX-License-Identifier: BSD-2-Clause
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/small_file.hpp"
#include "base/unique_fd.hpp"
#include "fs/control/option_table.hpp"
#include "fs/control/options.hpp"
#include "fs/daemon.hpp"
#include "fs/keeper/keeper.hpp"
#include "fs/keeper/keeper_link.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/tier_access.hpp"
#include "tools/common/option_texts.hpp"

namespace sluice::tools::cli {
namespace {

constexpr std::string_view kDetails = R"(
Presents the tiers as one namespace at MOUNTPOINT, and returns when the mount
answers (0) or has failed (1). Only root can mount, because the daemon creates files
as the user who asks for them. MOUNTPOINT may be omitted if the config file names it.

Tiers belong below a directory that only root can enter (mode 0700), so that users
reach the files through the mount alone. If users can enter a tier by its path, a
warning names the command that closes it.

Each option is also SLUICE_<NAME> in the environment (SLUICE_SMALL_FILE) and
<name> in the file (small_file). Flags override the environment, which overrides
the file. SLUICE_TIER holds tiers separated by ';'; SLUICE_CONFIG names the file;
SLUICE_DEBUG holds what --debug takes, separated by commas. Durations are numbers
with a unit: s, min, h, d, w. sluice.toml(5) describes all options, and the rules,
which send files to a tier by name, size and age and are in the file alone.

Examples:
  sluice mount --tier nvme=/nvme --tier ssd=/ssd --tier hdd=/hdd /mnt/pool
  sluice mount --tier nvme=/nvme,capacity=800GiB,high_watermark=85 \
               --tier hdd=/hdd --state /var/lib/sluice/pool /mnt/pool
  sluice mount --config /etc/sluice/pool.toml

Exit status: 0 mounted, 1 failed, 2 wrong usage or configuration.
)";

// The lines that are not in the table of options, around those that are.
std::string option_lines() {
  return R"(  -c, --config FILE        read options and tiers from this TOML file
      --tier NAME=PATH[,KEY=VALUE]...
                           a tier, fastest first; these replace the file's tiers
)" + tier_setting_lines() +
         mount_option_lines() +
         R"(      --debug NAME=VALUE   for comparisons and measurements; see sluice.toml(5)
  -h, --help               short help (-h) or full help (--help)
)";
}

// The command line, before it is laid over file and environment.
struct Flags {
  std::string config;
  std::string mountpoint;
  std::vector<std::string> tiers;
  std::vector<std::string> mount_options;
  std::vector<std::string> debug;
  std::map<std::string_view, std::string> values;  // of those given, by the name in the file
  std::string directory = absolute_path(".");      // that relative paths start at
};

void add_flag(Arguments& arguments, Flags& flags, const OptionSpec& spec) {
  const std::string flag = flag_name(spec);
  const auto take = [&flags, &spec](const std::string& value) { flags.values[spec.name] = value; };
  if (spec.name == "mountpoint") return;
  if (spec.name == "mount_options") {
    arguments.option("-o," + flag, flags.mount_options);
  } else if (spec.kind == OptionSpec::Kind::Switch) {
    arguments.flag((spec.name == "foreground" ? "-f," : "") + flag, [take] { take("true"); });
    arguments.flag("--no-" + flag.substr(2), [take] { take("false"); });
  } else {
    arguments.option_call(flag, take);
  }
}

void add_flags(Arguments& arguments, Flags& flags) {
  arguments.option("-c,--config", flags.config);
  arguments.option("--tier", flags.tiers);
  arguments.option("MOUNTPOINT", flags.mountpoint);
  arguments.option("--debug", flags.debug);
  for (const auto& spec : option_table()) {
    if (is_of_mount(spec)) add_flag(arguments, flags, spec);
  }
}

Result<void> apply_flags(const Flags& flags, MountOptions& options) {
  for (const auto& spec : option_table()) {
    const auto given = flags.values.find(spec.name);
    if (!is_of_mount(spec) || given == flags.values.end()) continue;
    SLUICE_TRY(apply_option(spec, flag_name(spec), given->second, options, flags.directory));
  }
  for (const auto& setting : flags.debug) SLUICE_TRY(apply_debug("--debug", setting, options));
  if (!flags.mountpoint.empty())
    options.mountpoint = absolute_path(flags.mountpoint, flags.directory);
  if (!flags.mount_options.empty()) {
    options.mount_options.clear();
    for (const auto& words : flags.mount_options) options.mount_options += words + ",";
  }
  if (!flags.tiers.empty()) options.tiers.clear();
  for (const auto& tier : flags.tiers) {
    SLUICE_TRY(append_tier("--tier", tier, options, flags.directory));
  }
  return {};
}

// If `text` is empty, it becomes that of the configuration file; otherwise it is used instead.
Result<void> read_options(const Flags& flags, std::string& text, MountOptions& options) {
  std::string config = flags.config;
  if (const char* named = std::getenv("SLUICE_CONFIG"); config.empty() && named != nullptr) {
    config = named;
  }
  if (!config.empty()) {
    if (text.empty()) text = SLUICE_TRY(read_config_file(config));
    SLUICE_TRY(apply_config_text(text, config, options));
    // As in fstab, so that `mount -a` knows what is mounted already.
    options.source = absolute_path(config);
  }
  SLUICE_TRY(apply_environment([](const char* name) { return std::getenv(name); }, options,
                               flags.directory));
  return apply_flags(flags, options);
}

Result<void> read_and_check(const Flags& flags, std::string& text, MountOptions& options) {
  SLUICE_TRY(read_options(flags, text, options));
  if (options.mountpoint.empty()) {
    return Error{EINVAL, "read the options", "MOUNTPOINT is required; see 'sluice mount --help'"};
  }
  return check_options(options);
}

// Gives the keeper the text of a valid configuration, for a daemon that is started after a crash:
// nobody may be there to correct the file by then.
void keep_configuration(KeeperLink& keeper, const std::string& text) {
  const UniqueFd file(::memfd_create("sluice-config", MFD_CLOEXEC));
  if (text.empty() || !file) return;
  if (::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()))
    keeper.hold("config", file.get());
}

// What keep_configuration() kept; empty if there is none, or if an error in the file can be
// reported to somebody.
std::string kept_configuration(const KeeperLink& keeper) {
  const auto kept = keeper.start().held.find("config");
  if (keeper.start().role != KeeperLink::Role::Successor || kept == keeper.start().held.end())
    return {};
  struct stat status {};
  if (::fstat(kept->second.get(), &status) < 0) return {};
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  const ssize_t got = ::pread(kept->second.get(), text.data(), text.size(), 0);
  return got == status.st_size ? text : "";
}

// Reads the same options once more, when the file may have changed. The daemon has left the
// directory that it was started in.
LiveOptions::Read reader_of(Flags flags, const MountOptions& options, KeeperLink* keeper) {
  if (options.source == MountOptions{}.source) return nullptr;
  flags.config = options.source;
  return [flags = std::move(flags), keeper]() -> Result<MountOptions> {
    MountOptions fresh;
    std::string text;
    SLUICE_TRY(read_and_check(flags, text, fresh));
    if (keeper != nullptr) keep_configuration(*keeper, text);
    return fresh;
  };
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

log::Format log_format(const MountOptions& options) {
  return options.log_format == "json" ? log::Format::Json : log::Format::Text;
}

void replace_with_null(std::initializer_list<int> descriptors) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int descriptor : descriptors) ::dup2(null.get(), descriptor);
}

// The daemon, started by a keeper.
int serve_for_keeper(const MountOptions& options, const std::string& text,
                     const LiveOptions::Read& read_again, KeeperLink& keeper) {
  if (!options.foreground && ::chdir("/") < 0) return kFailed;
  const auto ready = [&](const Result<void>& mounted) {
    if (!mounted) return keeper.failed(mounted.error().text());
    if (!options.foreground) {
      if (log::take_over_stderr()) {
        keeper.hold("log", STDERR_FILENO);
      } else {
        replace_with_null({STDERR_FILENO});
      }
    }
    keep_configuration(keeper, text);
    keeper.ready();
  };
  return run_daemon(options, read_again, ready, &keeper);
}

std::string own_executable() {
  std::array<char, 4096> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  return {path.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
}

std::vector<std::string> own_arguments() {
  std::vector<std::string> words;
  std::istringstream file(text_of_file("/proc/self/cmdline"));
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

using Started = std::function<void(const Result<void>& mounted)>;

// Serves until unmounted, in this process or in that of a daemon.
int serve(const MountOptions& options, const LiveOptions::Read& read_again, const Started& started,
          NamedDescriptors stored = {}) {
  if (!options.keeper) return run_daemon(options, read_again, started);
  return run_keeper({
      .executable = own_executable(),
      .arguments = own_arguments(),
      .crash_limit = static_cast<unsigned>(options.crash_limit),
      .detached = !options.foreground,
      .log_name = log_name(options),
      .log_format = log_format(options),
      .started = started,
      .held = std::move(stored),
  });
}

// The child's half. It says one thing to `report`: '+', or '-' and the reason.
int serve_in_background(const MountOptions& options, const LiveOptions::Read& read_again,
                        UniqueFd report) {
  ::setsid();
  // A parent that was interrupted must not take the mount with it when we write to the pipe.
  std::signal(SIGPIPE, SIG_IGN);
  // A keeper goes there by itself, after it has noted from where.
  if (!options.keeper && ::chdir("/") < 0) return kFailed;
  replace_with_null({STDIN_FILENO, STDOUT_FILENO});
  return serve(options, read_again, [&](const Result<void>& mounted) {
    const std::string word = mounted ? "+" : "-" + mounted.error().text();
    // Ignored: the parent process may be gone.
    [[maybe_unused]] const auto written = ::write(report.get(), word.data(), word.size());
    report.reset();
    if (!options.keeper && !log::take_over_stderr()) replace_with_null({STDERR_FILENO});
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
  return describe_end(status);
}

// Only once the pool is mounted: a directory that is refused as a tier need not be closed.
void warn_of_open_tiers(const MountOptions& options) {
  std::vector<NamedTier> tiers;
  for (const auto& tier : options.tiers) tiers.push_back({tier.name, tier.path});
  if (const std::string warning = open_tiers_warning(tiers); !warning.empty()) {
    std::fprintf(stderr, "sluice: mount: warning: %s\n", warning.c_str());
  }
}

int mount_in_background(const MountOptions& options, const LiveOptions::Read& read_again) {
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
    return serve_in_background(options, read_again, std::move(writer));
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
  warn_of_open_tiers(options);
  return kDone;
}

int mount_in_foreground(const MountOptions& options, const LiveOptions::Read& read_again,
                        NamedDescriptors stored) {
  if (options.keeper) {
    // For the keeper's messages. If stderr can't be written to, nobody could be told.
    [[maybe_unused]] const auto opened =
        log::start("", spdlog::level::from_str(options.log_level), log_format(options));
  }
  const auto started = [&](const Result<void>& mounted) {
    if (!mounted) {
      fail("mount", mounted.error().text());
    } else {
      std::fprintf(stderr, "sluice: mounted at %s\n", log::escaped(options.mountpoint).c_str());
      warn_of_open_tiers(options);
    }
  };
  // Does not access the mount: the thread that reports may be the one that would have to answer.
  return serve(options, read_again, started, std::move(stored));
}

}  // namespace

int command_mount(int argc, char** argv) {
  Arguments arguments;
  Flags flags;
  add_flags(arguments, flags);
  const std::string lines = option_lines();
  const HelpText help{
      .usage = "sluice mount [--config FILE] [--tier NAME=PATH]... [options] MOUNTPOINT",
      .options = lines,
      .details = kDetails};
  if (const auto code = arguments.parse(argc, argv, help)) return *code;

  MountOptions options;
  const auto keeper = KeeperLink::from_environment();
  // Exit code 2: trying again would not help, and systemd does not restart the service.
  std::string text;
  auto read = read_and_check(flags, text, options);
  if (std::string kept = !read && keeper ? kept_configuration(*keeper) : ""; !kept.empty()) {
    log::get().error("invalid configuration; using the last valid one: why={}",
                     log::escaped(read.error().text()));
    text = std::move(kept);
    options = {};
    read = read_and_check(flags, text, options);
  }
  if (!read) {
    if (keeper) keeper->failed(read.error().text());
    return keeper ? kUsage : misuse("mount", read.error().text());
  }
  const LiveOptions::Read read_again = reader_of(flags, options, keeper.get());
  if (keeper) return serve_for_keeper(options, text, read_again, *keeper);
  if (::geteuid() != 0) {
    return fail(
        "mount",
        "only root can mount, because the daemon creates files as the user who asks for them; "
        "try: sudo sluice mount ...");
  }
  NamedDescriptors stored = take_stored_descriptors();
  if (!options.keeper || !stored.contains("fuse") || !stored.contains("state")) stored.clear();
  // A mount without its daemon does not answer questions about its directory.
  if (stored.empty()) {
    if (const auto checked = check_tiers(options); !checked)
      return fail("mount", checked.error().text());
  }
  // In the foreground the daemon's log says it.
  if (const auto unused = unused_thresholds(options); !unused.empty() && !options.foreground)
    std::fprintf(stderr, "sluice: mount: note: %s\n", log::escaped(unused).c_str());
  return options.foreground ? mount_in_foreground(options, read_again, std::move(stored))
                            : mount_in_background(options, read_again);
}

}  // namespace sluice::tools::cli
