// SPDX-License-Identifier: BSD-2-Clause
// Sizes as people write them: "64KiB", "1.5 GiB", "200G" (IEC throughout: K is 1024). Pure
// functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// Nothing if `text` is not a non-negative number with an optional unit of B, K, M, G, T, P (each
// also as KB or KiB), or does not fit 64 bits.
std::optional<std::uint64_t> parse_size(std::string_view text);

// "0 B", "1023 B", "1.5 KiB", "3.0 GiB".
std::string format_size(std::uint64_t bytes);

}  // namespace sluice
