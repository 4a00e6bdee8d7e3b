// SPDX-License-Identifier: BSD-2-Clause
// What a program made of verbs (`sluice`, `sluice-lab`) is built from: the table of verbs, exit
// codes, and how a verb reports an error.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tools/common/arguments.hpp"
#include "tools/common/output.hpp"

namespace sluice::tools {

// Exit codes of every verb.
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

// The name of the program, for error messages. Each program defines it beside its main().
extern const std::string_view kProgramName;

// A verb receives the arguments from its own name on (argv[0] is "mount") and returns the exit
// code.
struct Verb {
  std::string_view name;
  std::string_view summary;
  int (*run)(int argc, char** argv);
};

struct Program {
  std::string_view name;
  std::string_view usage;  // "sluice <verb> [options] <path>"
  std::span<const Verb> verbs;
};

// The whole program: runs the verb that argv[1] names, or prints the help. An exception that
// reaches it, and output that could not be written, are reported and become kFailed. Closes stdout.
int run_program(const Program& program, int argc, char** argv);

// A verb that consists of verbs, like `sluice tier run`: runs the one that argv[1] names. That
// verb's argv[0] is "tier run". Reports an error if there is no such verb.
int run_subverb(int argc, char** argv, std::span<const Verb> subverbs);

// Prints "sluice: VERB: MESSAGE" to stderr and returns kFailed.
int fail(std::string_view verb, std::string_view message);
// The same for wrong usage; returns kUsage.
int misuse(std::string_view verb, std::string_view message);

// The style that the value of --color asks for. Reports an error and returns nothing if it is not
// one of auto, always and never.
std::optional<Style> style_for(std::string_view verb, const std::string& when);
// The mount that `given` names; if it is empty, the current one or the only one. Reports an error
// and returns nothing if that does not name a mount.
std::optional<std::string> mount_for(std::string_view verb, const std::string& given);

}  // namespace sluice::tools
