// SPDX-License-Identifier: BSD-2-Clause
#include <cstdio>

#include "base/log.hpp"
#include "fs/control/options.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/control_client.hpp"
#include "tools/common/mount_status.hpp"

namespace sluice::tools::cli {
namespace {

constexpr HelpText kHelp{
    .usage = "sluice reload [MOUNT | --config FILE]",
    .options = R"(  -c, --config FILE  reload the mount whose mount point this TOML file names
  -h, --help         short help (-h) or full help (--help)
)",
    .details = R"(
Makes a mount read its configuration file again and use what has changed: policy,
thresholds, rules, watermarks, reserve, windows, bandwidth and log level, among others.
Files stay open and nothing waits. The next plan uses the new options. Settings on trial
('sluice set') end.

The command lists what has changed, and what takes effect only at the next mount; for
most of that, 'sluice restart' is enough. If the file is invalid, it says where and
fails, and nothing changes. Environment and flags of the mount command still override
the file. A mount without a configuration file can't be reloaded.

SIGHUP to the keeper or the daemon does the same; the result is in the log.
Options with a * in sluice.toml(5) can change this way.

MOUNT can be omitted if the current directory is in a mount, or if there is only one
mount.

Examples:
  sluice reload /mnt/pool
  systemctl reload sluice@pool

Exit status: 0 reloaded, 1 failed, 2 wrong usage.
)"};

}  // namespace

int command_reload(int argc, char** argv) {
  Arguments arguments;
  std::string given, config;
  arguments.option("-c,--config", config);
  arguments.option("MOUNT", given);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  if (!given.empty() && !config.empty())
    return misuse("reload", "either MOUNT or --config; see 'sluice reload --help'");
  if (!config.empty()) {
    MountOptions options;
    if (const auto read = apply_config_file(config, options); !read)
      return fail("reload", read.error().text());
    if (options.mountpoint.empty())
      return fail("reload", log::escaped(config) + " has no mountpoint");
    given = options.mountpoint;
  }
  const auto mount = mount_for("reload", given);
  if (!mount) return kFailed;
  const auto answer = ask_daemon(*mount, {{"verb", "reload"}});
  if (!answer) return fail("reload", answer.error().text());
  const auto& changed = member_of(answer->last, "changed");
  const auto& later = member_of(answer->last, "later");
  for (const auto& each : changed) {
    std::printf("%s: %s -> %s\n", log::escaped(text_of(each, "name")).c_str(),
                log::escaped(text_of(each, "from")).c_str(),
                log::escaped(text_of(each, "to")).c_str());
  }
  for (const auto& each : later) {
    std::printf("takes effect at the next mount: %s\n",
                log::escaped(each.is_string() ? each.get<std::string>() : "").c_str());
  }
  if (changed.empty() && later.empty()) std::printf("nothing has changed\n");
  return kDone;
}

}  // namespace sluice::tools::cli
