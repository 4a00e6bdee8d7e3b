// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/output.hpp"

#include <gtest/gtest.h>

#include <string>

namespace sluice::tools {
namespace {

Table moves() {
  Table table({{"SIZE", Table::Align::Right},
               {"WHY", Table::Align::Left, Table::Shorten::End},
               {"PATH", Table::Align::Left, Table::Shorten::Middle}});
  using std::string_literals::operator""s;
  table.add({"1.0 GiB"s, "it is open for writing"s, "/datasets/imagenet/train/0001.tar"s});
  table.add({"2 B"s, "no room"s, "/f"s});
  return table;
}

TEST(TableTest, ItIsAsWideAsItsCellsIfThereIsRoom) {
  EXPECT_EQ(moves().text(*Style::create("never"), 100),
            "   SIZE  WHY                     PATH\n"
            "1.0 GiB  it is open for writing  /datasets/imagenet/train/0001.tar\n"
            "    2 B  no room                 /f\n");
}

TEST(TableTest, TheWidestColumnsAreShortenedOnANarrowTerminal) {
  EXPECT_EQ(moves().text(*Style::create("never"), 51),
            "   SIZE  WHY                   PATH\n"
            "1.0 GiB  it is open for wr...  /data...ain/0001.tar\n"
            "    2 B  no room               /f\n");
}

TEST(TableTest, OtherColumnsAreNeverShortened) {
  EXPECT_EQ(moves().text(*Style::create("never"), 10),
            "   SIZE  WHY       PATH\n"
            "1.0 GiB  it is...  /....tar\n"
            "    2 B  no room   /f\n");
}

}  // namespace
}  // namespace sluice::tools
