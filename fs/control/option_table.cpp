// SPDX-License-Identifier: BSD-2-Clause
#include "fs/control/option_table.hpp"

#include <algorithm>
#include <array>
#include <cctype>

namespace sluice {
namespace {

using Group = OptionSpec::Group;
using Kind = OptionSpec::Kind;

template <typename Owner, typename T>
Owner owner_of(T Owner::*);

template <auto Member>
Result<void> set(const OptionSpec& spec, const OptionValue& value, const std::string& base,
                 OptionTarget target) {
  auto& member = std::get<decltype(owner_of(Member))*>(target)->*Member;
  if constexpr (requires { member.emplace(); }) {
    return read_value(spec, value, base, member.emplace());
  } else {
    return read_value(spec, value, base, member);
  }
}

template <auto Member>
std::string text(const OptionSpec& spec, OptionSource source) {
  const auto& member = std::get<const decltype(owner_of(Member))*>(source)->*Member;
  if constexpr (requires { member.value(); }) {
    return member ? value_text(spec, *member) : std::string(spec.fallback);
  } else {
    return value_text(spec, member);
  }
}

template <auto Member>
bool copy(OptionSource source, OptionTarget target) {
  const auto& from = std::get<const decltype(owner_of(Member))*>(source)->*Member;
  auto& to = std::get<decltype(owner_of(Member))*>(target)->*Member;
  if (to == from) return false;
  to = from;
  return true;
}

template <auto Member>
constexpr OptionMember of{set<Member>, text<Member>, copy<Member>};

// Groups are contiguous. "required" as the default: packaging/sluice.toml shows the key without #.
constexpr std::array kTable{
    OptionSpec{
        .group = Group::Mount,
        .name = "mountpoint",
        .kind = Kind::Path,
        .member = of<&MountOptions::mountpoint>,
        .fallback = "required",
        .help = "where the pool appears; on the command line it is the last argument",
        .details = "Where the pool appears: an existing directory outside the tiers. "
                   "The command line may name another.",
        .example = "/mnt/pool",
    },
    OptionSpec{
        .group = Group::Mount,
        .name = "state",
        .kind = Kind::Path,
        .member = of<&MountOptions::state>,
        .fallback = "/var/lib/sluice/<pool id>",
        .help = "directory of the database and the log",
        .details = "Directory of the database (heat, unfinished operations) and of the log. "
                   "If it is lost, the access counts are lost, but no file is.",
        .example = "/var/lib/sluice/main",
        .placeholder = "DIR",
    },
    OptionSpec{
        .group = Group::Mount,
        .name = "mount_options",
        .kind = Kind::Text,
        .member = of<&MountOptions::mount_options>,
        .fallback = "none",
        .help = "options for the kernel, separated by commas: ro, noatime, noexec, nosuid, ...",
        .details = "Options for the kernel, separated by commas, as in fstab: ro, noatime, "
                   "nodiratime, noexec, nosuid, nodev, sync, dirsync, nosymfollow.",
        .example = "noatime",
        .placeholder = "WORDS",
    },
    OptionSpec{
        .group = Group::Mount,
        .name = "small_file",
        .kind = Kind::Size,
        .member = of<&MountOptions::small_file>,
        .fallback = "128KiB",
        .help = "files up to this size stay in the page cache between opens",
        .details = "Files up to this size stay in the kernel's page cache between opens. The "
                   "kernel reads and writes larger files on the tier itself (passthrough), which "
                   "costs one registration at each first open.",
    },
    OptionSpec{
        .group = Group::Mount,
        .name = "degraded",
        .kind = Kind::Switch,
        .member = of<&MountOptions::degraded>,
        .fallback = "false",
        .help = "mount even if a tier is missing",
        .details = "Mount even if a tier is missing. Its files are not found (ENOENT) until the "
                   "tier is back; the other files work.",
    },
    OptionSpec{
        .group = Group::Mount,
        .name = "over",
        .kind = Kind::Switch,
        .member = of<&MountOptions::over>,
        .fallback = "false",
        .help = "mount even if the mount point is not empty",
        .details = "Mount even if the mount point is not empty. What is in it is hidden while the "
                   "pool is mounted.",
    },
    OptionSpec{
        .group = Group::Mount,
        .name = "foreground",
        .kind = Kind::Switch,
        .member = of<&MountOptions::foreground>,
        .fallback = "false",
        .help = "stay attached to the terminal and log there",
        .details = "Stay attached to the terminal and log there.",
    },
    OptionSpec{
        .group = Group::Mount,
        .name = "log_level",
        .kind = Kind::Text,
        .member = of<&MountOptions::log_level>,
        .is_live = true,
        .fallback = "info",
        .help = "trace, debug, info, warn or error",
        .details = "How much is logged: trace, debug, info, warn or error. `sluice set log_level "
                   "debug` changes it until the next reload.",
        .words = "trace debug info warn error",
        .placeholder = "LEVEL",
    },
    OptionSpec{
        .group = Group::Mount,
        .name = "log_format",
        .kind = Kind::Text,
        .member = of<&MountOptions::log_format>,
        .fallback = "text",
        .help = "text or json: one object per line",
        .details = "Format of a log line: text, or json (one object per line with time, level and "
                   "message).",
        .words = "text json",
        .placeholder = "FORMAT",
    },
    OptionSpec{
        .group = Group::Mount,
        .name = "log_file",
        .kind = Kind::Path,
        .member = of<&MountOptions::log_file>,
        .fallback = "<state>/sluice.log",
        .help = "file of the log",
        .details = "File of the log. In the foreground the log goes to the terminal unless a file "
                   "is given.",
        .example = "/var/log/sluice.log",
        .placeholder = "FILE",
    },
    OptionSpec{
        .group = Group::Mount,
        .name = "metrics",
        .kind = Kind::Text,
        .member = of<&MountOptions::metrics>,
        .fallback = "off",
        .help = "serve Prometheus metrics: off, unix, or 127.0.0.1:PORT",
        .details = "Serve metrics for Prometheus by HTTP: \"off\"; \"unix\": on the socket "
                   "metrics.sock in the state directory, for root; or a loopback address with its "
                   "port, such as \"127.0.0.1:9464\", for every local user.",
        .placeholder = "WHERE",
    },

    OptionSpec{
        .group = Group::Heat,
        .name = "policy",
        .kind = Kind::Text,
        .member = of<&MountOptions::policy>,
        .is_live = true,
        .fallback = "value",
        .help = "how files are chosen for a tier: value, or thresholds of their score",
        .details = "How files are chosen for a tier. \"value\": by the time that they would save "
                   "there, against what the room is worth. \"thresholds\": by their score alone; "
                   "each tier has a threshold.",
        .words = "value thresholds",
        .placeholder = "POLICY",
    },
    OptionSpec{
        .group = Group::Heat,
        .name = "optimize",
        .kind = Kind::Text,
        .member = of<&MountOptions::optimize>,
        .is_live = true,
        .fallback = "time",
        .help = "what the policy value maximizes: time saved, or hits on the fastest tier",
        .details = "What the policy \"value\" maximizes. \"time\": the time that users do not "
                   "wait. \"hits\": the accesses that the fastest tier serves, whatever each "
                   "saves.",
        .words = "time hits",
        .placeholder = "GOAL",
    },
    OptionSpec{
        .group = Group::Heat,
        .name = "half_life",
        .kind = Kind::Duration,
        .member = of<&MountOptions::half_life>,
        .fallback = "7d",
        .help = "the score of a file halves in this time; never: it counts all accesses",
        .details = "Each access of a file adds 1 to its score, and the score halves in this time, "
                   "so that recent accesses count more. \"never\": the score counts all accesses.",
        .words = "never",
        .least = 1,
    },
    OptionSpec{
        .group = Group::Heat,
        .name = "heat_ignore",
        .kind = Kind::Text,
        .member = of<&MountOptions::heat_ignore>,
        .fallback = "a built-in list",
        .help = "opens by these programs do not count as accesses",
        .details = "Opens by these programs do not count as accesses: names of programs (backups, "
                   "indexers, virus scanners) or prefixes of cgroup paths, separated by spaces. It "
                   "replaces the built-in list of common ones; \"\" ignores no program by name.",
        .example = "updatedb restic /system.slice/backup",
        .placeholder = "NAMES",
    },
    OptionSpec{
        .group = Group::Heat,
        .name = "heat_sample",
        .kind = Kind::Duration,
        .member = of<&MountOptions::heat_sample>,
        .fallback = "10min",
        .help = "how often a file that stays open and in use counts as accessed; or never",
        .details = "How often a file that stays open and is read or written counts as accessed. "
                   "Sluice watches such files with fanotify, which costs two system calls per file "
                   "each time. \"never\": only opens count.",
        .words = "never",
        .least = 1,
    },
    OptionSpec{
        .group = Group::Heat,
        .name = "migrate",
        .kind = Kind::Switch,
        .member = of<&MountOptions::migrate>,
        .is_live = true,
        .fallback = "true",
        .help = "move files automatically",
        .details = "Move files automatically. If it is false, files move only by `sluice move` and "
                   "`sluice tier run`.",
    },
    OptionSpec{
        .group = Group::Heat,
        .name = "interval",
        .kind = Kind::Duration,
        .member = of<&MountOptions::interval>,
        .is_live = true,
        .fallback = "15min",
        .help = "time between two passes that look for files to move",
        .details = "Time between two passes that look for files to move; at least 1s.",
        .least = 1,
    },
    OptionSpec{
        .group = Group::Heat,
        .name = "min_stay",
        .kind = Kind::Duration,
        .member = of<&MountOptions::min_stay>,
        .is_live = true,
        .fallback = "1h",
        .help = "minimum time on a tier before automatic migration",
        .details = "Minimum time that a file stays on a tier before automatic migration.",
    },
    OptionSpec{
        .group = Group::Heat,
        .name = "windows",
        .kind = Kind::Times,
        .member = of<&MountOptions::windows>,
        .is_live = true,
        .fallback = "always",
        .help = "local times of day for automatic moves: 22:00-06:00,12:00-13:00",
        .details = "Local times of day at which files may move automatically. A window that ends "
                   "before it begins continues past midnight.",
        .example = "22:00-06:00,12:00-13:00",
    },
    OptionSpec{
        .group = Group::Heat,
        .name = "bandwidth",
        .kind = Kind::Rate,
        .member = of<&MountOptions::bandwidth>,
        .is_live = true,
        .fallback = "0",
        .help = "what all moves together may write per second, like 200MiB; 0: no limit",
        .details = "What all moves together may write per second, such as \"200MiB\". 0: no limit.",
    },
    OptionSpec{
        .group = Group::Heat,
        .name = "verify",
        .kind = Kind::Switch,
        .member = of<&MountOptions::verify>,
        .is_live = true,
        .fallback = "false",
        .help = "read each copy back and compare its checksum before the original is removed",
        .details = "Read each copy back from the disk and compare its checksum before the original "
                   "is removed. It costs a read of every file moved.",
    },
    OptionSpec{
        .group = Group::Heat,
        .name = "twins",
        .kind = Kind::Switch,
        .member = of<&MountOptions::twins>,
        .fallback = "true",
        .help = "keep the old copies of promoted files while their room is not needed",
        .details = "Keep the old copy of a file that moves to a faster tier, as its twin, while "
                   "its room is not needed. If the file goes back unchanged, the twin takes its "
                   "place and nothing is copied. Twins count as free room. If it is false, twins "
                   "that exist are removed.",
    },

    OptionSpec{
        .group = Group::Gpu,
        .name = "gpu",
        .kind = Kind::Switch,
        .member = of<&MountOptions::gpu>,
        .fallback = "true",
        .help = "read files into GPU memory on request",
        .details = "Read files into GPU memory on request. If it is false, only host memory is "
                   "used and CUDA is never loaded. Otherwise a mount that finds a GPU loads it and "
                   "keeps a CUDA context on each, so that the first load is fast.",
    },
    OptionSpec{
        .group = Group::Gpu,
        .name = "gpu_mapped_memory",
        .kind = Kind::Share,
        .member = of<&MountOptions::gpu_mapped_memory>,
        .fallback = "25%",
        .help = "page cache that GPUs may read directly: part of memory or a size",
        .details =
            "How much of the page cache GPUs may read directly: a part of memory, or a size. "
            "The pages are pinned while they are registered, and released when the machine is "
            "short "
            "of memory. 0: none.",
    },
    OptionSpec{
        .group = Group::Gpu,
        .name = "gpu_host_memory",
        .kind = Kind::Share,
        .member = of<&MountOptions::gpu_host_memory>,
        .fallback = "50%",
        .help = "host memory that clients may register as buffers: part of memory or a size",
        .details = "How much host memory (memfds) clients may register as buffers at once: a part "
                   "of memory, or a size. 0: none.",
    },
    OptionSpec{
        .group = Group::Gpu,
        .name = "hbm",
        .kind = Kind::Share,
        .member = of<&MountOptions::hbm>,
        .is_live = true,
        .fallback = "0",
        .help = "memory of each GPU for copies of files: part of it or a size; 0: none",
        .details = "How much memory of each GPU is used for copies of files that are read into it "
                   "repeatedly: a part of the GPU's memory, or a size. Reading such a file is a "
                   "copy within the GPU. 0: none.",
    },
    OptionSpec{
        .group = Group::Gpu,
        .name = "hbm_reserve",
        .kind = Kind::Share,
        .member = of<&MountOptions::hbm_reserve>,
        .is_live = true,
        .fallback = "10%",
        .help = "memory of each GPU that copies of files leave free: part of it or a size",
        .details = "How much memory of each GPU the copies of files leave free for programs: a "
                   "part of the GPU's memory, or a size. If less is free, copies are dropped.",
    },

    OptionSpec{
        .group = Group::Debug,
        .name = "passthrough",
        .kind = Kind::Switch,
        .member = of<&MountOptions::passthrough>,
        .fallback = "true",
        .help = "the kernel reads and writes large files on the tier; off: the daemon does",
        .details = "Let the kernel read and write files on the tier itself. If it is false, the "
                   "daemon serves every byte.",
    },
    OptionSpec{
        .group = Group::Debug,
        .name = "keeper",
        .kind = Kind::Switch,
        .member = of<&MountOptions::keeper>,
        .fallback = "true",
        .help = "a second process restarts the daemon after a crash; off: a crash ends the mount",
        .details = "Leave a second process, the keeper, which starts the daemon again after a "
                   "crash. If it is false, the mount is one process, and its crash ends the mount.",
    },
    OptionSpec{
        .group = Group::Debug,
        .name = "crash_limit",
        .kind = Kind::Count,
        .member = of<&MountOptions::crash_limit>,
        .fallback = "5",
        .help = "crashes in a row before the daemon's next start is delayed; 0: it never is",
        .details = "After this many crashes of the daemon in a row, the next start is delayed by a "
                   "second, then by twice as long each time, at most a minute. The count starts "
                   "again after a daemon has served for a minute. 0: no start is delayed.",
        .most = 1000000,
    },
    OptionSpec{
        .group = Group::Debug,
        .name = "budget_rest",
        .kind = Kind::Duration,
        .member = of<&MountOptions::budget_rest>,
        .fallback = "1min",
        .help = "how long a budget spares a file after it was written",
        .details = "How long a file is not deleted for a budget after it was written.",
    },
    OptionSpec{
        .group = Group::Debug,
        .name = "gpu_max_concurrent_ops",
        .kind = Kind::Count,
        .member = of<&MountOptions::gpu_max_concurrent_ops>,
        .fallback = "32",
        .help = "large GPU requests in progress at once, 1 to 4096; others wait for their turn",
        .details = "Large GPU requests in progress at once, 1 to 4096. Others wait for their turn.",
        .least = 1,
        .most = 4096,
    },
    OptionSpec{
        .group = Group::Debug,
        .name = "gpu_chunk",
        .kind = Kind::Size,
        .member = of<&MountOptions::gpu_chunk>,
        .fallback = "4MiB",
        .help = "one piece of a large GPU request: a power of two from 64KiB to 64MiB",
        .details = "One piece of a large GPU request: a power of two from 64KiB to 64MiB. Each "
                   "thread pins three of them.",
    },
    OptionSpec{
        .group = Group::Debug,
        .name = "gpu_threads",
        .kind = Kind::Count,
        .member = of<&MountOptions::gpu_threads>,
        .fallback = "0",
        .help = "threads that copy for GPUs, up to 64; 0: as many as fill the bus",
        .details = "Threads that copy for GPUs, up to 64. 0: as many as fill the bus, given the "
                   "number of cores.",
        .most = 64,
    },
    OptionSpec{
        .group = Group::Debug,
        .name = "gpu_rest",
        .kind = Kind::Count,
        .member = of<&MountOptions::gpu_rest>,
        .fallback = "2000",
        .help = "milliseconds without a change before a file is copied into GPU memory; 50 or more",
        .details = "How many milliseconds a file must be unchanged before its page cache is "
                   "registered or it is copied into GPU memory, 50 to 60000. It must be longer "
                   "than the granularity of file times on the tiers.",
        .least = 50,
        .most = 60000,
    },
    OptionSpec{
        .group = Group::Debug,
        .name = "gpu_cufile",
        .kind = Kind::Switch,
        .member = of<&MountOptions::gpu_cufile>,
        .fallback = "true",
        .help = "use libcufile if it is installed; off: never load it",
        .details = "Use libcufile, and with it GPUDirect Storage, if it is installed.",
    },

    OptionSpec{
        .group = Group::Tier,
        .name = "name",
        .kind = Kind::Text,
        .member = of<&TierOptions::name>,
        .fallback = "required",
        .help = "1 to 32 letters, digits, `_` or `-`; the value of `user.sluice.tier`",
        .details = "1 to 32 letters, digits, '_' or '-'.",
        .example = "nvme",
    },
    OptionSpec{
        .group = Group::Tier,
        .name = "path",
        .kind = Kind::Path,
        .member = of<&TierOptions::path>,
        .fallback = "required",
        .help = "an existing directory that root can write",
        .details = "An existing directory. It must not be inside another tier or the mount point, "
                   "nor contain one.",
        .example = "/nvme/sluice/tier",
    },
    OptionSpec{
        .group = Group::Tier,
        .name = "capacity",
        .kind = Kind::Size,
        .member = of<&TierOptions::capacity>,
        .is_live = true,
        .fallback = "all of it",
        .help = "fill no more than this of the tier's filesystem",
        .details = "Fill no more than this of the tier's filesystem.",
        .example = "800GiB",
    },
    OptionSpec{
        .group = Group::Tier,
        .name = "high_watermark",
        .kind = Kind::Percent,
        .member = of<&TierOptions::high_watermark>,
        .is_live = true,
        .fallback = "90",
        .help = "percent full above which new files go to the next tier",
        .details = "Percent full above which new files go to the next tier.",
    },
    OptionSpec{
        .group = Group::Tier,
        .name = "low_watermark",
        .kind = Kind::Percent,
        .member = of<&TierOptions::low_watermark>,
        .is_live = true,
        .fallback = "10 below `high_watermark`",
        .help = "percent full down to which migration empties the tier",
        .details = "Percent full down to which migration empties the tier.",
        .example = "80",
    },
    OptionSpec{
        .group = Group::Tier,
        .name = "reserve",
        .kind = Kind::Size,
        .member = of<&TierOptions::reserve>,
        .is_live = true,
        .fallback = "2% of the tier, at most 4 GiB",
        .help = "if fewer bytes than this are free, the daemon serves all writers",
        .details = "If fewer bytes than this are free, the daemon serves every file that is being "
                   "written, so that the file can continue on another tier when this one is full. "
                   "With more free bytes it does so only for files that may outgrow the tier.",
        .example = "4GiB",
    },
    OptionSpec{
        .group = Group::Tier,
        .name = "threshold",
        .kind = Kind::Score,
        .member = of<&TierOptions::threshold>,
        .is_live = true,
        .fallback = "0 on the last tier, 10 on the one before, else 100",
        .help = "score a file needs here, with policy thresholds",
        .details =
            "The score that makes a file eligible for this tier. It is used only with "
            "policy = \"thresholds\". It must not rise from a tier to a slower one, and is 0 "
            "on the last.",
        .example = "100",
    },
    OptionSpec{
        .group = Group::Tier,
        .name = "moves",
        .kind = Kind::Count,
        .member = of<&TierOptions::moves>,
        .fallback = "2",
        .help = "moves that may read from this tier or write to it at once, 1 to 64",
        .details = "Moves that may read from this tier or write to it at once, 1 to 64.",
        .least = 1,
        .most = 64,
    },

    OptionSpec{
        .group = Group::Rule,
        .name = "match",
        .kind = Kind::Text,
        .member = of<&RuleOptions::match>,
        .is_live = true,
        .fallback = "required",
        .help = "a glob pattern (see below)",
        .details = "A glob pattern: `*` and `?` do not match a slash, `**` does, `[a-z]` and "
                   "`[!a-z]` are sets, and a backslash quotes the next character. A pattern that "
                   "begins with a slash is matched from the top of the mount, one with a slash "
                   "elsewhere from any directory, one without a slash against the file name alone.",
        .example = "*.iso",
    },
    OptionSpec{
        .group = Group::Rule,
        .name = "larger",
        .kind = Kind::Size,
        .member = of<&RuleOptions::larger>,
        .is_live = true,
        .fallback = "any",
        .help = "only files of more bytes than this",
        .details = "Only files of more bytes than this.",
        .example = "1GiB",
    },
    OptionSpec{
        .group = Group::Rule,
        .name = "smaller",
        .kind = Kind::Size,
        .member = of<&RuleOptions::smaller>,
        .is_live = true,
        .fallback = "any",
        .help = "only files of fewer bytes than this",
        .details = "Only files of fewer bytes than this.",
        .example = "1TiB",
    },
    OptionSpec{
        .group = Group::Rule,
        .name = "older",
        .kind = Kind::Duration,
        .member = of<&RuleOptions::older>,
        .is_live = true,
        .fallback = "any",
        .help = "only files that were last used (opened or written) longer ago than this",
        .details = "Only files that were last used (opened or written) longer ago than this.",
        .example = "30d",
    },
    OptionSpec{
        .group = Group::Rule,
        .name = "newer",
        .kind = Kind::Duration,
        .member = of<&RuleOptions::newer>,
        .is_live = true,
        .fallback = "any",
        .help = "only files that were used more recently than this",
        .details = "Only files that were used more recently than this.",
        .example = "52w",
    },
    OptionSpec{
        .group = Group::Rule,
        .name = "tier",
        .kind = Kind::Text,
        .member = of<&RuleOptions::tier>,
        .is_live = true,
        .fallback = "required",
        .help = "the name of a tier, or `stay`: the files stay where they are, regardless of heat",
        .details = "The name of a tier, or \"stay\": the files stay where they are, regardless of "
                   "heat.",
        .example = "hdd",
    },
    OptionSpec{
        .group = Group::Rule,
        .name = "budget",
        .kind = Kind::Size,
        .member = of<&RuleOptions::budget>,
        .is_live = true,
        .fallback = "none",
        .help = "bytes for each directory that matches; files beyond that are deleted",
        .details = "What is below each directory that matches may take this many bytes. Beyond "
                   "that, files of least value are deleted. A rule with a budget may have no tier.",
        .example = "200GiB",
    },
};

}  // namespace

std::span<const OptionSpec> option_table() { return kTable; }

std::span<const OptionSpec> options_in(OptionSpec::Group group) {
  const auto in_group = [group](const OptionSpec& each) { return each.group == group; };
  const auto begin = std::find_if(kTable.begin(), kTable.end(), in_group);
  return {begin, std::find_if_not(begin, kTable.end(), in_group)};
}

const OptionSpec* find_option(OptionSpec::Group group, std::string_view name) {
  for (const OptionSpec& each : options_in(group)) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

const OptionSpec* find_mount_option(std::string_view name) {
  for (const OptionSpec& each : kTable) {
    if (is_of_mount(each) && each.name == name) return &each;
  }
  return nullptr;
}

std::vector<std::string_view> names_of(std::span<const OptionSpec> specs) {
  std::vector<std::string_view> names;
  for (const OptionSpec& each : specs) names.push_back(each.name);
  return names;
}

std::string flag_name(const OptionSpec& spec) {
  std::string flag = "--" + std::string(spec.name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string variable_name(const OptionSpec& spec) {
  std::string name = "SLUICE_";
  for (const char c : spec.name) name += static_cast<char>(std::toupper(c));
  return name;
}

bool is_of_mount(const OptionSpec& spec) {
  return spec.group == Group::Mount || spec.group == Group::Heat || spec.group == Group::Gpu;
}

}  // namespace sluice
