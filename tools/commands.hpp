// SPDX-License-Identifier: BSD-2-Clause
// The verbs of `sluice`, one file each (command_<name>.cpp), and what they share.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

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

// What -h and --help print. Written by hand: the text is part of the interface, and CLI11's differs
// by version.
struct HelpText {
  std::string_view usage;    // "sluice mount [options] MOUNTPOINT"
  std::string_view options;  // a line each; -h stops here
  std::string_view details;  // what --help adds
};

// Parses into what `app` is bound to. Returns the exit code if the verb ends here: help was asked
// for, or the usage is wrong and was complained about.
std::optional<int> parse_arguments(CLI::App& app, int argc, char** argv, const HelpText& help);

// Prints "sluice: VERB: MESSAGE" to stderr and returns kFailed.
int fail(std::string_view verb, std::string_view message);

}  // namespace sluice
