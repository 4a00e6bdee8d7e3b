// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/window.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace sluice {
namespace {

constexpr unsigned kDay = 24 * 60;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "6:00" or "06:00", as minutes since midnight.
std::optional<unsigned> parse_time(std::string_view text) {
  if (text.size() == 4) {
    if (!is_digit(text[0]) || text[1] != ':') return std::nullopt;
  } else if (text.size() != 5 || !is_digit(text[0]) || !is_digit(text[1]) || text[2] != ':') {
    return std::nullopt;
  }
  const auto digit = [&](std::size_t from_end) {
    return static_cast<unsigned>(text[text.size() - from_end] - '0');
  };
  if (!is_digit(text[text.size() - 2]) || !is_digit(text[text.size() - 1])) return std::nullopt;
  const unsigned hours = digit(4) + (text.size() == 5 ? 10 * digit(5) : 0);
  const unsigned minutes = 10 * digit(2) + digit(1);
  if (minutes > 59 || hours * 60 + minutes > kDay) return std::nullopt;
  return hours * 60 + minutes;
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

std::optional<Window> parse_window(std::string_view text) {
  const auto dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto begin = parse_time(trimmed(text.substr(0, dash)));
  const auto end = parse_time(trimmed(text.substr(dash + 1)));
  // Equal times are ambiguous: they could mean the whole day or no time at all.
  if (!begin || !end || *begin == kDay || *begin == *end) return std::nullopt;
  return Window{*begin, *end};
}

}  // namespace

std::string format_windows(const Windows& windows) {
  std::string out;
  for (const Window& each : windows) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%02u:%02u-%02u:%02u", each.begin / 60, each.begin % 60,
                  each.end / 60, each.end % 60);
    out.append(out.empty() ? "" : ",").append(text.data());
  }
  return out;
}

std::optional<Windows> parse_windows(std::string_view text) {
  Windows windows;
  text = trimmed(text);
  while (!text.empty()) {
    const auto comma = text.find(',');
    const auto window = parse_window(trimmed(text.substr(0, comma)));
    if (!window) return std::nullopt;
    windows.push_back(*window);
    if (comma == std::string_view::npos) break;
    text = trimmed(text.substr(comma + 1));
    if (text.empty()) return std::nullopt;
  }
  return windows;
}

bool is_open(const Windows& windows, const std::tm& local) {
  const auto now = static_cast<unsigned>(local.tm_hour * 60 + local.tm_min);
  return windows.empty() || std::any_of(windows.begin(), windows.end(), [&](const Window& each) {
           if (each.begin < each.end) return each.begin <= now && now < each.end;
           return each.begin <= now || now < each.end;
         });
}

}  // namespace sluice
