// SPDX-License-Identifier: BSD-2-Clause
#include "base/units.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace sluice {
namespace {
constexpr std::string_view kPrefixes = "KMGTPE";
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  const char* const end = text.data() + text.size();
  // Whole numbers are kept exact; only "1.5GiB" goes through floating point.
  std::uint64_t whole = 0;
  double number = 0;
  auto parsed = std::from_chars(text.data(), end, whole);
  const bool fraction = parsed.ptr != end && *parsed.ptr == '.';
  if (fraction) parsed = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (parsed.ec != std::errc{} || !(number >= 0)) return std::nullopt;
  std::string_view unit(parsed.ptr, static_cast<std::size_t>(end - parsed.ptr));
  while (unit.starts_with(' ')) unit.remove_prefix(1);

  unsigned shift = 0;
  if (!unit.empty() && unit != "B") {
    const auto power = kPrefixes.find(static_cast<char>(unit[0] & ~0x20));
    if (power == std::string_view::npos) return std::nullopt;
    shift = static_cast<unsigned>(10 * (power + 1));
    unit.remove_prefix(1);
    if (!unit.empty() && unit != "B" && unit != "iB") return std::nullopt;
  }
  if (!fraction) {
    if (shift > 0 && whole >> (64 - shift) != 0) return std::nullopt;
    return whole << shift;
  }
  const double bytes = std::ldexp(number, static_cast<int>(shift));
  if (bytes >= 0x1p64) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

std::string format_size(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  auto value = static_cast<double>(bytes);
  std::size_t power = 0;
  for (value /= 1024; value >= 1023.95 && power + 1 < kPrefixes.size(); ++power) value /= 1024;
  std::array<char, 32> out{};
  std::snprintf(out.data(), out.size(), "%.1f %ciB", value, kPrefixes[power]);
  return out.data();
}

}  // namespace sluice
