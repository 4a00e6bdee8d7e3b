// SPDX-License-Identifier: BSD-2-Clause
#include <cstdio>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/control_client.hpp"
#include "tools/common/mount_status.hpp"

namespace sluice::tools::cli {
namespace {

constexpr std::string_view kVerb = "set";

constexpr HelpText kHelp{.usage = "sluice set OPTION [VALUE] [MOUNT]",
                         .options =
                             R"(      --reset  end the trial: the option is as configured again
  -h, --help   short help (-h) or full help (--help)
)",
                         .details = R"(
Tries an option out on a running mount: it lasts until the next reload, mount or restart
of the daemon. To keep it, write it to the configuration. OPTION is as in the
configuration, or TIER.OPTION for an option of a tier. VALUE is written without quotes.
'sluice status' shows what is on trial; sluice.toml(5) marks the options that can change
while the pool is mounted. The attribute user.sluice.set.OPTION of the mount point does
the same, but cannot say why a value is refused.

Without VALUE, prints the value in force, of any option but those of the group debug.

MOUNT can be omitted if the current directory is in a mount, or if there is only one
mount.

Examples:
  sluice set bandwidth 50MiB
  sluice set nvme.high_watermark 85 /mnt/pool
  sluice set bandwidth
  sluice set --reset bandwidth

Exit status: 0 set or shown, 1 failed, 2 wrong usage.
)"};

}  // namespace

int command_set(int argc, char** argv) {
  Arguments arguments;
  std::string option;
  std::vector<std::string> rest;  // VALUE and MOUNT; with --reset, MOUNT
  bool resets = false;
  arguments.flag("--reset", resets);
  arguments.option("OPTION", option, Arguments::Need::Required);
  arguments.option("VALUE", rest);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  // No option that can change has a path as its value.
  const bool has_value = !resets && !rest.empty() && !rest.front().starts_with('/');
  const std::size_t at = has_value ? 1 : 0;  // of MOUNT
  if (rest.size() > at + 1) return misuse(kVerb, "too many arguments; see 'sluice set --help'");
  const auto mount = mount_for(kVerb, rest.size() > at ? rest[at] : "");
  if (!mount) return kFailed;

  nlohmann::ordered_json request = {{"verb", "set"}, {"name", option}};
  if (resets) request["reset"] = true;
  if (has_value) request["value"] = rest.front();
  const auto answer = ask_daemon(*mount, request);
  if (!answer) return fail(kVerb, answer.error().text());
  const std::string now = log::escaped(text_of(answer->last, "value"));
  if (!resets && !has_value) {
    std::printf("%s\n", now.c_str());
    return kDone;
  }
  std::printf("%s: %s -> %s\n", log::escaped(option).c_str(),
              log::escaped(text_of(answer->last, "from")).c_str(), now.c_str());
  std::fflush(stdout);
  if (has_value) std::fputs("until the next reload, restart or mount\n", stderr);
  return kDone;
}

}  // namespace sluice::tools::cli
