// SPDX-License-Identifier: BSD-2-Clause
// sluice pin and sluice unpin.
#include <cstdio>
#include <vector>

#include "base/log.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/attributes.hpp"
#include "tools/common/control_client.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/output.hpp"
#include "tools/common/progress.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPin = "user.sluice.pin";
constexpr const char* kHbm = "user.sluice.hbm";
constexpr const char* kHbmOption = "user.sluice.set.hbm";

constexpr HelpText kPinHelp{
    .usage = "sluice pin TIER PATH...\n       sluice pin [--json] [MOUNT]",
    .options = R"(      --json        the list as one JSON object; its members are stable
      --color WHEN  auto (default), always, never
  -h, --help        short help (-h) or full help (--help)
)",
    .details = R"(
Keeps files on a tier, whatever their heat and the rules. The pin of a directory
applies to everything below it, unless a file or a directory in between has its own
pin. Files on other tiers move to the pinned tier in the background. A file with hard
links in several pinned directories goes to the fastest of their tiers; 'sluice explain'
shows only the pin that applies to the given name.

The pin is stored with the file as the attribute user.sluice.pin.

TIER hbm keeps a file in the memory of the first GPU, if the mount has the option hbm,
as long as there is room. It is stored as user.sluice.hbm, and a file can have both pins.
At most 256 files can be pinned there, and 64 by a user who is not root.

Without TIER and PATH, lists the pins of a mount, each with the file or directory that
has it (root only). To find them, all files are examined. MOUNT can be omitted if the
current directory is in a mount, or if there is only one mount.

Examples:
  sluice pin nvme /mnt/pool/models
  sluice pin hdd /mnt/pool/archive/*.tar
  sluice pin hbm /mnt/pool/models/small.safetensors
  sluice pin

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
  if (read_attribute(target.path, kHbm))
    text += " to a tier; 'sluice unpin --hbm' removes the one to GPU memory";
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

int list_pins(const Style& style, const std::string& given, bool as_json) {
  const auto mount = mount_for("pin", given);
  if (!mount) return kFailed;
  Json pins = Json::array();
  ProgressLine progress;
  ControlListener listener;
  listener.line = [&](const Json& line) {
    if (const Json& pin = member_of(line, "pin"); pin.is_object()) pins.push_back(pin);
    const Json& now = member_of(line, "progress");
    if (now.is_object() && progress.is_terminal() && progress.is_due())
      progress.show("examining files: " + format_count(number_of(now, "files")));
    return true;
  };
  const auto answer = ask_daemon(*mount, {{"verb", "pins"}}, listener);
  progress.clear();
  if (!answer) return fail("pin", answer.error().text());
  if (as_json) {
    const Json out = {{"pins", std::move(pins)}, {"offline", member_of(answer->last, "offline")}};
    std::puts(out.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    return kDone;
  }
  Table table({{"TIER"}, {"PATH"}});
  for (const Json& pin : pins) {
    const std::string path = text_of(pin, "path");
    table.add({safe_name(style, text_of(pin, "tier")),
               safe_name(style, path) + (flag_of(pin, "directory") && path != "/" ? "/" : "")});
  }
  std::string out = pins.empty() ? "nothing is pinned\n" : table.text(style);
  for (const Json& tier : member_of(answer->last, "offline")) {
    out += "not listed: pins of files on " + safe_name(style, tier.get<std::string>()) +
           ", which is offline\n";
  }
  std::fputs(out.c_str(), stdout);
  return kDone;
}

}  // namespace

int command_pin(int argc, char** argv) {
  Arguments arguments;
  std::string tier, color = "auto";
  std::vector<std::string> paths;
  bool as_json = false;
  arguments.flag("--json", as_json);
  arguments.option("--color", color);
  arguments.option("TIER", tier);
  arguments.option("PATH", paths);
  if (const auto code = arguments.parse(argc, argv, kPinHelp)) return *code;
  const auto style = style_for("pin", color);
  if (!style) return kUsage;
  // A name of a tier has no slash in it.
  if (paths.empty() && (tier.empty() || tier.find('/') != std::string::npos))
    return list_pins(*style, tier, as_json);
  if (paths.empty()) {
    return misuse("pin", "missing PATH; 'sluice pin " + shell_word(tier) +
                             " PATH' pins a file, and 'sluice pin' lists the pins");
  }

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
    if (!set) return describe_attribute_error(set.error(), target, tier, 0);
    if (tier != "hbm") return "";
    if (const auto room = read_attribute(target.mount, kHbmOption); room && *room == "0") {
      std::fprintf(stderr,
                   "%s is pinned, but it is not copied to GPU memory, because the option hbm of "
                   "the mount is 0; see sluice.toml(5)\n",
                   log::escaped(target.path).c_str());
    }
    return "";
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

}  // namespace sluice::tools::cli
