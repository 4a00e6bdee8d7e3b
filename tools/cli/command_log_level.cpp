// SPDX-License-Identifier: BSD-2-Clause
#include <algorithm>
#include <cstdio>
#include <optional>

#include "base/log.hpp"
#include "fs/control/options.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/control_client.hpp"
#include "tools/common/mount_status.hpp"

namespace sluice {
namespace {

constexpr HelpText kHelp{.usage = "sluice log-level LEVEL [MOUNT]",
                         .options = R"(  -h, --help  this list; the whole description
)",
                         .details = R"(
Changes how much the daemon of a mount logs, until it ends or that is changed again.
LEVEL is trace, debug, info, warn or error. log_level in the configuration is what a
mount begins with; 'sluice status' says where its state, and there the log, is.

MOUNT may be left out inside a mount, or where there is only one.

Examples:
  sluice log-level debug
  sluice log-level info /mnt/pool

Exit status: 0 changed, 1 failed, 2 wrong usage.
)"};

}  // namespace

int command_log_level(int argc, char** argv) {
  Arguments arguments;
  std::string level, given;
  arguments.option("LEVEL", level, Arguments::Need::Required);
  arguments.option("MOUNT", given);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  if (std::find(log::kLevels.begin(), log::kLevels.end(), level) == log::kLevels.end()) {
    const auto close = closest_word(level, log::kLevels);
    return misuse("log-level", "'" + log::escaped(level) + "' is no level; " +
                                   (close ? "did you mean '" + std::string(*close) + "'?"
                                          : "allowed: trace, debug, info, warn, error"));
  }
  const auto mount = mount_for("log-level", given);
  if (!mount) return kFailed;
  const auto answer = ask_daemon(*mount, {{"verb", "log-level"}, {"level", level}});
  if (!answer) return fail("log-level", answer.error().text());
  std::printf("log level %s (it was %s)\n", level.c_str(),
              log::escaped(text_of(answer->last, "before")).c_str());
  return kDone;
}

}  // namespace sluice
