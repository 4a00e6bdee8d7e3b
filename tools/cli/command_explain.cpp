// SPDX-License-Identifier: BSD-2-Clause
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/attributes.hpp"
#include "tools/common/explanation.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr HelpText kHelp{
    .usage = "sluice explain [--json] PATH...",
    .options = R"(      --json        one JSON object per path; its members are stable
      --color WHEN  auto (default), always, never
  -h, --help        short help (-h) or full help (--help)
)",
    .details = R"(
Explains for each file where it is and why, how hot it is, and what would move it:

  on       its tier, its size, and how long it has been there
  at       its path on the tier
  heat     its score: each access adds 1, and the score halves every half_life
  why      why it is on this tier
  wants    the tier it should be on; 'but' says why it does not move there
  value    how often it is used, and for each tier how much waiting it saves there
           compared with the next slower tier, and what room there is worth
  pin      the pin that applies to it, and where that pin is set
  rule     the rule of the configuration that matches it
  budget   for each budget above it, when it is deleted, or why it is not
  up, down the scores at which it moves, with policy = "thresholds"
  stays    how long it will not move because it arrived recently (min_stay); it may move
           earlier if its tier runs out of room
  twin     the tier with an old copy that takes the file's place if it goes back unchanged
  moving, queued, waiting
           a move in progress, a move that waits for its turn, or one that cannot start
           yet and why
  moved    its last moves, newest first, and why it moved

Examples:
  sluice explain /mnt/pool/model.bin
  sluice explain --json /mnt/pool/* | jq -r 'select(.hold) | .path'

Exit status: 0 shown, 1 failed for at least one path, 2 wrong usage.
)"};

// Directories have no heat. A directory is on every tier that has something in it.
std::string directory_text(const Style& style, const Target& target) {
  std::string text = style.paint(Color::Bold, safe_name(style, target.path)) + "\n";
  if (const auto tiers = read_attribute(target.path, "user.sluice.tier")) {
    text += "  a directory, on " + safe_name(style, *tiers) + "\n";
  }
  if (const auto pin = read_attribute(target.path, "user.sluice.pin")) {
    text += "  pinned to " + safe_name(style, *pin) + ", and so is everything below it\n";
  }
  return text;
}

Json directory_json(const Target& target) {
  Json json = {{"path", target.path}, {"directory", true}};
  const auto tiers = read_attribute(target.path, "user.sluice.tier");
  const auto pin = read_attribute(target.path, "user.sluice.pin");
  json["tiers"] = tiers ? Json(*tiers) : Json();
  json["pin"] = pin ? Json{{"tier", *pin}} : Json();
  return json;
}

std::string describe_read_error(const Error& error, const Target& target) {
  const std::string where = log::escaped(target.path) + ": ";
  switch (error.code) {
    case ENODATA:
    case EOPNOTSUPP:
      return describe_attribute_error(error, target, "", 0);
    case EUCLEAN:
      return where + "cannot parse the daemon's answer; is it another version of sluice?";
    default:
      return where + std::strerror(error.code);
  }
}

std::string shown_json(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

int command_explain(int argc, char** argv) {
  Arguments arguments;
  bool as_json = false;
  std::string color = "auto";
  std::vector<std::string> paths;
  arguments.flag("--json", as_json);
  arguments.option("--color", color);
  arguments.option("PATH", paths, Arguments::Need::Required);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  const auto style = style_for("explain", color);
  if (!style) return kUsage;

  const auto mounts = mount_table();
  int code = kDone;
  bool is_first = true;
  for (const auto& path : paths) {
    std::string problem;
    const auto target = find_target(mounts, path, problem);
    if (!target) {
      code = fail("explain", problem);
      continue;
    }
    const auto explanation = read_explanation(path);
    std::string text;
    if (explanation) {
      text = as_json ? shown_json(*explanation)
                     : explanation_text(*style, path, *explanation, real_clock().seconds());
    } else if (target->is_directory && failed_with(explanation, ENODATA)) {
      text = as_json ? shown_json(directory_json(*target)) : directory_text(*style, *target);
    } else {
      code = fail("explain", describe_read_error(explanation.error(), *target));
      continue;
    }
    if (!as_json && !is_first) text.insert(0, "\n");
    is_first = false;
    std::fputs(text.c_str(), stdout);
  }
  return code;
}

}  // namespace sluice::tools::cli
