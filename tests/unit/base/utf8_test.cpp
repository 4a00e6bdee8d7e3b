// SPDX-License-Identifier: BSD-2-Clause
#include "base/utf8.hpp"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(Utf8Test, CharactersHaveAValueAndALength) {
  const auto check = [](std::string_view text, std::uint32_t value) {
    const Character found = first_character(text);
    EXPECT_TRUE(found.valid) << value;
    EXPECT_EQ(found.value, value);
    EXPECT_EQ(found.size, text.size() - 1) << value;
  };
  check("az", 'a');
  check("\xc3\xa4z", 0xe4);
  check("\xe2\x82\xacz", 0x20ac);
  check("\xf0\x9f\x98\x80z", 0x1f600);
  check("\xf4\x8f\xbf\xbfz", 0x10ffff);
}

TEST(Utf8Test, InvalidInputIsReadAsOneByte) {
  for (const std::string_view text :
       {"\x80", "\xc3", "\xc3z", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xe2\x82",
        "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xff"}) {
    const Character found = first_character(text);
    EXPECT_FALSE(found.valid) << text;
    EXPECT_EQ(found.size, 1u);
    EXPECT_EQ(found.value, static_cast<unsigned char>(text[0]));
  }
}

}  // namespace
}  // namespace sluice
