// SPDX-License-Identifier: BSD-2-Clause
// `sluice-lab fsbench` measures the same work in several directories side by side. See
// docs/benchmarks.md.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tools/common/completion.hpp"
#include "tools/lab/bench/mounts.hpp"
#include "tools/lab/bench/process.hpp"
#include "tools/lab/bench/report.hpp"
#include "tools/lab/bench/runner.hpp"
#include "tools/lab/bench/syscalls.hpp"
#include "tools/lab/commands.hpp"

namespace sluice::tools::lab::bench {
namespace {

constexpr std::string_view kVerb = "fsbench";

constexpr HelpText kHelp{
    .usage = "sluice-lab fsbench [options] NAME=DIR... [-- FLAG...]",
    .options =
        R"(      --rounds N       samples of each row in each place; the median counts (3)
      --best           compare the best samples instead of the medians: for a busy machine,
                       with more rounds
      --quick          small sizes, to see whether it runs; the numbers mean little
      --only ROW,...   measure these rows only
      --list           list the rows and exit
      --json FILE      also write every sample to FILE
      --pid NAME=PID   the daemon that serves NAME, for the row 'memory'; repeatable
      --sluice BINARY  create a native directory and a mount of this sluice with three tiers;
                       measure and remove them
      --workdir DIR    where --sluice creates them (/var/tmp)
  -h, --help           short help (-h) or full help (--help)
)",
    .details = R"(
Measures the same filesystem work in several directories, side by side in one run. The
first directory is the reference. With --sluice, directories are optional; what follows
-- is passed to every 'sluice mount'.

Rows that start cold drop the kernel's caches of names and inodes for the whole machine.
They need root and are skipped without it. Each directory needs about 2 GiB of space.
docs/benchmarks.md describes the rows.

Examples:
  sluice-lab fsbench native=/data/plain sluice=/mnt/pool --pid sluice=4711
  sluice-lab fsbench --sluice /usr/bin/sluice --workdir /data --json result.json
  sluice-lab fsbench --sluice /usr/bin/sluice --only seq-read -- --debug=passthrough=off

Exit status: 0 measured, whether goals were met or not; 1 failed; 2 wrong usage; 128+N
ended by signal N.
)"};

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Named {
  std::string name;
  std::string value;
};

struct Options {
  std::vector<Named> directories;
  std::map<std::string, pid_t> pids;
  Plan plan;
  std::string json_file;
  std::string sluice_binary;
  std::string workdir = "/var/tmp";
  std::vector<std::string> sluice_flags;  // what followed "--"
};

// The options as given, before they are parsed.
struct RawOptions {
  std::vector<std::string> directories, pids;
  std::string only;
  unsigned rounds = 3;
  bool quick = false, best = false, list = false;
};

Named split(const std::string& text, const std::string& form) {
  const std::size_t at = text.find('=');
  if (at == std::string::npos || at == 0) throw UsageError("'" + text + "' is not " + form);
  return {text.substr(0, at), text.substr(at + 1)};
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::string row_names() {
  std::string names;
  for (const Row& row : all_rows()) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

// `list` is "ROW,ROW,...", or empty for all.
std::vector<const Row*> chosen_rows(std::string list) {
  std::replace(list.begin(), list.end(), ',', ' ');
  const std::vector<std::string> only = words_of(list);
  std::vector<const Row*> rows;
  for (const std::string& name : only) {
    if (!find_row(name)) throw UsageError("no row '" + name + "'; there are: " + row_names());
  }
  for (const Row& row : all_rows()) {
    const bool named = std::find(only.begin(), only.end(), row.name) != only.end();
    if (only.empty() || named) rows.push_back(&row);
  }
  return rows;
}

std::vector<Named> parse_directories(const std::vector<std::string>& arguments) {
  std::vector<Named> directories;
  for (const std::string& argument : arguments) {
    const Named named = split(argument, "NAME=DIR");
    struct stat status;
    if (::stat(named.value.c_str(), &status) < 0 || !S_ISDIR(status.st_mode)) {
      throw UsageError(named.name + ": '" + named.value + "' is not a directory");
    }
    directories.push_back(named);
  }
  return directories;
}

void require_unique_names(const Options& options) {
  std::vector<std::string> names;
  if (!options.sluice_binary.empty()) names = {"native", "sluice"};
  for (const Named& directory : options.directories) names.push_back(directory.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) throw UsageError("the name '" + *twice + "' is used twice");
  for (const auto& [name, pid] : options.pids) {
    if (!std::binary_search(names.begin(), names.end(), name)) {
      throw UsageError("--pid " + name + "=" + std::to_string(pid) +
                       ": no directory has that name");
    }
  }
}

void interpret(const RawOptions& raw, Options& options) {
  if (raw.rounds < 1 || raw.rounds > 100) throw UsageError("--rounds must be from 1 to 100");
  options.directories = parse_directories(raw.directories);
  for (const std::string& text : raw.pids) {
    const Named named = split(text, "NAME=PID");
    const pid_t pid = static_cast<pid_t>(std::strtol(named.value.c_str(), nullptr, 10));
    if (pid <= 0) throw UsageError("'" + text + "' is not NAME=PID");
    options.pids[named.name] = pid;
  }
  options.plan.rounds = raw.rounds;
  if (raw.best) options.plan.summary = Summary::Best;
  options.plan.rows = chosen_rows(raw.only);
  if (raw.quick) options.plan.sizes = Sizes::quick();
  if (options.sluice_binary.empty()) {
    if (options.directories.empty())
      throw UsageError("nothing to measure: give NAME=DIR... or --sluice BINARY");
    if (!options.sluice_flags.empty()) throw UsageError("flags after -- need --sluice");
  } else if (::access(options.sluice_binary.c_str(), X_OK) < 0) {
    throw UsageError("--sluice: '" + options.sluice_binary + "' is not a program");
  } else {
    options.sluice_binary = std::filesystem::canonical(options.sluice_binary).string();
  }
  require_unique_names(options);
}

void declare(Arguments& arguments, RawOptions& raw, Options& options) {
  arguments.option("PLACES", raw.directories);
  arguments.option("--rounds", raw.rounds);
  arguments.flag("--best", raw.best);
  arguments.flag("--quick", raw.quick);
  arguments.option("--only", raw.only);
  arguments.flag("--list", raw.list);
  arguments.option("--json", options.json_file);
  arguments.option("--pid", raw.pids);
  arguments.option("--sluice", options.sluice_binary);
  arguments.option("--workdir", options.workdir);
}

// Everything that is removed at the end, in reverse order of the members: scratch directories,
// mounts, the work area.
struct Site {
  std::unique_ptr<ScratchDirectory> area;
  std::vector<std::unique_ptr<Mount>> mounts;
  std::vector<ScratchDirectory> scratch;
  std::vector<Place> places;

  void add_mount(const std::string& name, std::unique_ptr<Mount> mount) {
    const std::string& directory = mount->mount_point();
    // No ScratchDirectory: the whole work area is removed, which is faster than through the mount.
    places.push_back({name, directory, make_temp_directory(directory, "fsbench."), mount->daemon(),
                      to_string(mount->command())});
    mounts.push_back(std::move(mount));
  }

  void add_directory(const std::string& name, const std::string& directory,
                     std::optional<pid_t> daemon) {
    scratch.emplace_back(directory);
    places.push_back({name, directory, scratch.back().path(), daemon, ""});
  }
};

void stop_if_asked(BlockedSignals& signals) {
  if (signals.arrived() != 0) throw Failure("interrupted");
}

void set_up_mounts(const Options& options, BlockedSignals& signals, Site& site) {
  site.area = std::make_unique<ScratchDirectory>(options.workdir);
  const std::string& area = site.area->path();
  make_directory(area + "/native");
  site.add_directory("native", area + "/native", std::nullopt);
  stop_if_asked(signals);
  site.add_mount("sluice",
                 mount_sluice(options.sluice_binary, area + "/sluice", options.sluice_flags));
}

// Mounts made here keep their files on the filesystem of the native directory; others may not.
SyncScope sync_scope(const std::vector<Place>& places) {
  struct stat reference;
  if (::stat(places.front().directory.c_str(), &reference) < 0) return SyncScope::Machine;
  for (const Place& place : places) {
    struct stat status;
    if (!place.command.empty()) continue;
    if (::stat(place.directory.c_str(), &status) < 0 || status.st_dev != reference.st_dev) {
      return SyncScope::Machine;
    }
  }
  return SyncScope::ReferenceFilesystem;
}

void write_text(const std::string& path, const std::string& text) {
  UniqueFd fd = open_file(path, O_WRONLY | O_CREAT | O_TRUNC);
  write_all(fd, std::as_bytes(std::span(text)), path);
  close_file(std::move(fd), path);
}

// Differences of a few percent mean nothing while other processes compete for the cores.
void warn_if_busy() {
  double load = 0;
  const long cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (::getloadavg(&load, 1) != 1 || load < 0.5 * double(cores)) return;
  std::fprintf(
      stderr,
      "sluice-lab: fsbench: the machine is busy (load %.1f on %ld cores): results will be noisy; "
      "see --best\n",
      load, cores);
}

// The measuring process.
int measure_and_report(const Options& options, const std::vector<Place>& places) {
  try {
    warn_if_busy();
    Plan plan = options.plan;
    plan.sync_scope = sync_scope(places);
    const auto results = measure_all(plan, places);
    std::fputs(format_table(results, places).c_str(), stdout);
    if (!options.json_file.empty()) {
      write_text(options.json_file, format_json(results, places, plan));
    }
    return 0;
  } catch (const std::exception& error) {
    if (::isatty(STDERR_FILENO)) std::fputs("\n", stderr);
    return fail(kVerb, error.what());
  }
}

int run_benchmark(const Options& options) {
  BlockedSignals signals;
  int status = kFailed;
  try {
    Site site;
    if (!options.sluice_binary.empty()) set_up_mounts(options, signals, site);
    for (const Named& directory : options.directories) {
      const auto pid = options.pids.find(directory.name);
      site.add_directory(directory.name, directory.value,
                         pid == options.pids.end() ? std::nullopt : std::optional(pid->second));
    }
    status = signals.supervise([&] { return measure_and_report(options, site.places); });
  } catch (const std::exception& error) {
    fail(kVerb, error.what());
  }
  const int signal = signals.arrived();
  return signal == 0 ? status : 128 + signal;
}

int list_rows() {
  for (const Row& row : all_rows()) {
    std::printf("%-13s %s\n", row.name, row.title);
  }
  return 0;
}

}  // namespace

int command_fsbench(int argc, char** argv) {
  Arguments arguments;
  RawOptions raw;
  Options options;
  declare(arguments, raw, options);
  // Arguments after "--" are for sluice mount; the parser would treat them as directories.
  char** const end = argv + argc;
  const bool completes =
      argc > 1 && argv[1] == kCompletionMark;  // "--" may be the word to complete
  char** const dashes = completes ? end : std::find(argv, end, std::string_view("--"));
  if (dashes != end) options.sluice_flags.assign(dashes + 1, end);
  if (const auto code = arguments.parse(static_cast<int>(dashes - argv), argv, kHelp)) return *code;
  if (raw.list) return list_rows();
  try {
    interpret(raw, options);
  } catch (const UsageError& error) {
    return misuse(kVerb, error.what());
  }
  return run_benchmark(options);
}

}  // namespace sluice::tools::lab::bench
