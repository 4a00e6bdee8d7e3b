// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/text_width.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

#include "base/utf8.hpp"

namespace sluice::tools {
namespace {

struct Range {
  std::uint32_t first, last;
};

// Not wcwidth(): it needs the locale to be set and depends on the version of the C library.
constexpr std::array kNoColumn{
    Range{0x0300, 0x036f},   Range{0x0483, 0x0489}, Range{0x0591, 0x05bd}, Range{0x0610, 0x061a},
    Range{0x064b, 0x065f},   Range{0x0e31, 0x0e31}, Range{0x0e34, 0x0e3a}, Range{0x0e47, 0x0e4e},
    Range{0x1ab0, 0x1aff},   Range{0x1dc0, 0x1dff}, Range{0x200b, 0x200f}, Range{0x2060, 0x2064},
    Range{0x20d0, 0x20ff},   Range{0xfe00, 0xfe0f}, Range{0xfe20, 0xfe2f}, Range{0xfeff, 0xfeff},
    Range{0xe0100, 0xe01ef},
};
constexpr std::array kTwoColumns{
    Range{0x1100, 0x115f},   Range{0x231a, 0x231b},   Range{0x2329, 0x232a},
    Range{0x23e9, 0x23ec},   Range{0x2e80, 0x303e},   Range{0x3041, 0x4dbf},
    Range{0x4e00, 0xa4cf},   Range{0xa960, 0xa97c},   Range{0xac00, 0xd7a3},
    Range{0xf900, 0xfaff},   Range{0xfe30, 0xfe6f},   Range{0xff00, 0xff60},
    Range{0xffe0, 0xffe6},   Range{0x1f300, 0x1f64f}, Range{0x1f680, 0x1f6ff},
    Range{0x1f900, 0x1f9ff}, Range{0x1fa70, 0x1faff}, Range{0x20000, 0x3fffd},
};
// Direction marks, embeddings, overrides and isolates, which could reverse the text beside a name.
constexpr std::array kDirection{Range{0x061c, 0x061c}, Range{0x200e, 0x200f}, Range{0x202a, 0x202e},
                                Range{0x2066, 0x2069}};
// C1 controls; the separators of lines and paragraphs.
constexpr std::array kControl{Range{0x0000, 0x001f}, Range{0x007f, 0x009f}, Range{0x2028, 0x2029}};

template <std::size_t N>
bool is_in(const std::array<Range, N>& ranges, std::uint32_t character) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const Range& range) {
    return character >= range.first && character <= range.last;
  });
}

std::size_t width_of(const Character& character) {
  if (!character.valid) return 1;
  if (is_in(kNoColumn, character.value)) return 0;
  return is_in(kTwoColumns, character.value) ? 2 : 1;
}

}  // namespace

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  while (!text.empty()) {
    const Character character = first_character(text);
    width += width_of(character);
    text.remove_prefix(character.size);
  }
  return width;
}

std::string cut_to(std::string_view text, std::size_t width) {
  std::size_t used = 0, end = 0;
  while (end < text.size()) {
    const Character character = first_character(text.substr(end));
    used += width_of(character);
    if (used > width) break;
    end += character.size;
  }
  return std::string(text.substr(0, end));
}

std::string cut_front(std::string_view text, std::size_t width) {
  constexpr std::string_view kMore = "...";
  std::size_t used = display_width(text);
  if (used <= width) return std::string(text);
  if (width <= kMore.size()) return cut_to(kMore, width);
  // A combining mark is kept or cut together with its character.
  while (!text.empty() && (used > width - kMore.size() || width_of(first_character(text)) == 0)) {
    const Character character = first_character(text);
    used -= width_of(character);
    text.remove_prefix(character.size);
  }
  return std::string(kMore).append(text);
}

std::string cut_middle(std::string_view text, std::size_t width) {
  constexpr std::string_view kMore = "...";
  if (display_width(text) <= width) return std::string(text);
  // A third for the beginning: the end tells more of a path.
  const std::string begin = cut_to(text, width > kMore.size() ? (width - kMore.size()) / 3 : 0);
  return begin + cut_front(text.substr(begin.size()), width - display_width(begin));
}

std::string fitted(std::string_view text, std::size_t width) {
  std::string out = cut_to(text, width);
  out.append(width - display_width(out), ' ');
  return out;
}

std::string printable(std::string_view name) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  while (!name.empty()) {
    const Character character = first_character(name);
    const bool is_safe = character.valid && character.value != '\\' &&
                         !is_in(kControl, character.value) && !is_in(kDirection, character.value);
    for (const char c : name.substr(0, character.size)) {
      const auto byte = static_cast<unsigned char>(c);
      if (is_safe) {
        out += c;
      } else {
        out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      }
    }
    name.remove_prefix(character.size);
  }
  return out;
}

}  // namespace sluice::tools
