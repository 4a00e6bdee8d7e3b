// SPDX-License-Identifier: BSD-2-Clause
// Sizes and durations in the notation of users: "64KiB", "1.5 GiB", "200G" (always IEC: K is 1024),
// "15min", "7d". Pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// Empty if `text` is not a non-negative number with an optional unit of B, K, M, G, T, P (each also
// as KB or KiB), or does not fit 64 bits.
std::optional<std::uint64_t> parse_size(std::string_view text);

// "0 B", "1023 B", "1.5 KiB", "3.0 GiB".
std::string format_size(std::uint64_t bytes);

// Empty if `text` is not a non-negative number with a unit of s, min, h, d or w, or is longer than
// a thousand years. A number without a unit is rejected as ambiguous.
std::optional<std::chrono::seconds> parse_duration(std::string_view text);

// "12 s", "3 min", "5 h 12 min", "9 d 3 h"; the smaller unit is omitted if it is 0.
std::string format_duration(std::chrono::seconds duration);

}  // namespace sluice
