// SPDX-License-Identifier: BSD-2-Clause
#include <algorithm>
#include <cstdio>
#include <optional>

#include "base/log.hpp"
#include "fs/control/options.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/control_client.hpp"
#include "tools/common/mount_status.hpp"

namespace sluice::tools::cli {
namespace {

constexpr HelpText kHelp{.usage = "sluice log-level LEVEL [MOUNT]",
                         .options = R"(  -h, --help  short help (-h) or full help (--help)
)",
                         .details = R"(
Changes the log level of a mount until the next 'sluice log-level', the next reload, or
the end of the daemon. LEVEL is trace, debug, info, warn or error. The option log_level
sets the level at mount and reload. 'sluice status' shows the state directory, which
contains the log.

MOUNT can be omitted if the current directory is in a mount, or if there is only one
mount.

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
    return misuse("log-level", "'" + log::escaped(level) + "' is not a log level; " +
                                   (close ? "did you mean '" + std::string(*close) + "'?"
                                          : "allowed: trace, debug, info, warn, error"));
  }
  const auto mount = mount_for("log-level", given);
  if (!mount) return kFailed;
  const auto answer = ask_daemon(*mount, {{"verb", "log-level"}, {"level", level}});
  if (!answer) return fail("log-level", answer.error().text());
  std::printf("log level is now %s (was %s)\n", level.c_str(),
              log::escaped(text_of(answer->last, "before")).c_str());
  return kDone;
}

}  // namespace sluice::tools::cli
