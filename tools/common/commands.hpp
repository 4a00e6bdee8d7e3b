// SPDX-License-Identifier: BSD-2-Clause
// The verbs of `sluice`, one file each (command_<name>.cpp), and what they share.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tools/common/arguments.hpp"
#include "tools/common/output.hpp"

namespace sluice {

// Exit codes of every verb.
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

// A verb gets the arguments from its own name on (argv[0] is "mount") and returns the exit code.
int command_mount(int argc, char** argv);
int command_umount(int argc, char** argv);
int command_status(int argc, char** argv);
int command_fsck(int argc, char** argv);
int command_plan(int argc, char** argv);
int command_tier(int argc, char** argv);
int command_move(int argc, char** argv);
int command_pin(int argc, char** argv);
int command_unpin(int argc, char** argv);
int command_explain(int argc, char** argv);
int command_moves(int argc, char** argv);
int command_top(int argc, char** argv);
int command_web(int argc, char** argv);
int command_log_level(int argc, char** argv);
int command_trace(int argc, char** argv);
int command_doctor(int argc, char** argv);
int command_init(int argc, char** argv);
int command_bundle(int argc, char** argv);
int command_gpu(int argc, char** argv);
int command_gpu_bench(int argc, char** argv);

// A verb of a verb: `sluice tier run`.
struct Subverb {
  std::string_view name;
  std::string_view summary;
  int (*run)(int argc, char** argv);
};
// Hands on to the one that argv[1] names; its argv[0] is "tier run". Without one it complains.
int run_subverb(int argc, char** argv, std::span<const Subverb> subverbs);
int command_simulate(int argc, char** argv);

// Prints "sluice: VERB: MESSAGE" to stderr and returns kFailed.
int fail(std::string_view verb, std::string_view message);
// The same for a mistake in the usage; returns kUsage.
int misuse(std::string_view verb, std::string_view message);

// What --color asks for; complains and returns nothing if it is no word for that.
std::optional<Style> style_for(std::string_view verb, const std::string& when);
// The mount that is meant by `given`, which may be empty; complains and returns nothing if there is
// no answer.
std::optional<std::string> mount_for(std::string_view verb, const std::string& given);

}  // namespace sluice
