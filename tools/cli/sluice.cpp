// SPDX-License-Identifier: BSD-2-Clause
// sluice <verb> [options] <path>: the table of verbs.
#include <array>

#include "gpu/cufile_api.hpp"
#include "tools/cli/commands.hpp"

namespace sluice {
namespace {

constexpr std::array kVerbs{
    Verb{"init", "write a configuration for the disks of this machine", command_init},
    Verb{"mount", "present tiers as one namespace", command_mount},
    Verb{"umount", "unmount, and wait until everything is written", command_umount},
    Verb{"status", "tiers, fill, features in use, what lives where", command_status},
    Verb{"top", "a live view: tiers, moves, hottest files, throughput", command_top},
    Verb{"web", "a page to watch a mount in a browser", command_web},
    Verb{"explain", "why a file is where it is, and what would change that", command_explain},
    Verb{"plan", "what would move, and why", command_plan},
    Verb{"move", "move files to a tier", command_move},
    Verb{"moves", "what has moved, and what is waiting to", command_moves},
    Verb{"pin", "keep files, or everything below a directory, on a tier", command_pin},
    Verb{"unpin", "remove pins, so that heat decides again", command_unpin},
    Verb{"tier", "run a pass, pause and resume, drain or add a tier", command_tier},
    Verb{"trace", "record accesses, for the simulator", command_trace},
    Verb{"gpu", "read files into GPU memory", command_gpu},
    Verb{"log-level", "change how much a running mount logs", command_log_level},
    Verb{"doctor", "what this machine supports, and what to fix first", command_doctor},
    Verb{"bundle", "collect a problem report, without names and content", command_bundle},
    Verb{"fsck", "check a pool that is not mounted", command_fsck},
};

constexpr std::array kMoved{
    MovedVerb{"simulate", "sluice-lab simulate"},
};

}  // namespace

const std::string_view kProgramName = "sluice";

}  // namespace sluice

int main(int argc, char** argv) {
  sluice::keep_cufile_log_away();  // while there is one thread, and before any daemon forks
  return sluice::run_program(
      {sluice::kProgramName, "sluice <verb> [options] <path>", sluice::kVerbs, sluice::kMoved},
      argc, argv);
}
