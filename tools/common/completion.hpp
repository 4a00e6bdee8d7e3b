// SPDX-License-Identifier: BSD-2-Clause
// What the shells' completions offer (packaging/completions): they ask `sluice complete WORD...`,
// and the answer is read from the tables of verbs and the help texts, so it can't fall behind them.
// Threads: immutable.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/common/commands.hpp"

namespace sluice {

// In the place of a verb's arguments, followed by the word before the cursor and the word under it:
// print what could stand there, a line each: the word, a tab, what it means. Nothing: file names.
inline constexpr std::string_view kCompletionMark = "--complete";

// What a help text says of an option: "  -c, --config FILE  read options from this file". The
// meaning may go on in lines below.
struct OptionLine {
  std::string letter;   // "-c"; empty: it has none
  std::string name;     // "--config"
  std::string value;    // "FILE"; empty: it takes none
  std::string meaning;  // "read options from this file"
};
std::vector<OptionLine> parse_options(std::string_view text);

// `sluice complete WORD...`: the words behind `sluice`, the last one being the one to complete.
int command_complete(int argc, char** argv, std::span<const Subverb> verbs);
// The same below a verb: `arguments` are those from kCompletionMark on.
int complete_verbs(std::span<char* const> arguments, std::span<const Subverb> verbs);
int complete_options(std::span<char* const> arguments, const HelpText& help, std::string_view verb,
                     bool is_first);

}  // namespace sluice
