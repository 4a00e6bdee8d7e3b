// SPDX-License-Identifier: BSD-2-Clause
// sluice pin and sluice unpin.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <vector>

#include "base/log.hpp"
#include "tools/attributes.hpp"
#include "tools/commands.hpp"
#include "tools/mount_status.hpp"

namespace sluice {
namespace {

constexpr const char* kPin = "user.sluice.pin";

constexpr HelpText kPinHelp{.usage = "sluice pin TIER PATH...",
                            .options = R"(  -h, --help  this list; the whole description
)",
                            .details = R"(
Keeps files on a tier, whatever their heat and whatever the rules say. The pin of a
directory holds for everything below it that has no pin nearer by. Files that are
elsewhere move there in the background.

The pin is kept with the file, as the attribute user.sluice.pin.

Examples:
  sluice pin nvme /mnt/pool/models
  sluice pin hdd /mnt/pool/archive/*.tar

Exit status: 0 done, 1 failed for a path or more, 2 wrong usage.
)"};

constexpr HelpText kUnpinHelp{.usage = "sluice unpin PATH...",
                              .options = R"(  -h, --help  this list; the whole description
)",
                              .details = R"(
Takes the pin of files and directories away: heat and rules decide again. A pin that
a file inherits is taken away where it is set; 'sluice explain' tells where.

Examples:
  sluice unpin /mnt/pool/models

Exit status: 0 done, 1 failed for a path or more, 2 wrong usage.
)"};

std::string describe_unpin_error(const Error& error, const Target& target) {
  if (error.code != ENODATA) return describe_attribute_error(error, target, "", 0);
  std::string text = log::escaped(target.path) + ": it has no pin of its own";
  if (const auto explanation = read_explanation(target.path)) {
    const auto& pin = member_of(*explanation, "pin");
    if (const std::string from = text_of(pin, "from"); !from.empty()) {
      text += "; it has that of " + log::escaped(from) + ", tier " + text_of(pin, "tier");
    }
  }
  return text;
}

}  // namespace

int command_pin(int argc, char** argv) {
  CLI::App app;
  std::string tier;
  std::vector<std::string> paths;
  app.add_option("TIER", tier)->required();
  app.add_option("PATH", paths)->required();
  if (const auto code = parse_arguments(app, argc, argv, kPinHelp)) return *code;

  const auto mounts = mount_table();
  int code = kDone;
  for (const auto& path : paths) {
    std::string problem;
    const auto target = find_target(mounts, path, problem);
    if (!target) {
      code = fail("pin", problem);
    } else if (const auto set = set_attribute(path, kPin, tier); !set) {
      code = fail("pin", describe_attribute_error(set.error(), *target, tier, 0));
    }
  }
  return code;
}

int command_unpin(int argc, char** argv) {
  CLI::App app;
  std::vector<std::string> paths;
  app.add_option("PATH", paths)->required();
  if (const auto code = parse_arguments(app, argc, argv, kUnpinHelp)) return *code;

  const auto mounts = mount_table();
  int code = kDone;
  for (const auto& path : paths) {
    std::string problem;
    const auto target = find_target(mounts, path, problem);
    if (!target) {
      code = fail("unpin", problem);
    } else if (const auto removed = remove_attribute(path, kPin); !removed) {
      code = fail("unpin", describe_unpin_error(removed.error(), *target));
    }
  }
  return code;
}

}  // namespace sluice
