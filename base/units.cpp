// SPDX-License-Identifier: BSD-2-Clause
#include "base/units.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace sluice {
namespace {
constexpr std::string_view kPrefixes = "KMGTPE";

struct TimeUnit {
  std::string_view name;
  std::int64_t seconds;
};
constexpr std::array<TimeUnit, 5> kTimeUnits{
    {{"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}, {"w", 604800}}};
constexpr double kLongest = 1000 * 366 * 86400.0;

std::string two_units(std::int64_t large, const char* large_name, std::int64_t small,
                      const char* small_name) {
  std::string text = std::to_string(large) + large_name;
  return small == 0 ? text : text + " " + std::to_string(small) + small_name;
}
}  // namespace

std::optional<std::uint64_t> parse_size(std::string_view text) {
  const char* const end = text.data() + text.size();
  // Whole numbers stay exact; only numbers like "1.5GiB" use floating point.
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

std::optional<std::chrono::seconds> parse_duration(std::string_view text) {
  const char* const end = text.data() + text.size();
  double number = 0;
  const auto parsed = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (parsed.ec != std::errc{} || !(number >= 0) || std::signbit(number)) return std::nullopt;
  std::string_view unit(parsed.ptr, static_cast<std::size_t>(end - parsed.ptr));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, seconds] : kTimeUnits) {
    if (unit != name) continue;
    const double total = number * static_cast<double>(seconds);
    if (total > kLongest) return std::nullopt;
    return std::chrono::seconds(std::llround(total));
  }
  return std::nullopt;
}

std::string format_duration(std::chrono::seconds duration) {
  const std::int64_t seconds = duration.count();
  const std::int64_t minutes = seconds / 60;
  const std::int64_t hours = minutes / 60;
  if (minutes == 0) return std::to_string(seconds) + " s";
  if (hours == 0) return std::to_string(minutes) + " min";
  if (hours < 48) return two_units(hours, " h", minutes % 60, " min");
  return two_units(hours / 24, " d", hours % 24, " h");
}

}  // namespace sluice
