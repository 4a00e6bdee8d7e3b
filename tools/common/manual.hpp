// SPDX-License-Identifier: BSD-2-Clause
// The man pages of the verbs, generated from their help texts so that the two agree. The build
// runs `sluice manual VERB` for each page (packaging/manuals.sh). Threads: immutable.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tools/common/arguments.hpp"
#include "tools/common/verbs.hpp"

namespace sluice::tools {

// Replaces a verb's arguments, followed by the title of a section: print the verb's part of
// that section.
inline constexpr std::string_view kManualMark = "--manual";

// `sluice manual VERB` prints the page of a verb; without one, the list of verbs for sluice(1).
// `sluice manual options FORMAT GROUP` prints options (tools/common/option_texts.hpp).
int command_manual(int argc, char** argv, const Program& program);
// Answers kManualMark below a verb: `arguments` are those from it on, `verb` is "status" or "tier
// run".
int print_manual_part(std::span<char* const> arguments, const HelpText& help,
                      std::string_view verb);

// `text` in roff, with options and commands in bold.
std::string painted(std::string_view text);
// What print_manual_part() prints, in roff; empty if the help text has nothing
// for that section.
std::string manual_section(const HelpText& help, std::string_view title);

}  // namespace sluice::tools
