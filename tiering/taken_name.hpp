// SPDX-License-Identifier: BSD-2-Clause
// What happens when a tier returns and has a name that was given to another file in its absence.
// Threads: pure functions; the caller keeps everybody else away from the names.
#pragma once

#include "tiering/intent.hpp"

namespace sluice {

// In .sluice of a tier: files that lost their name to a newer one, each below a directory of its
// own at the path that it had. Nothing there is ever deleted by us.
inline constexpr const char* kAsideDirectory = "aside";

// Applies a step of the kind NameTaken. Nothing happens if the tier has no such name, or if the
// newer file is gone again. Otherwise:
// - The newer file keeps the name and the older one is set aside, if whoever owns the newer one
//   could have replaced the older: the directory is not sticky, or they own it or the older file.
// - Two directories of one owner become one, with the permissions that both of them grant.
// - In all other cases the older one keeps the name, and the newer one is set aside.
Result<void> apply_name_taken(const Pool& pool, const Step& step);

}  // namespace sluice
