// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/partner.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <tuple>

namespace sluice::tools::cli {
namespace {

using Strings = std::vector<std::string>;

TEST(PartnerPlaceTest, AHostEndsAtTheFirstColonThatIsNotInADirectory) {
  for (const auto& [text, host, directory] : {std::tuple{"node2:/mnt", "node2", "/mnt"},
                                              {"root@node2:mnt", "root@node2", "mnt"},
                                              {"/mnt", "", "/mnt"},
                                              {"/mnt/a:b", "", "/mnt/a:b"},
                                              {"./a:b", "", "./a:b"},
                                              {":/mnt", "", ":/mnt"},
                                              {"node2:/a:b", "node2", "/a:b"}}) {
    const PartnerPlace place = parse_partner_place(text);
    EXPECT_EQ(place.host, host) << text;
    EXPECT_EQ(place.directory, directory) << text;
  }
}

TEST(PartnerCommandTest, AnotherMachineIsReachedBySshWithAQuotedDirectory) {
  EXPECT_EQ(partner_command({"node2", "/mnt/a b"}, "/bin/sluice"),
            (Strings{"ssh", "-T", "node2", "sluice origin check --partner '/mnt/a b'"}));
  EXPECT_EQ(partner_command({"", "/mnt/a b"}, "/bin/sluice"),
            (Strings{"/bin/sluice", "origin", "check", "--partner", "/mnt/a b"}));
}

TEST(PartnerTest, WhatItSaysAndIsAskedArrives) {
  const auto partner = Partner::start({"cat"});
  ASSERT_TRUE(partner) << partner.error().text();
  ASSERT_EQ(::write(partner->out(), "word", 4), 4);
  std::string said(4, '\0');
  ASSERT_EQ(::read(partner->in(), said.data(), said.size()), 4);
  EXPECT_EQ(said, "word");
}

}  // namespace
}  // namespace sluice::tools::cli
