// SPDX-License-Identifier: BSD-2-Clause
// sluice pin and sluice unpin.
#include <cstdio>
#include <vector>

#include "base/log.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/attributes.hpp"
#include "tools/common/mount_status.hpp"

namespace sluice {
namespace {

constexpr const char* kPin = "user.sluice.pin";
constexpr const char* kHbm = "user.sluice.hbm";

constexpr HelpText kPinHelp{.usage = "sluice pin TIER PATH...",
                            .options = R"(  -h, --help  short help (-h) or full help (--help)
)",
                            .details = R"(
Keeps files on a tier, whatever their heat and the rules. The pin of a directory
applies to everything below it, unless a file or a directory in between has its own
pin. Files on other tiers move to the pinned tier in the background.

The pin is stored with the file as the attribute user.sluice.pin.

TIER hbm keeps a file in the memory of the first GPU, if the mount has the option hbm,
as long as there is room. It is stored as user.sluice.hbm, and a file can have both pins.
At most 256 files can be pinned there, and 64 by a user who is not root.

Examples:
  sluice pin nvme /mnt/pool/models
  sluice pin hdd /mnt/pool/archive/*.tar
  sluice pin hbm /mnt/pool/models/small.safetensors

Exit status: 0 done, 1 failed for at least one path, 2 wrong usage.
)"};

constexpr HelpText kUnpinHelp{.usage = "sluice unpin [--hbm] PATH...",
                              .options = R"(      --hbm   remove the pin to GPU memory instead
  -h, --help  short help (-h) or full help (--help)
)",
                              .details = R"(
Removes the pins of files and directories, so that heat and rules decide again. An
inherited pin must be removed from the directory that has it; 'sluice explain' shows
which one that is.

Examples:
  sluice unpin /mnt/pool/models

Exit status: 0 done, 1 failed for at least one path, 2 wrong usage.
)"};

std::string describe_unpin_error(const Error& error, const Target& target) {
  if (error.code != ENODATA) return describe_attribute_error(error, target, "", 0);
  std::string text = log::escaped(target.path) + ": it has no pin";
  if (const auto explanation = read_explanation(target.path)) {
    const auto& pin = member_of(*explanation, "pin");
    if (const std::string from = text_of(pin, "from"); !from.empty()) {
      text += "; it inherits the pin of " + log::escaped(from) + " to tier " + text_of(pin, "tier");
    }
  }
  return text;
}

// Calls `act(target)`, which returns the problem, for each path. Continues after a failure.
template <typename Act>
int for_each_path(std::string_view verb, const std::vector<std::string>& paths, Act act) {
  const auto mounts = mount_table();
  int code = kDone;
  for (const auto& path : paths) {
    std::string problem;
    const auto target = find_target(mounts, path, problem);
    if (target) problem = act(*target);
    if (!problem.empty()) code = fail(verb, problem);
  }
  return code;
}

}  // namespace

int command_pin(int argc, char** argv) {
  Arguments arguments;
  std::string tier;
  std::vector<std::string> paths;
  arguments.option("TIER", tier, Arguments::Need::Required);
  arguments.option("PATH", paths, Arguments::Need::Required);
  if (const auto code = arguments.parse(argc, argv, kPinHelp)) return *code;

  return for_each_path("pin", paths, [&](const Target& target) -> std::string {
    const auto set = set_attribute(target.path, kPin, tier);
    if (failed_with(set, EISDIR))
      return log::escaped(target.path) + ": only files can be pinned to GPU memory";
    if (tier == "hbm" && failed_with(set, EDQUOT))
      return log::escaped(target.path) +
             ": this user has 64 files pinned to GPU memory, the most for a user who is not root; "
             "see 'sluice unpin --hbm'";
    if (tier == "hbm" && failed_with(set, ENOSPC))
      return log::escaped(target.path) +
             ": 256 files are pinned to GPU memory already, or its tier is full; see 'sluice unpin "
             "--hbm'";
    return set ? "" : describe_attribute_error(set.error(), target, tier, 0);
  });
}

int command_unpin(int argc, char** argv) {
  Arguments arguments;
  std::vector<std::string> paths;
  bool hbm = false;
  arguments.flag("--hbm", hbm);
  arguments.option("PATH", paths, Arguments::Need::Required);
  if (const auto code = arguments.parse(argc, argv, kUnpinHelp)) return *code;

  return for_each_path("unpin", paths, [&](const Target& target) -> std::string {
    const auto removed = remove_attribute(target.path, hbm ? kHbm : kPin);
    if (failed_with(removed, ENODATA) && hbm)
      return log::escaped(target.path) + ": it is not pinned to GPU memory";
    return removed ? "" : describe_unpin_error(removed.error(), target);
  });
}

}  // namespace sluice
