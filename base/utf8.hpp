// SPDX-License-Identifier: BSD-2-Clause
// Decodes UTF-8 one character at a time. File names are bytes and may not be valid UTF-8. Pure
// functions.
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

// The first character of `text`. If `text` does not begin with valid UTF-8 (overlong forms,
// surrogates and values beyond Unicode are invalid), the result is its first byte, marked as not
// valid. CHECKED: `text` is not empty.
Character first_character(std::string_view text);

}  // namespace sluice
