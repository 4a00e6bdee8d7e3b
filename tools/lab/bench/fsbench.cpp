// SPDX-License-Identifier: BSD-2-Clause
// fsbench measures the same work in several directories side by side. See docs/benchmarks.md.
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tools/lab/bench/mounts.hpp"
#include "tools/lab/bench/process.hpp"
#include "tools/lab/bench/report.hpp"
#include "tools/lab/bench/runner.hpp"
#include "tools/lab/bench/syscalls.hpp"

namespace sluice {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

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
  std::vector<Named> variants;            // name, flags
  std::vector<std::string> sluice_flags;  // what followed "--"
  bool mergerfs = true;
};

// What the command line says, before it is understood.
struct RawOptions {
  std::vector<std::string> directories, pids, variants;
  std::string only;
  unsigned rounds = 3;
  bool quick = false, best = false, no_mergerfs = false, list = false;
};

Named split_at(char separator, const std::string& text, const std::string& form) {
  const std::size_t at = text.find(separator);
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

// `list` is "ROW,ROW,...", or empty for the usual ones.
std::vector<const Row*> chosen_rows(std::string list) {
  std::replace(list.begin(), list.end(), ',', ' ');
  const std::vector<std::string> only = words_of(list);
  std::vector<const Row*> rows;
  for (const std::string& name : only) {
    if (!find_row(name)) throw UsageError("no row '" + name + "'; there are: " + row_names());
  }
  for (const Row& row : all_rows()) {
    const bool named = std::find(only.begin(), only.end(), row.name) != only.end();
    if (only.empty() ? row.when == Row::Run::Always : named) rows.push_back(&row);
  }
  return rows;
}

std::vector<Named> parse_directories(const std::vector<std::string>& arguments) {
  std::vector<Named> directories;
  for (const std::string& argument : arguments) {
    const Named named = split_at('=', argument, "NAME=DIR");
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
  if (!options.sluice_binary.empty()) names = {"native", "sluice", "mergerfs"};
  for (const Named& variant : options.variants) names.push_back(variant.name);
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
  options.directories = parse_directories(raw.directories);
  for (const std::string& text : raw.pids) {
    const Named named = split_at('=', text, "NAME=PID");
    const pid_t pid = static_cast<pid_t>(std::strtol(named.value.c_str(), nullptr, 10));
    if (pid <= 0) throw UsageError("'" + text + "' is not NAME=PID");
    options.pids[named.name] = pid;
  }
  for (const std::string& text : raw.variants) {
    options.variants.push_back(split_at(':', text, "NAME:FLAGS"));
  }
  options.plan.rounds = raw.rounds;
  if (raw.best) options.plan.summary = Summary::Best;
  options.plan.rows = chosen_rows(raw.only);
  if (raw.quick) options.plan.sizes = Sizes::quick();
  options.mergerfs = !raw.no_mergerfs;
  if (options.sluice_binary.empty()) {
    if (options.directories.empty())
      throw UsageError("nothing to measure: give NAME=DIR... or --sluice BINARY");
    if (!options.variants.empty()) throw UsageError("--variant needs --sluice");
    if (!options.sluice_flags.empty()) throw UsageError("flags after -- need --sluice");
  } else if (::access(options.sluice_binary.c_str(), X_OK) < 0) {
    throw UsageError("--sluice: '" + options.sluice_binary + "' is not a program");
  } else {
    options.sluice_binary = std::filesystem::canonical(options.sluice_binary).string();
  }
  require_unique_names(options);
}

void declare(CLI::App& app, RawOptions& raw, Options& options) {
  app.add_option("places", raw.directories, "Directories to measure; the first is the reference")
      ->type_name("NAME=DIR");
  app.add_option("--rounds", raw.rounds, "Samples of each row in each place; the median counts")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_flag("--best", raw.best,
               "Compare the best samples, not the medians: for a busy machine, with more rounds");
  app.add_flag("--quick", raw.quick, "Small sizes: does it run? The numbers mean little");
  app.add_option("--only", raw.only, "Only these rows (see --list)")

      ->type_name("ROW,...");
  app.add_flag("--list", raw.list, "List the rows and exit");
  app.add_option("--json", options.json_file, "Also write every sample to FILE")->type_name("FILE");
  app.add_option("--pid", raw.pids, "The daemon that serves NAME, for the row 'memory'; repeatable")
      ->type_name("NAME=PID")
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--sluice", options.sluice_binary,
                 "Make a native directory, a three-tier mount of this sluice and, where installed, "
                 "one of mergerfs; "
                 "measure them; remove them")
      ->type_name("BINARY");
  app.add_option("--workdir", options.workdir, "Where --sluice makes them")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--variant", raw.variants, "One more sluice mount with FLAGS added; repeatable")
      ->type_name("NAME:FLAGS")
      ->allow_extra_args(false)
      ->take_all();
  app.add_flag("--no-mergerfs", raw.no_mergerfs, "Leave mergerfs out even if it is installed");
  app.footer(
      "\nRows that start cold drop the kernel's caches of names and inodes, for the whole machine, "
      "and need root;\n"
      "without it they are skipped. About 2 GiB of space is needed in each directory.\n"
      "\nExamples:\n"
      "  fsbench native=/data/plain sluice=/mnt/pool --pid sluice=4711\n"
      "  fsbench --sluice build/release/bin/sluice --workdir /data --json result.json\n"
      "  fsbench --sluice build/release/bin/sluice --variant served:--no-passthrough --only "
      "seq-read,rand-read\n"
      "\nExit status: 0 measured (goals met or not), 1 something failed, 2 usage, 128+N ended by "
      "signal N.");
}

// Everything that has to go away at the end. Members go in reverse: scratch directories, mounts,
// the work area.
struct Site {
  std::unique_ptr<ScratchDirectory> area;
  std::vector<std::unique_ptr<Mount>> mounts;
  std::vector<ScratchDirectory> scratch;
  std::vector<Place> places;

  void add_mount(const std::string& name, std::unique_ptr<Mount> mount) {
    const std::string& directory = mount->mount_point();
    // No ScratchDirectory: the whole area goes, and faster from below than through the mount.
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

void stop_if_asked(HeldSignals& signals) {
  if (signals.arrived() != 0) throw Failure("interrupted");
}

void set_up_mounts(const Options& options, HeldSignals& signals, Site& site) {
  site.area = std::make_unique<ScratchDirectory>(options.workdir);
  const std::string& area = site.area->path();
  make_directory(area + "/native");
  site.add_directory("native", area + "/native", std::nullopt);
  stop_if_asked(signals);
  site.add_mount("sluice",
                 mount_sluice(options.sluice_binary, area + "/sluice", options.sluice_flags));
  for (std::size_t i = 0; i < options.variants.size(); ++i) {
    stop_if_asked(signals);
    std::vector<std::string> flags = options.sluice_flags;
    for (const std::string& word : words_of(options.variants[i].value)) flags.push_back(word);
    const std::string directory = area + "/variant" + std::to_string(i);
    site.add_mount(options.variants[i].name, mount_sluice(options.sluice_binary, directory, flags));
  }
  stop_if_asked(signals);
  if (options.mergerfs && is_installed("mergerfs")) {
    site.add_mount("mergerfs", mount_mergerfs(area + "/mergerfs"));
  }
}

// Our own mounts keep their files beside the native directory; others might keep them anywhere.
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

// Ratios of a few percent mean nothing while others compete for the cores.
void warn_if_busy() {
  double load = 0;
  const long cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (::getloadavg(&load, 1) != 1 || load < 0.5 * double(cores)) return;
  std::fprintf(stderr,
               "fsbench: the machine is busy (load %.1f on %ld cores): expect noise; see --best\n",
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
    std::fprintf(stderr, "%sfsbench: %s\n", ::isatty(STDERR_FILENO) ? "\n" : "", error.what());
    return kFailed;
  }
}

int run_benchmark(const Options& options) {
  HeldSignals signals;
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
    std::fprintf(stderr, "fsbench: %s\n", error.what());
  }
  const int signal = signals.arrived();
  return signal == 0 ? status : 128 + signal;
}

int list_rows() {
  for (const Row& row : all_rows()) {
    std::printf("%-13s %s%s\n", row.name, row.title,
                row.when == Row::Run::WhenNamed ? " (only when named in --only)" : "");
  }
  return 0;
}

int main(int count, char** arguments) {
  CLI::App app{
      "Measures the same filesystem work in several directories, side by side in one run.\n\n"
      "  fsbench [OPTIONS] NAME=DIR...\n"
      "  fsbench [OPTIONS] --sluice BINARY [NAME=DIR...] [-- FLAGS OF sluice mount...]\n",
      "fsbench"};
  RawOptions raw;
  Options options;
  declare(app, raw, options);
  // What follows "--" is for sluice mount; CLI11 would take it for directories.
  char** const end = arguments + count;
  char** const dashes = std::find(arguments, end, std::string_view("--"));
  if (dashes != end) options.sluice_flags.assign(dashes + 1, end);
  try {
    app.parse(static_cast<int>(dashes - arguments), arguments);
    if (raw.list) return list_rows();
    interpret(raw, options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "fsbench: %s\nTry 'fsbench --help'.\n", error.what());
    return kUsage;
  }
  return run_benchmark(options);
}

}  // namespace
}  // namespace sluice

int main(int count, char** arguments) { return sluice::main(count, arguments); }
