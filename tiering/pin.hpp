// SPDX-License-Identifier: BSD-2-Clause
// A pin keeps a file, or everything below a directory, on one tier. It is an xattr on the file
// itself, with the tier's name, so that it survives the loss of the database. Threads: pure
// functions.
#pragma once

#include <optional>
#include <string>

#include "tiering/pool.hpp"

namespace sluice {

// On disk. Users know it as user.sluice.pin; this one only root can set on the tiers themselves.
inline constexpr const char* kPinXattr = "trusted.sluice.pin";

// The tier named in the pin that `name` in `dirfd` itself bears (`dirfd` if `name` is empty), not
// one that it inherits. Nothing also if the pool has no such tier.
std::optional<TierIndex> own_pin(const Pool& pool, int dirfd, const char* name);

}  // namespace sluice
