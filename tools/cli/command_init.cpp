// SPDX-License-Identifier: BSD-2-Clause
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
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
#include "tools/cli/tier_access.hpp"
#include "tools/cli/tier_count.hpp"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kVerb = "init";
constexpr const char* kFolder = "/etc/sluice";

constexpr HelpText kHelp{
    .usage = "sluice init [--yes] [--tier NAME=PATH]... [--mountpoint DIR] [--name NAME]",
    .options = R"(      --tier NAME=PATH[,KEY=VALUE]...
                        a tier, fastest first, in place of those proposed
      --mountpoint DIR  where the pool is to appear (/mnt/NAME)
      --name NAME       of the pool (pool): the file is /etc/sluice/NAME.toml
  -o, --output FILE     write there instead
  -y, --yes             take what is proposed, ask nothing
      --force           replace a file that is there
      --dry-run         show what would be written, and write nothing
      --json            what was found and is proposed; writes only with --yes
      --color WHEN      auto (default), always, never
  -h, --help            this list; the whole description
)",
    .details = R"(
Looks at the filesystems of this machine and proposes tiers: NVMe before SSD before
hard disks, and of two of a kind the smaller first. On each it makes a new directory,
'sluice' or 'sluice2', that only root can enter, and the tier in it; what is there
already stays outside of the pool. Left out, each with its reason,
are the root filesystem (unless it is all there is), the system's own, what is
read-only, removable, on the network, of FUSE, full, smaller than 8 GiB or a tier
already.

It asks three questions at a terminal: which tiers, the pool's name, where to mount
it. Flags answer them before. Then it makes the directories that are missing and
writes the configuration, checked by the same code that 'sluice mount' uses, and says
how to mount it. It formats nothing and mounts nothing. Disks that nothing here uses
are named, with what udev knows to be on them.

A tier may be a directory that has files: they will be in the pool, where they are. A
tier that users can enter by its path is told of, with the command that closes it.

Examples:
  sudo sluice init
  sudo sluice init --yes
  sudo sluice init --tier nvme=/fast --tier hdd=/data --mountpoint /mnt/pool
  sluice init --dry-run --yes
  sluice init --json | jq .tiers

Exit status: 0 written or shown, 1 failed, 2 wrong usage.
)"};

struct Request {
  std::vector<std::string> tiers;  // as --tier takes them
  std::string mountpoint, name, output;
  std::string color = "auto";
  bool yes = false, force = false, dry_run = false, json = false;
};

std::optional<Room> room_at(const std::string& point) {
  struct statvfs room {};
  if (::statvfs(point.c_str(), &room) < 0) return std::nullopt;
  return Room{std::uint64_t{room.f_blocks} * room.f_frsize,
              std::uint64_t{room.f_bavail} * room.f_frsize};
}

// The tiers that the files in /etc/sluice name. A file that can't be read names none.
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

// One line from the terminal; what is proposed if it is empty, nothing at its end.
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

// A name for which there is no file yet.
std::string free_name() {
  std::string name = "pool";
  for (int i = 2; ::access(config_path(kFolder, name).c_str(), F_OK) == 0; ++i) {
    name = "pool" + std::to_string(i);
  }
  return name;
}

// Fills in what was not said, by asking or from the proposals. An exit code if it ends here.
std::optional<int> complete(const Style& style, const FoundDisks& found, bool may_ask,
                            Request& request) {
  const bool asks = may_ask && !request.yes;
  const auto settle = [&](std::string& value, const std::string& question,
                          const std::string& proposed) {
    if (!value.empty()) return true;
    const auto answer = asks ? ask(style, question, proposed) : proposed;
    if (!answer) return false;
    value = *answer;
    return true;
  };
  constexpr const char* kNothing = "nothing was written";
  if (request.tiers.empty()) {
    std::string tiers;
    if (!settle(tiers, "Tiers, fastest first, as NAME=DIRECTORY with spaces between",
                joined(proposed_tiers(found)))) {
      return fail(kVerb, kNothing);
    }
    // Taken as they are: a proposed path may have spaces, which can't be typed.
    request.tiers =
        tiers == joined(proposed_tiers(found)) ? proposed_tiers(found) : parts_of(tiers, ' ');
  }
  if (request.tiers.empty()) {
    return fail(kVerb, "no filesystem here would do as a tier; name directories: --tier NAME=PATH");
  }
  if (!settle(request.name, "Name of the pool", request.output.empty() ? free_name() : "pool")) {
    return fail(kVerb, kNothing);
  }
  if (!is_pool_name(request.name)) {
    return misuse(kVerb,
                  "'" + log::escaped(request.name) +
                      "' is no name for a pool; letters, digits, '_', '-' and '.' are allowed");
  }
  if (!settle(request.mountpoint, "Where to mount it", "/mnt/" + request.name)) {
    return fail(kVerb, kNothing);
  }
  if (request.output.ends_with('/')) {
    return misuse(kVerb, "--output " + log::escaped(request.output) + " is to be a file: " +
                             log::escaped(config_path(request.output, request.name)));
  }
  request.mountpoint = absolute_path(request.mountpoint);
  if (request.output.empty()) request.output = config_path(kFolder, request.name);
  request.output = absolute_path(request.output);
  return std::nullopt;
}

// What is in a directory that becomes a tier. Counting ends after a second.
std::string adoption(const TierOptions& tier) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  const TierCount count = count_tier(tier.path, deadline, [](const TierCount&) {});
  if (count.files == 0) return {};
  return "tier " + tier.name + ": " + (count.complete ? "" : "at least ") +
         format_files(count.files) + " (" + format_size(count.bytes) + ") in " +
         log::escaped(tier.path) +
         " will be in the pool, where they are. Mounting adds only .sluice there; later, files "
         "move to other tiers by their use, unless the configuration says migrate = false.\n";
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
  return {{"version", SLUICE_VERSION}, {"filesystems", std::move(filesystems)},
          {"idle", std::move(idle)},   {"tiers", request.tiers},
          {"name", request.name},      {"mountpoint", request.mountpoint},
          {"file", request.output},    {"text", text},
          {"written", is_written}};
}

}  // namespace

int command_init(int argc, char** argv) {
  Arguments arguments;
  Request request;
  arguments.option("--tier", request.tiers);
  arguments.option("--mountpoint", request.mountpoint);
  arguments.option("--name", request.name);
  arguments.option("-o,--output", request.output);
  arguments.flag("-y,--yes", request.yes);
  arguments.flag("--force", request.force);
  arguments.flag("--dry-run", request.dry_run);
  arguments.flag("--json", request.json);
  arguments.option("--color", request.color);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  const auto style = style_for(kVerb, request.color);
  if (!style) return kUsage;
  const bool may_ask = ::isatty(STDIN_FILENO) != 0 && !request.json;
  const bool is_said = !request.tiers.empty() && !request.mountpoint.empty();
  if (!may_ask && !request.yes && !request.json && !request.dry_run && !is_said) {
    return misuse(kVerb,
                  "there is no terminal to ask at; give --tier and --mountpoint, or --yes to take "
                  "what is proposed ('sluice init --dry-run' shows it)");
  }

  const FoundDisks found = find_disks(MachineView(), room_at, configured_tiers());
  if (!request.json && request.tiers.empty()) {
    std::fputs((found_text(*style, found) + "\n").c_str(), stdout);
  }
  const bool writes = !request.dry_run && (!request.json || request.yes);
  if (const auto code = complete(*style, found, may_ask, request)) return *code;

  InitConfig config{request.output, request.mountpoint, request.tiers, {}, {}, {}};
  for (const auto& each : found.filesystems) {
    if (!each.tier.empty()) config.new_parents.push_back(each.parent);
  }
  auto usable = prepare_config(config);
  if (usable) usable = check_places(config);
  if (!usable) return fail(kVerb, usable.error().text());
  std::string adopted;
  for (const auto& tier : config.options.tiers) adopted += adoption(tier);
  if (writes) {
    const auto made = write_config(config, request.force);
    if (!made) return fail(kVerb, made.error().text());
    for (const auto& path : *made) {
      if (!request.json) std::printf("made %s\n", log::escaped(path).c_str());
    }
  }
  if (request.json) {
    std::puts(to_json(found, request, config.text, writes)
                  .dump(2, ' ', false, Json::error_handler_t::replace)
                  .c_str());
    return kDone;
  }
  if (!writes) {
    std::printf("%s would be:\n\n%s", log::escaped(request.output).c_str(), config.text.c_str());
    if (!adopted.empty()) std::printf("\n%s", adopted.c_str());
    return kDone;
  }
  std::vector<NamedTier> named;
  for (const auto& tier : config.options.tiers) named.push_back({tier.name, tier.path});
  if (const std::string warning = open_tiers_warning(named); !warning.empty()) {
    adopted += "warning: " + warning + " (once it is mounted)\n";
  }
  std::printf(
      "wrote %s\n%s\n%s", log::escaped(request.output).c_str(), adopted.c_str(),
      next_steps(config, config_path(kFolder, request.name) == request.output ? request.name : "")
          .c_str());
  return kDone;
}

}  // namespace sluice
