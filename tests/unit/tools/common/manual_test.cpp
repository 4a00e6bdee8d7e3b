// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/manual.hpp"

#include <gtest/gtest.h>

namespace sluice::tools {
namespace {

constexpr HelpText kHelp{.usage = "sluice look [--far] NAME=PATH...",
                         .options = R"(  -f, --far            beyond
                       the horizon
      --at TIME        when
  -h, --help           this list
)",
                         .details = R"(
.Looks, as 'sluice plan' does, with --far too.

  up       to the sky
           and further
  down     to C:\

  time,id
  1,2

Examples:
  sluice look --far | jq '.a'

Exit status: 0 seen,
1 not.
)"};

TEST(ManualTest, LiteralWordsAreBoldAndPlaceholdersAreNot) {
  EXPECT_EQ(manual_section(kHelp, "SYNOPSIS"),
            "\\fBsluice\\fR \\fBlook\\fR [\\fB\\-\\-far\\fR] \\fINAME\\fR=\\fIPATH\\fR...\n");
}

TEST(ManualTest, OptionsKeepTheirLettersAndWholeMeaning) {
  EXPECT_EQ(manual_section(kHelp, "OPTIONS"),
            ".TP\n\\fB\\-f\\fR, \\fB\\-\\-far\\fR\nbeyond the horizon\n"
            ".TP\n\\fB\\-\\-at\\fR \\fITIME\\fR\nwhen\n");
}

TEST(ManualTest, DescriptionHasParagraphsListsAndPreformattedLines) {
  EXPECT_EQ(manual_section(kHelp, "DESCRIPTION"),
            "\\&.Looks, as \\fBsluice plan\\fR does, with \\fB\\-\\-far\\fR too.\n"
            ".TP\n\\fBup\\fR\nto the sky\nand further\n.TP\n\\fBdown\\fR\nto C:\\e\n"
            ".RS 4\n.nf\ntime,id\n1,2\n.fi\n.RE\n");
}

TEST(ManualTest, ExamplesCanBeCopiedFromThePage) {
  EXPECT_EQ(manual_section(kHelp, "EXAMPLES"),
            ".RS 4\n.nf\nsluice look \\-\\-far | jq \\(aq.a\\(aq\n.fi\n.RE\n");
}

TEST(ManualTest, ExitStatusIsASection) {
  EXPECT_EQ(manual_section(kHelp, "EXIT STATUS"), "0 seen,\n1 not.\n");
  EXPECT_EQ(
      manual_section({.usage = "", .options = "", .details = "\nJust words.\n"}, "EXIT STATUS"),
      "");
}

}  // namespace
}  // namespace sluice::tools
