// SPDX-License-Identifier: BSD-2-Clause
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>

#include "base/log.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/control_client.hpp"
#include "tools/common/mount_status.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr HelpText kHelp{.usage = "sluice restart [MOUNT]",
                         .options = R"(  -h, --help  short help (-h) or full help (--help)
)",
                         .details = R"(
Replaces the daemon of a mount with a new one, for example after an upgrade of Sluice.
The mount stays: files stay open, and programs that use it wait for a moment and see
no error. The new daemon is the program that is installed now, with the arguments of
the mount command; it reads the configuration again.

If the new daemon cannot take over, the command says why and fails, and the mount goes
on as before.

MOUNT can be omitted if the current directory is in a mount, or if there is only one
mount.

Example:
  sluice restart /mnt/pool

Exit status: 0 restarted, 1 failed, 2 wrong usage.
)"};

// How long the old daemon may take to finish what is in progress, and the new one to begin.
constexpr std::chrono::minutes kLimit{5};
constexpr milliseconds kPause{20};

std::string describe(const Json& status) {
  return "sluice " + log::escaped(text_of(status, "version")) + " (process " +
         std::to_string(number_of(status, "pid")) + ")";
}

// Waits for another daemon. Returns its status.
Result<Json> wait_for_successor(const std::string& mount, const Json& before) {
  for (const auto deadline = steady_clock::now() + kLimit; steady_clock::now() < deadline;) {
    // This waits while no daemon serves the mount.
    auto now = mount_status(mount);
    if (!now) {
      const int code = now.error().code;
      return Error{code, "restart", describe_status_error(now.error(), mount)};
    }
    const bool is_another = number_of(*now, "pid") != number_of(before, "pid");
    if (const std::string why = text_of(*now, "restart_failure"); !why.empty()) {
      return Error{
          EREMOTEIO, "restart",
          why + (is_another ? "; the previous program serves the mount again: " + describe(*now)
                            : "; the mount goes on with " + describe(*now))};
    }
    if (is_another) return now;
    std::this_thread::sleep_for(kPause);
  }
  return Error{ETIMEDOUT, "restart", "the daemon has not handed over within 5 min; see its log"};
}

}  // namespace

int command_restart(int argc, char** argv) {
  Arguments arguments;
  std::string given;
  arguments.option("MOUNT", given);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  const auto mount = mount_for("restart", given);
  if (!mount) return kFailed;
  const auto before = mount_status(*mount);
  if (!before) return fail("restart", describe_status_error(before.error(), *mount));

  const std::string where = log::escaped(*mount);
  // It answers when the old daemon is about to hand over, if that one does not end first.
  const auto asked = ask_daemon(*mount, {{"verb", "restart"}});
  if (!asked && asked.error().code != ECONNRESET) return fail("restart", asked.error().text());
  const auto after = wait_for_successor(*mount, *before);
  if (!after) return fail("restart", where + ": " + log::escaped(after.error().text()));
  std::string waited;
  if (const Json& time = member_of(*after, "handover_ms"); time.is_number())
    waited = "; requests waited " + std::to_string(number_of(*after, "handover_ms")) + " ms";
  std::printf("%s: %s -> %s%s\n", where.c_str(), describe(*before).c_str(),
              describe(*after).c_str(), waited.c_str());
  return kDone;
}

}  // namespace sluice::tools::cli
