// SPDX-License-Identifier: BSD-2-Clause
// The times of day at which files may be moved by themselves: "22:00-06:00,12:00-13:00". Threads:
// plain values and pure functions.
#pragma once

#include <ctime>
#include <optional>
#include <string_view>
#include <vector>

namespace sluice {

// From `begin` up to, and without, `end`, in minutes since midnight. One that ends before it begins
// goes on past midnight.
struct Window {
  unsigned begin = 0;  // 0 to 1439
  unsigned end = 0;    // 0 to 1440; never equal to begin

  bool operator==(const Window&) const = default;
};
using Windows = std::vector<Window>;  // none: always open

// Nothing unless `text` is HH:MM-HH:MM, or several of them with commas between; empty text is no
// window. 24:00 may end one.
std::optional<Windows> parse_windows(std::string_view text);

bool is_open(const Windows& windows, const std::tm& local);

}  // namespace sluice
