// SPDX-License-Identifier: BSD-2-Clause
#include "base/utf8.hpp"

#include <array>

#include "base/check.hpp"

namespace sluice {

Character first_character(std::string_view text) {
  SLUICE_CHECK(!text.empty(), "a text with a first character is not empty");
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const std::size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < size) return {lead, 1, false};
  std::uint32_t value = lead & (0xffU >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {lead, 1, false};
    value = value << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::array<std::uint32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = value >= 0xd800 && value <= 0xdfff;
  if (value < kLeast[size] || value > 0x10ffff || is_surrogate) return {lead, 1, false};
  return {value, size, true};
}

}  // namespace sluice
