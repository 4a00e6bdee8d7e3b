// SPDX-License-Identifier: BSD-2-Clause
// Shell completions. The scripts in packaging/completions run `sluice complete WORD...`; the answer
// is derived from the tables of verbs and the help texts, so that it always agrees with them.
// Threads: immutable.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/common/verbs.hpp"

namespace sluice::tools {

// Replaces a verb's arguments, followed by the word before the cursor and the word under it: print
// the possible words, one a line: word, tab, meaning. Without any, the shell offers file names.
inline constexpr std::string_view kCompletionMark = "--complete";

// An option's line of a help text: "  -c, --config FILE  read options from this file". The
// meaning may continue in the lines below.
struct OptionLine {
  std::string letter;   // "-c"; empty: it has none
  std::string name;     // "--config"
  std::string value;    // "FILE"; empty: it takes none
  std::string meaning;  // "read options from this file"
};
std::vector<OptionLine> parse_options(std::string_view text);

// `sluice complete WORD...`: the words after `sluice`; the last one is to be completed.
int command_complete(int argc, char** argv, std::span<const Verb> verbs);
// The same below a verb: `arguments` are those from kCompletionMark on.
int complete_verbs(std::span<char* const> arguments, std::span<const Verb> verbs);
int complete_options(std::span<char* const> arguments, const HelpText& help, std::string_view verb,
                     bool is_first);

}  // namespace sluice::tools
