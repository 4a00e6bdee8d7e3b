// SPDX-License-Identifier: BSD-2-Clause
// Text on a terminal: how many columns it takes, and how to escape and shorten names that come from
// users. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::tools {

// Columns that `text` takes: two for the wide characters of East Asia and for emoji, none for marks
// that combine with the one before. REQUIRES: `text` is a result of printable(), or a constant.
std::size_t display_width(std::string_view text);

// The beginning of `text` that takes at most `width` columns.
std::string cut_to(std::string_view text, std::size_t width);
// `text` if it fits; otherwise "..." and its end, the most telling part of a path.
std::string cut_front(std::string_view text, std::size_t width);
// `text` if it fits; otherwise its beginning and its end with "..." between them.
std::string cut_middle(std::string_view text, std::size_t width);
// `text` with blanks up to `width` columns, cut if it is longer.
std::string fitted(std::string_view text, std::size_t width);

// A name that can't move the cursor, change colours or the writing direction, or break a line:
// control characters, direction marks, backslashes and invalid UTF-8 become \xNN,
// byte by byte.
std::string printable(std::string_view name);

}  // namespace sluice::tools
