// SPDX-License-Identifier: BSD-2-Clause
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "fs/control/options.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/init_config.hpp"
#include "tools/cli/init_disks.hpp"
#include "tools/cli/init_models.hpp"
#include "tools/cli/tier_access.hpp"
#include "tools/cli/tier_count.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kVerb = "init";
constexpr const char* kFolder = "/etc/sluice";
constexpr const char* kModels = "models";

constexpr HelpText kHelp{
    .usage =
        "sluice init [--yes] [--for models] [--tier NAME=PATH]... [--mountpoint DIR] [--name NAME]",
    .options = R"(      --tier NAME=PATH[,KEY=VALUE]...
                        a tier, fastest first; these replace the proposed tiers
      --mountpoint DIR  where to mount the pool (/mnt/NAME)
      --name NAME       name of the pool (pool); the file is /etc/sluice/NAME.toml
      --for PURPOSE     add rules and budgets for a purpose; there is one: models
  -o, --output FILE     write the configuration to this file instead
  -y, --yes             accept the proposals without asking
      --force           replace an existing file
      --dry-run         show what would be written, and write nothing
      --json            print findings and proposals as JSON; write only with --yes
      --color WHEN      auto (default), always, never
  -h, --help            short help (-h) or full help (--help)
)",
    .details = R"(
Examines the filesystems of this machine and proposes tiers: NVMe before SSD before
hard disk, and the smaller of two disks of the same kind first. On each filesystem it
creates a new directory, 'sluice' or 'sluice2', that only root can enter, and the tier
inside it; existing files stay outside of the pool. It skips, and says why, the root
filesystem (unless it is the only one), other filesystems of the system, and those
that are read-only, removable, on the network, FUSE, full, smaller than 8 GiB, or
already a tier.

At a terminal it asks three questions: the tiers, the name of the pool, and where to
mount it. It checks each answer at once, and asks again if the answer can't be used.
Options answer the questions in advance. Then it creates missing directories, checks
the configuration with the same code as 'sluice mount', writes it, and says how to
mount the pool. It formats nothing and mounts nothing. Unused disks are listed, with
what udev knows about their content.

A tier may be a directory that has files already: they become part of the pool, at
the same paths. If users can enter a tier directly, it prints the command to close it.

With --for models, the pool is for models, datasets and KV caches of programs such as
transformers, vLLM, Ollama and ComfyUI, and its proposed name is 'models'. Datasets start
on the slowest tier, the directory kv-cache gets a budget of a tenth of the fastest tier,
and the command also prints what to set for the programs (HF_HOME, OLLAMA_MODELS).
docs/models.md describes it.

Examples:
  sudo sluice init
  sudo sluice init --yes
  sudo sluice init --tier nvme=/fast --tier hdd=/data --mountpoint /mnt/pool
  sudo sluice init --for models
  sluice init --dry-run --yes
  sluice init --json | jq .tiers

Exit status: 0 written or shown, 1 failed, 2 wrong usage.
)"};

struct Request {
  std::vector<std::string> tiers;  // as --tier takes them
  std::string mountpoint, name, output;
  std::string purpose;  // empty or kModels
  std::string color = "auto";
  bool yes = false, force = false, dry_run = false, json = false;
};

std::optional<Room> room_at(const std::string& point) {
  struct statvfs room {};
  if (::statvfs(point.c_str(), &room) < 0) return std::nullopt;
  return Room{std::uint64_t{room.f_blocks} * room.f_frsize,
              std::uint64_t{room.f_bavail} * room.f_frsize};
}

// The tiers of the configurations in /etc/sluice. Files that cannot be read are skipped.
std::vector<std::string> configured_tiers() {
  std::vector<std::string> paths;
  for (const auto& name : MachineView().names(kFolder)) {
    MountOptions options;
    if (!name.ends_with(".toml") ||
        !apply_config_file(std::string(kFolder) + "/" + name, options)) {
      continue;
    }
    for (const auto& tier : options.tiers) paths.push_back(tier.path);
  }
  return paths;
}

std::string found_text(const Style& style, const FoundDisks& found) {
  using Align = Table::Align;
  Table table({{"MOUNTED AT"},
               {"DISK"},
               {"FILESYSTEM"},
               {"SIZE", Align::Right},
               {"FREE", Align::Right},
               {"TIER"},
               {"WHY"}});
  for (const auto& each : found.filesystems) {
    const bool is_tier = !each.tier.empty();
    const std::string disk =
        each.disk.empty() ? "-" : each.disk + ", " + std::string(name_of(each.kind));
    const auto size = [&](std::uint64_t bytes) {
      return each.size == 0 ? "-" : format_size(bytes);
    };
    table.add({safe_name(style, each.point),
               disk,
               each.type,
               size(each.size),
               size(each.free),
               {is_tier ? each.tier : "no", is_tier ? Color::Green : Color::Dim},
               safe_name(style, is_tier ? each.path + ": " + each.why : each.why)});
  }
  std::string out = found.filesystems.empty() ? "" : table.text(style);
  for (const auto& each : found.idle) {
    out += each.device + ", " + format_size(each.size) + ": " + each.words + "\n";
  }
  return out;
}

std::vector<std::string> proposed_tiers(const FoundDisks& found) {
  std::vector<std::string> tiers;
  for (const auto& each : found.filesystems) {
    if (!each.tier.empty() && tiers.size() < kMostTiers)
      tiers.push_back(each.tier + "=" + each.path);
  }
  return tiers;
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

// Reads one line from the terminal. Returns `proposed` for an empty line, nothing at the end of
// input.
std::optional<std::string> ask(const Style& style, const std::string& question,
                               const std::string& proposed) {
  std::fputs((style.paint(Color::Bold, question) +
              (proposed.empty() ? "" : " [" + safe_name(style, proposed) + "]") + ": ")
                 .c_str(),
             stdout);
  std::fflush(stdout);
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line.empty() ? proposed : line;
}

InitConfig config_for(const FoundDisks& found, const Request& request,
                      const std::vector<std::string>& tiers) {
  InitConfig config{request.output,          request.mountpoint, tiers, {}, {}, {},
                    !request.purpose.empty()};
  for (const auto& each : found.filesystems) {
    if (!each.tier.empty()) config.new_parents.push_back(each.parent);
  }
  return config;
}

// A pool name whose configuration file does not exist yet.
std::string free_name(const std::string& wanted) {
  std::string name = wanted;
  for (int i = 2; ::access(config_path(kFolder, name).c_str(), F_OK) == 0; ++i) {
    name = wanted + std::to_string(i);
  }
  return name;
}

// Collects what the questions ask for: from options, by asking, or from the proposals.
class Answers {
 public:
  Answers(const Style& style, const FoundDisks& found, bool asks, Request& request)
      : style_(style), found_(found), asks_(asks), request_(request) {}

  // Completes the request. Returns an exit code if the verb ends here.
  std::optional<int> complete() {
    if (request_.tiers.empty() && !take_tiers()) return fail(kVerb, kNothing);
    if (request_.tiers.empty()) {
      return fail(kVerb,
                  "found no filesystem that can be a tier; give directories with --tier NAME=PATH");
    }
    if (request_.name.empty() &&
        !take(request_.name, "Name of the pool",
              request_.output.empty() ? free_name(usual_name()) : usual_name(),
              [&](const std::string& name) { return check_name(name); })) {
      return fail(kVerb, kNothing);
    }
    if (!is_pool_name(request_.name)) return misuse(kVerb, not_a_name(request_.name));
    if (request_.mountpoint.empty() &&
        !take(request_.mountpoint, "Where to mount it", "/mnt/" + request_.name,
              [&](const std::string& path) { return check_mountpoint(path); })) {
      return fail(kVerb, kNothing);
    }
    if (request_.output.ends_with('/')) {
      return misuse(kVerb, "--output " + log::escaped(request_.output) +
                               " must be a file, such as " +
                               log::escaped(config_path(request_.output, request_.name)));
    }
    request_.mountpoint = absolute_path(request_.mountpoint);
    if (request_.output.empty()) request_.output = config_path(kFolder, request_.name);
    request_.output = absolute_path(request_.output);
    return std::nullopt;
  }

 private:
  static constexpr const char* kNothing = "no answer; nothing was written";
  using Check = std::function<Result<void>(const std::string& answer)>;

  // Asks until the answer can be used. False at the end of input.
  bool take(std::string& value, const std::string& question, const std::string& proposed,
            const Check& check) const {
    if (!asks_) {
      value = proposed;
      return true;
    }
    for (;;) {
      const auto answer = ask(style_, question, proposed);
      if (!answer) return false;
      const auto checked = check(*answer);
      if (checked) {
        value = *answer;
        return true;
      }
      std::printf("  %s\n", log::escaped(checked.error().text()).c_str());
    }
  }

  bool take_tiers() {
    const std::string proposed = joined(proposed_tiers(found_));
    // Not split: a proposed path may contain spaces, which the prompt does not accept.
    const auto words = [&](const std::string& text) {
      return text == proposed ? proposed_tiers(found_) : parts_of(text, ' ');
    };
    std::string tiers;
    if (!take(tiers, "Tiers, fastest first, as NAME=DIRECTORY separated by spaces", proposed,
              [&](const std::string& text) {
                return check_tiers_of(config_for(found_, request_, words(text)));
              })) {
      return false;
    }
    request_.tiers = words(tiers);
    return true;
  }

  std::string usual_name() const { return request_.purpose.empty() ? "pool" : request_.purpose; }

  static std::string not_a_name(const std::string& name) {
    return "'" + log::escaped(name) +
           "' is not a valid pool name; use letters, digits, '_', '-' and '.'";
  }

  Result<void> check_name(const std::string& name) const {
    if (!is_pool_name(name)) return Error{EINVAL, "name the pool", not_a_name(name)};
    const std::string file = config_path(kFolder, name);
    if (request_.output.empty() && !request_.force && ::access(file.c_str(), F_OK) == 0)
      return Error{EEXIST, "name the pool", file + " exists; choose another name"};
    return {};
  }

  Result<void> check_mountpoint(const std::string& path) const {
    InitConfig config = config_for(found_, request_, request_.tiers);
    config.mountpoint = absolute_path(path);
    SLUICE_TRY(prepare_config(config));
    return check_places(config);
  }

  const Style& style_;
  const FoundDisks& found_;
  const bool asks_;
  Request& request_;
};

// Describes the files in a directory that becomes a tier. Counts for at most a second.
std::string adoption(const TierOptions& tier) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  const TierCount count = count_tier(tier.path, deadline, [](const TierCount&) {});
  if (count.files == 0) return {};
  return "tier " + tier.name + ": " + (count.complete ? "" : "at least ") +
         format_files(count.files) + " (" + format_size(count.bytes) + ") in " +
         log::escaped(tier.path) +
         " will be part of the pool. Mounting adds only the directory .sluice; later, files move "
         "to other tiers by heat, unless the configuration has migrate = false.\n";
}

Json to_json(const FoundDisks& found, const Request& request, const std::string& text,
             bool is_written) {
  Json filesystems = Json::array();
  for (const auto& each : found.filesystems) {
    filesystems.push_back({{"mounted_at", each.point},
                           {"filesystem", each.type},
                           {"source", each.source},
                           {"disk", each.disk.empty() ? Json() : Json(each.disk)},
                           {"kind", name_of(each.kind)},
                           {"size", each.size},
                           {"free", each.free},
                           {"tier", each.tier.empty() ? Json() : Json(each.tier)},
                           {"path", each.tier.empty() ? Json() : Json(each.path)},
                           {"why", each.why}});
  }
  Json idle = Json::array();
  for (const auto& each : found.idle) {
    idle.push_back({{"device", each.device}, {"size", each.size}, {"words", each.words}});
  }
  Json environment = Json::object();
  if (!request.purpose.empty()) {
    for (const auto& [name, value] : models_environment(request.mountpoint))
      environment[name] = value;
  }
  return {{"version", SLUICE_VERSION}, {"filesystems", std::move(filesystems)},
          {"idle", std::move(idle)},   {"tiers", request.tiers},
          {"name", request.name},      {"mountpoint", request.mountpoint},
          {"file", request.output},    {"text", text},
          {"written", is_written},     {"environment", std::move(environment)}};
}

}  // namespace

int command_init(int argc, char** argv) {
  Arguments arguments;
  Request request;
  arguments.option("--tier", request.tiers);
  arguments.option("--mountpoint", request.mountpoint);
  arguments.option("--name", request.name);
  arguments.option("--for", request.purpose);
  arguments.option("-o,--output", request.output);
  arguments.flag("-y,--yes", request.yes);
  arguments.flag("--force", request.force);
  arguments.flag("--dry-run", request.dry_run);
  arguments.flag("--json", request.json);
  arguments.option("--color", request.color);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  const auto style = style_for(kVerb, request.color);
  if (!style) return kUsage;
  if (!request.purpose.empty() && request.purpose != kModels) {
    return misuse(kVerb, "--for " + log::escaped(request.purpose) +
                             ": there is no such purpose; the only one is 'models'");
  }
  const bool may_ask = ::isatty(STDIN_FILENO) != 0 && !request.json;
  const bool has_answers = !request.tiers.empty() && !request.mountpoint.empty();
  if (!may_ask && !request.yes && !request.json && !request.dry_run && !has_answers) {
    return misuse(
        kVerb,
        "standard input is not a terminal; give --tier and --mountpoint, or --yes to accept "
        "the proposals ('sluice init --dry-run' shows them)");
  }

  const FoundDisks found = find_disks(MachineView(), room_at, configured_tiers());
  if (!request.json && request.tiers.empty()) {
    std::fputs((found_text(*style, found) + "\n").c_str(), stdout);
  }
  const bool writes = !request.dry_run && (!request.json || request.yes);
  if (const auto code = Answers(*style, found, may_ask && !request.yes, request).complete())
    return *code;

  InitConfig config = config_for(found, request, request.tiers);
  auto usable = prepare_config(config);
  if (usable) usable = check_places(config);
  if (!usable) return fail(kVerb, usable.error().text());
  std::string adopted;
  for (const auto& tier : config.options.tiers) adopted += adoption(tier);
  if (writes) {
    const auto made = write_config(config, request.force);
    if (!made) return fail(kVerb, made.error().text());
    for (const auto& path : *made) {
      if (!request.json) std::printf("created %s\n", log::escaped(path).c_str());
    }
  }
  if (request.json) {
    std::puts(to_json(found, request, config.text, writes)
                  .dump(2, ' ', false, Json::error_handler_t::replace)
                  .c_str());
    return kDone;
  }
  if (!writes) {
    std::printf("would write %s:\n\n%s", log::escaped(request.output).c_str(), config.text.c_str());
    if (!adopted.empty()) std::printf("\n%s", adopted.c_str());
    return kDone;
  }
  std::vector<NamedTier> named;
  for (const auto& tier : config.options.tiers) named.push_back({tier.name, tier.path});
  if (const std::string warning = open_tiers_warning(named); !warning.empty()) {
    adopted += "warning: " + warning + " (after the pool is mounted)\n";
  }
  std::printf(
      "wrote %s\n%s\n%s", log::escaped(request.output).c_str(), adopted.c_str(),
      next_steps(config, config_path(kFolder, request.name) == request.output ? request.name : "")
          .c_str());
  return kDone;
}

}  // namespace sluice::tools::cli
