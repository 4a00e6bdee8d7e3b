// SPDX-License-Identifier: BSD-2-Clause
// The times of day at which automatic moves may run: "22:00-06:00,12:00-13:00". Threads: plain
// values and pure functions.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// From `begin` (inclusive) to `end` (exclusive), in minutes since midnight. If `end` is before
// `begin`, the window extends past midnight.
struct Window {
  unsigned begin = 0;  // 0 to 1439
  unsigned end = 0;    // 0 to 1440; never equal to begin

  bool operator==(const Window&) const = default;
};
using Windows = std::vector<Window>;  // empty: always open

// Parses HH:MM-HH:MM, or several of them separated by commas; an empty text means no windows. A
// window may end at 24:00. Empty if `text` is anything else.
std::optional<Windows> parse_windows(std::string_view text);

// The text that parse_windows() reads.
std::string format_windows(const Windows& windows);

bool is_open(const Windows& windows, const std::tm& local);

}  // namespace sluice
