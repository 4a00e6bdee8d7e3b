// SPDX-License-Identifier: BSD-2-Clause
// A pin keeps a file, or everything below a directory, on one tier. It is stored as an xattr on the
// file itself, with the tier's name as value, so it survives the loss of the database. Threads:
// pure functions.
#pragma once

#include <optional>
#include <string>

#include "tiering/pool/pool.hpp"

namespace sluice {

// On disk. Users see it as user.sluice.pin. On the tiers, only root can set it under this name.
inline constexpr const char* kPinXattr = "trusted.sluice.pin";

// The tier in the pin of `name` in `dirfd`, or of `dirfd` itself if `name` is empty. Inherited pins
// are not considered. Empty if there is no pin or the pool has no such tier.
std::optional<TierIndex> own_pin(const Pool& pool, int dirfd, const char* name);

// Whether the open file or directory has a pin, also one to a tier that the pool no longer has.
Result<bool> has_own_pin(int fd);

}  // namespace sluice
