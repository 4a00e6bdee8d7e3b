// SPDX-License-Identifier: BSD-2-Clause
// Text on a terminal: how many columns it takes, and names that came from users made safe and short
// enough to show. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice {

// Columns that `text` takes: two for the wide characters of East Asia and for emoji, none for marks
// that join the one before. REQUIRES: it has been through printable(), or is ours.
std::size_t display_width(std::string_view text);

// The beginning of `text` that takes at most `width` columns.
std::string cut_to(std::string_view text, std::size_t width);
// `text` if it fits; else its end, which tells most of a path, after "...".
std::string cut_front(std::string_view text, std::size_t width);
// `text` with blanks up to `width` columns, cut if it is longer.
std::string fitted(std::string_view text, std::size_t width);

// A name that can't move the cursor, change colours, turn the direction of writing or break a line:
// control characters, those that change direction, backslashes and what is no UTF-8 become \xNN,
// byte by byte.
std::string printable(std::string_view name);

}  // namespace sluice
