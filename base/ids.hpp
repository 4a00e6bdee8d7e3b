// SPDX-License-Identifier: BSD-2-Clause
// The types that identify files and tiers in all layers.
#pragma once

#include <compare>
#include <cstdint>

namespace sluice {

// The identity of a file: its st_ino and its FUSE nodeid. Moves and remounts do not change it. 1 is
// the root.
enum class InodeId : std::uint64_t {};
inline constexpr InodeId kRootId{1};

// A tier's position in the configured order: 0 is the fastest.
using TierIndex = std::uint8_t;
inline constexpr TierIndex kNoTier = 0xff;

constexpr std::uint64_t to_number(InodeId id) { return static_cast<std::uint64_t>(id); }

}  // namespace sluice
