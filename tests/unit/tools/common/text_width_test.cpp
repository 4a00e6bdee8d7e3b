// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/text_width.hpp"

#include <gtest/gtest.h>

namespace sluice::tools {
namespace {

TEST(DisplayWidthTest, CountsColumnsAndNotBytes) {
  EXPECT_EQ(display_width("plain"), 5u);
  EXPECT_EQ(display_width("Größe"), 5u);
  EXPECT_EQ(display_width("日本語"), 6u);
  EXPECT_EQ(display_width("e\u0301te\u0301"), 3u);  // with combining accents
  EXPECT_EQ(display_width("🚀"), 2u);
}

TEST(CutTest, NeverSplitsACharacter) {
  EXPECT_EQ(cut_to("日本語", 5), "日本");
  EXPECT_EQ(cut_to("日本語", 6), "日本語");
  EXPECT_EQ(cut_to("abc", 0), "");
  EXPECT_EQ(cut_to("e\u0301te", 1), "e\u0301");
}

TEST(CutTest, CutFrontKeepsTheEndOfAPath) {
  EXPECT_EQ(cut_front("/models/llama/weights.bin", 14), "...weights.bin");
  EXPECT_EQ(cut_front("/short", 6), "/short");
  EXPECT_EQ(cut_front("/日本語", 6), "...語");
  EXPECT_EQ(cut_front("/longer", 2), "..");
  EXPECT_EQ(cut_front("/longer", 0), "");
}

TEST(CutTest, CutMiddleKeepsBothEndsOfAPath) {
  EXPECT_EQ(cut_middle("/short", 6), "/short");
  EXPECT_EQ(cut_middle("/models/llama/weights.bin", 20), "/mode.../weights.bin");
  EXPECT_EQ(display_width(cut_middle("/models/llama/weights.bin", 20)), 20u);
  EXPECT_EQ(cut_middle("/日本語/日本語", 10), "/...日本語");
  EXPECT_EQ(cut_middle("/longer", 2), "..");
}

TEST(CutTest, FittedTakesExactlyItsWidth) {
  EXPECT_EQ(fitted("ab", 4), "ab  ");
  EXPECT_EQ(fitted("abcdef", 4), "abcd");
  EXPECT_EQ(fitted("日本語", 5), "日本 ");
}

TEST(PrintableTest, LeavesNamesOfAnyLanguageAlone) {
  for (const char* name : {"/a/b c.bin", "Größe", "日本語", "e\u0301te\u0301", "🚀"})
    EXPECT_EQ(printable(name), name);
}

TEST(PrintableTest, EscapesTerminalControlCharacters) {
  EXPECT_EQ(printable("a\033[2Jb"), "a\\x1b[2Jb");
  EXPECT_EQ(printable("a\nb\tc\r\x7f"), "a\\x0ab\\x09c\\x0d\\x7f");
  EXPECT_EQ(printable("\u009b2J"), "\\xc2\\x9b2J");           // CSI as one character
  EXPECT_EQ(printable("x\u202efdp"), "x\\xe2\\x80\\xaefdp");  // right-to-left override
  EXPECT_EQ(printable("a\u2028b"), "a\\xe2\\x80\\xa8b");
  EXPECT_EQ(printable("\\x1b"), "\\x5cx1b");  // so that it does not look like an escape
}

TEST(PrintableTest, EscapesInvalidUtf8) {
  EXPECT_EQ(printable("a\xff"), "a\\xff");
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");           // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(printable("\xe6\x97"), "\\xe6\\x97");           // cut off
  EXPECT_EQ(printable("\xe6\x97z"), "\\xe6\\x97z");
}

}  // namespace
}  // namespace sluice::tools
