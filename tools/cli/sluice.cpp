// SPDX-License-Identifier: BSD-2-Clause
// sluice <verb> [options] <path>: the table of verbs.
#include <array>

#include "gpu/cufile_api.hpp"
#include "tools/cli/commands.hpp"

namespace sluice::tools::cli {
namespace {

constexpr std::array kVerbs{
    Verb{"init", "write a configuration for the disks of this machine", command_init},
    Verb{"mount", "present tiers as one namespace", command_mount},
    Verb{"umount", "unmount, and wait until everything is written", command_umount},
    Verb{"reload", "apply what has changed in the configuration", command_reload},
    Verb{"set", "try an option out on a running mount", command_set},
    Verb{"restart", "replace the daemon of a mount, which stays mounted", command_restart},
    Verb{"status", "show tiers, how full they are, and features in use", command_status},
    Verb{"top", "show a live view: tiers, moves, hottest files", command_top},
    Verb{"web", "serve a web page that shows a mount", command_web},
    Verb{"usage", "show what takes the room below a directory, and where", command_usage},
    Verb{"explain", "explain why a file is on its tier, and what would move it", command_explain},
    Verb{"plan", "show what would move, and why", command_plan},
    Verb{"move", "move files to a tier", command_move},
    Verb{"moves", "show past and waiting moves", command_moves},
    Verb{"pin", "keep files or directories on a tier", command_pin},
    Verb{"unpin", "remove pins, so that heat decides again", command_unpin},
    Verb{"budget", "limit what a directory may hold; files beyond that are deleted",
         command_budget},
    Verb{"tier", "run, pause or resume migration; add, drain or replace a tier", command_tier},
    Verb{"origin", "check and stamp a directory that several machines mount", command_origin},
    Verb{"trace", "record accesses for the simulator", command_trace},
    Verb{"gpu", "read files into GPU memory", command_gpu},
    Verb{"doctor", "check what this machine supports, and what to fix", command_doctor},
    Verb{"bundle", "collect data for a problem report, without file names", command_bundle},
    Verb{"fsck", "check a pool that is not mounted", command_fsck},
};

}  // namespace
}  // namespace sluice::tools::cli

const std::string_view sluice::tools::kProgramName = "sluice";

int main(int argc, char** argv) {
  sluice::keep_cufile_log_away();  // before threads start and before the daemon forks
  return sluice::tools::run_program(
      {sluice::tools::kProgramName, "sluice <verb> [options] <path>", sluice::tools::cli::kVerbs},
      argc, argv);
}
