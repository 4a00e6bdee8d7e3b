// SPDX-License-Identifier: BSD-2-Clause
// UTF-8, one character at a time: names are bytes, and need not be any. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

struct Character {
  std::uint32_t value = 0;
  std::size_t size = 1;  // bytes
  bool valid = false;
};

// The first of `text`. What is no UTF-8 (overlong forms, surrogates and what is beyond Unicode,
// too) is a byte of its own, and not valid. REQUIRES: `text` is not empty.
Character first_character(std::string_view text);

}  // namespace sluice
